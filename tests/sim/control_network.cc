#include "tests/sim/control_network.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "common/log.h"
#include "worker/inbox_rule.h"

namespace baton::sim {

using router::LinkEvent;

// From Connect until both ends have let go of it.
struct ControlNetwork::Stream {
  // The router's end; null once it is gone.
  Link* link = nullptr;
  int router = -1;
  std::string address;
  // The worker's end; null before it accepts, and once it is gone.
  Server* server = nullptr;
  bool accepted = false;
  worker::SessionId session = 0;

  std::deque<v1::RouterMessage> to_worker;
  std::deque<v1::WorkerMessage> to_router;
  bool broken = false;
  // Behind the last message that arrives there comes the end.
  bool end_to_worker = false;
  bool end_to_router = false;
  bool worker_knows = false;
  bool router_knows = false;
};

class ControlNetwork::Link final : public router::WorkerLink {
 public:
  Link(ControlNetwork* network, int router, int index, std::string address,
       v1::RouterMessage hello, Sink sink)
      : network_(network),
        router_(router),
        index_(index),
        address_(std::move(address)),
        hello_(std::move(hello)),
        sink_(std::move(sink)) {}
  ~Link() override {
    if (stream_ == nullptr) return;
    ControlNetwork::Break(stream_.get());
    network_->dice_->CutShort(&stream_->to_worker);
    stream_->link = nullptr;
  }

  void Connect() override {
    CHECK(stream_ == nullptr);
    stream_ = std::make_shared<Stream>();
    stream_->link = this;
    stream_->router = router_;
    stream_->address = address_;
    stream_->to_worker.push_back(hello_);
    network_->streams_.push_back(stream_);
  }
  bool connected() const override { return stream_ != nullptr; }
  bool Send(v1::RouterMessage message) override {
    if (stream_ == nullptr || stream_->router_knows) return false;
    if (!stream_->broken) stream_->to_worker.push_back(std::move(message));
    return true;
  }
  void Consumed() override {}
  void Ended() override {
    CHECK(stream_ != nullptr && stream_->router_knows);
    stream_->link = nullptr;
    stream_.reset();
  }
  void Break() override {
    if (stream_ == nullptr || stream_->broken) return;
    if (stream_->accepted) network_->coverage_->Add(Covered::kSilent);
    ControlNetwork::Break(stream_.get());
    network_->dice_->CutShort(&stream_->to_worker);
    stream_->to_router.clear();
  }

  void Take(v1::WorkerMessage message) {
    LinkEvent event;
    event.link = index_;
    event.message = std::move(message);
    sink_(std::move(event));
  }
  void TakeEnd() {
    LinkEvent event;
    event.link = index_;
    event.kind = LinkEvent::Kind::kEnded;
    event.reason = "the simulated stream ended";
    sink_(std::move(event));
  }

 private:
  ControlNetwork* const network_;
  const int router_;
  const int index_;
  const std::string address_;
  const v1::RouterMessage hello_;
  const Sink sink_;
  std::shared_ptr<Stream> stream_;
};

std::unique_ptr<ControlNetwork::Server> ControlNetwork::Serve(
    int party, const std::string& address, const v1::WorkerHello& hello,
    worker::Inbox* inbox, worker::SessionLeases* leases) {
  CHECK(ServerAt(address) == nullptr);
  auto server = std::make_unique<Server>();
  server->network_ = this;
  server->party_ = party;
  server->address_ = address;
  server->hello_ = hello;
  server->hello_.set_answers_heartbeats(true);
  server->inbox_ = inbox;
  server->leases_ = leases;
  servers_.push_back(server.get());
  return server;
}

ControlNetwork::Server::~Server() {
  for (const std::shared_ptr<Stream>& stream : network_->streams_) {
    if (stream->server != this) continue;
    ControlNetwork::Break(stream.get());
    if (dies_silently_) network_->dice_->CutShort(&stream->to_router);
    stream->to_worker.clear();
    stream->server = nullptr;
  }
  std::erase(network_->servers_, this);
}

void ControlNetwork::Server::Send(worker::SessionId session,
                                  v1::WorkerMessage message) {
  network_->Observe(message);
  for (const std::shared_ptr<Stream>& stream : network_->streams_) {
    if (stream->server != this || stream->session != session) continue;
    if (!stream->broken) stream->to_router.push_back(std::move(message));
    return;
  }
}

void ControlNetwork::Server::SendToAll(const v1::WorkerMessage& message) {
  for (const std::shared_ptr<Stream>& stream : network_->streams_) {
    if (stream->server == this && !stream->broken) {
      stream->to_router.push_back(message);
    }
  }
}

bool ControlNetwork::Server::Backlogged(worker::SessionId session) {
  constexpr size_t kBacklog = 8;
  for (const std::shared_ptr<Stream>& stream : network_->streams_) {
    if (stream->server != this || stream->session != session) continue;
    return stream->to_router.size() >= kBacklog;
  }
  return false;
}

router::MakeWorkerLink ControlNetwork::LinksOf(int party) {
  return [this, party](int link, const std::string& address,
                       v1::RouterMessage hello, router::WorkerLink::Sink sink) {
    return std::make_unique<Link>(this, party, link, address, std::move(hello),
                                  std::move(sink));
  };
}

bool ControlNetwork::Step() {
  Forget();
  std::vector<std::pair<Stream*, int>> possible;
  for (const std::shared_ptr<Stream>& stream : streams_) {
    if (CanAccept(*stream)) possible.push_back({stream.get(), 0});
    if (CanReachWorker(*stream)) possible.push_back({stream.get(), 1});
    if (CanReachRouter(*stream)) possible.push_back({stream.get(), 2});
  }
  if (possible.empty()) return false;
  const auto [stream, what] =
      possible[dice_->Below(static_cast<int>(possible.size()))];
  if (what == 0) Accept(stream);
  if (what == 1) ToWorker(stream);
  if (what == 2) ToRouter(stream);
  return true;
}

void ControlNetwork::BreakOne() {
  Forget();
  if (streams_.empty()) return;
  Stream* stream =
      streams_[dice_->Below(static_cast<int>(streams_.size()))].get();
  if (stream->broken) return;
  coverage_->Add(Covered::kStreamBroken);
  journal_->Note("stream breaks", stream->router, stream->session);
  Break(stream);
  dice_->CutShort(&stream->to_worker);
  dice_->CutShort(&stream->to_router);
}

bool ControlNetwork::CanAccept(const Stream& stream) const {
  if (stream.accepted || stream.broken) return false;
  const Server* server = ServerAt(stream.address);
  return server != nullptr && awake_(server->party_);
}

bool ControlNetwork::CanReachWorker(const Stream& stream) const {
  return stream.server != nullptr && awake_(stream.server->party_) &&
         !stream.worker_knows &&
         (!stream.to_worker.empty() || stream.end_to_worker);
}

bool ControlNetwork::CanReachRouter(const Stream& stream) const {
  return stream.link != nullptr && awake_(stream.router) &&
         !stream.router_knows &&
         (!stream.to_router.empty() || stream.end_to_router);
}

void ControlNetwork::Accept(Stream* stream) {
  Server* server = ServerAt(stream->address);
  stream->accepted = true;
  stream->server = server;
  stream->session = ++server->last_session_;
  server->leases_->Open(stream->session, /*lease_ms=*/0);
  v1::WorkerMessage hello;
  *hello.mutable_hello() = server->hello_;
  stream->to_router.push_back(std::move(hello));
  journal_->Note("stream opens", server->party_, stream->session,
                 static_cast<uint64_t>(stream->router));
}

void ControlNetwork::ToWorker(Stream* stream) {
  Server* server = stream->server;
  if (!stream->to_worker.empty()) {
    v1::RouterMessage message = std::move(stream->to_worker.front());
    stream->to_worker.pop_front();
    journal_->Note("to worker", server->party_, stream->session,
                   static_cast<uint64_t>(message.kind_case()));
    DeliverToWorker(stream, std::move(message));
    return;
  }
  stream->worker_knows = true;
  worker::RouterEvent gone;
  gone.kind = worker::RouterEvent::Kind::kGone;
  gone.session = stream->session;
  server->inbox_->PushUnbounded(std::move(gone));
  server->leases_->Close(stream->session);
  stream->server = nullptr;
  coverage_->Add(Covered::kRouterGone);
  journal_->Note("router gone", server->party_, stream->session);
}

void ControlNetwork::DeliverToWorker(Stream* stream,
                                     v1::RouterMessage message) {
  Server* server = stream->server;
  if (message.has_hello()) {
    server->leases_->Open(stream->session, message.hello().lease_ms());
  } else {
    server->leases_->Renew(stream->session);
    if (message.has_heartbeat()) {
      if (!message.heartbeat().answer()) return;
      v1::WorkerMessage answer;
      answer.mutable_heartbeat();
      server->Send(stream->session, std::move(answer));
      return;
    }
  }
  uint64_t attempt = 0;
  const v1::SequenceSpec* sequence = nullptr;
  if (message.has_reserve()) {
    attempt = message.reserve().attempt();
    sequence = &message.reserve().sequence();
    if (message.reserve().local_prefill()) {
      coverage_->Add(Covered::kLocalPrefill);
    }
    if (sequence->tokens_size() > static_cast<int>(sequence->prompt_length())) {
      coverage_->Add(Covered::kMigrated);
    }
    if (sequence->prompt_logprobs().first() > 1) {
      coverage_->Add(Covered::kPromptLogprobsInParts);
    }
  } else if (message.has_prefill()) {
    attempt = message.prefill().attempt();
    if (message.prefill().sequence().prompt_logprobs().first() > 1) {
      coverage_->Add(Covered::kPromptLogprobsInParts);
    }
  }
  worker::RouterEvent event;
  event.session = stream->session;
  event.message = std::move(message);
  const worker::InboxRule rule = worker::RuleOf(event.message);
  if (rule == worker::InboxRule::kTaken) {
    server->inbox_->PushUnbounded(std::move(event));
    return;
  }
  if (server->inbox_->TryPush(std::move(event)) ||
      rule == worker::InboxRule::kDropped) {
    return;
  }
  v1::WorkerMessage full;
  v1::Refusal* refusal = full.mutable_refusal();
  refusal->set_attempt(attempt);
  refusal->set_reason(v1::REFUSAL_REASON_QUEUE_FULL);
  refusal->set_retry_after_ms(50);
  server->Send(stream->session, std::move(full));
}

void ControlNetwork::ToRouter(Stream* stream) {
  if (!stream->to_router.empty()) {
    v1::WorkerMessage message = std::move(stream->to_router.front());
    stream->to_router.pop_front();
    if (message.has_refusal()) coverage_->Add(Covered::kRefused);
    journal_->Note("to router", stream->router, stream->session,
                   static_cast<uint64_t>(message.kind_case()));
    stream->link->Take(std::move(message));
    return;
  }
  stream->router_knows = true;
  journal_->Note("stream ended", stream->router, stream->session);
  stream->link->TakeEnd();
}

void ControlNetwork::Break(Stream* stream) {
  stream->broken = true;
  stream->end_to_worker = true;
  stream->end_to_router = true;
}

ControlNetwork::Server* ControlNetwork::ServerAt(
    const std::string& address) const {
  for (Server* server : servers_) {
    if (server->address_ == address) return server;
  }
  return nullptr;
}

void ControlNetwork::Forget() {
  std::erase_if(streams_, [](const std::shared_ptr<Stream>& stream) {
    return stream->link == nullptr && stream->server == nullptr &&
           (stream->accepted || stream->broken);
  });
}

void ControlNetwork::Observe(const v1::WorkerMessage& message) {
  if (message.has_grant()) {
    generations_[TransferId{message.grant().transfer_id()}] =
        message.grant().generation();
    if (message.grant().first_token() > 0) {
      coverage_->Add(Covered::kDecodeHit);
      if (message.grant().num_tokens() == 0) {
        coverage_->Add(Covered::kNothingToSend);
      }
    }
    return;
  }
  if (!message.has_outcome()) return;
  if (message.outcome().ok()) {
    if (message.outcome().kv_transfer_bytes() > 0) {
      coverage_->Add(Covered::kLanded);
    }
    return;
  }
  const std::string& error = message.outcome().error();
  const auto count = [&](const char* word, Covered what) {
    if (absl::StrContains(error, word)) coverage_->Add(what);
  };
  count("KV transfer failed", Covered::kTransferFailed);
  count("peer_lost", Covered::kTornByPeerLoss);
  count("checksum_mismatch", Covered::kChecksumMismatch);
  count("lease_expired", Covered::kLeaseExpired);
  count("silent", Covered::kLeaseExpired);
}

bool ControlNetwork::IsStale(TransferId transfer, uint32_t generation) const {
  const auto it = generations_.find(transfer);
  return it != generations_.end() && generation < it->second;
}

}  // namespace baton::sim
