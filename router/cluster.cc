#include "router/cluster.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/utf8.h"
#include "router/worker_messages.h"

namespace baton::router {

using scheduling::kNoWorker;
using scheduling::WorkerId;
using scheduling::WorkerRole;

namespace {

// gRPC's words about a connection, as they are shown.
constexpr size_t kMaxReasonBytes = 400;

// A turn that comes later than this was kept from running.
constexpr absl::Duration kStall = absl::Milliseconds(100);

}  // namespace

Cluster::Cluster(const Options& options, const ServedModel& model,
                 const v1::RouterHello& hello, const MakeWorkerLink& make_link,
                 RouterInbox* inbox, RouterMetrics* metrics, absl::Time now)
    : options_(options),
      make_link_(make_link),
      inbox_(inbox),
      metrics_(metrics),
      registry_(model, options.registry, now),
      prefixes_(options.prefixes, metrics->prefix()),
      roles_(options.roles, &registry_) {
  // Now, and not while streams run: it takes tens of milliseconds.
  if (model.tokenizer != nullptr) {
    vocabulary_ = MakeVocabulary(*model.tokenizer, model.vocab_size);
  }
  *hello_.mutable_hello() = hello;
  hello_.mutable_hello()->set_lease_ms(
      static_cast<uint32_t>(absl::ToInt64Milliseconds(options.lease)));
  const auto add = [&](WorkerRole role, const std::string& address) {
    if (IsDnsTarget(address)) {
      AddSource(role, address);
    } else {
      Add(role, address, /*source=*/-1, now);
    }
  };
  for (const std::string& address : options.prefill_addresses) {
    add(WorkerRole::kPrefill, address);
  }
  for (const std::string& address : options.decode_addresses) {
    add(WorkerRole::kDecode, address);
  }
  UpdateGauges(now);
}

void Cluster::Add(WorkerRole role, const std::string& address, int source,
                  absl::Time now) {
  const int index = registry_.Add(role, address);
  if (index == static_cast<int>(peers_.size())) peers_.emplace_back();
  Peer& peer = peers_[index];
  CHECK(peer.link == nullptr) << address;
  peer.link =
      make_link_(index, address, hello_, [inbox = inbox_](LinkEvent event) {
        inbox->PushUnbounded(RouterEvent(std::move(event)));
      });
  peer.source = source;
  peer.detector = scheduling::FailureDetector(options_.detector);
  peer.next_connect_at = now;
  peer.backoff = options_.min_reconnect;
}

std::optional<Cluster::News> Cluster::Take(LinkEvent event, absl::Time now) {
  const int index = event.link;
  Peer& peer = peers_[index];
  switch (event.kind) {
    case LinkEvent::Kind::kEnded: {
      News news = TakeEnd(index, event.reason, now);
      UpdateGauges(now);
      if (news.worker == kNoWorker) return std::nullopt;
      return news;
    }
    case LinkEvent::Kind::kMessage:
      break;
  }
  // News of prefixes are consumed when they are applied.
  if (!event.message.has_prefixes()) peer.link->Consumed();
  peer.detector.Heard(now);
  // Of the worker's loop; heartbeats are answered beside it.
  if (!event.message.has_heartbeat()) peer.last_heard_at = now;
  // What still comes of a stream that we are ending is of no interest.
  if (peer.breaking) return std::nullopt;
  switch (event.message.kind_case()) {
    case v1::WorkerMessage::kHello:
      TakeHello(index, event.message, now);
      UpdateGauges(now);
      return std::nullopt;
    case v1::WorkerMessage::kLoad:
      registry_.Reported(index, event.message.load(), now);
      if (event.message.load().draining()) {
        Draining(registry_.workers()[index].id, now);
      }
      return std::nullopt;
    case v1::WorkerMessage::kPrefixes:
      TakePrefixes(index, std::move(event.message));
      return std::nullopt;
    case v1::WorkerMessage::kAdapters:
      registry_.AdaptersChanged(index, event.message.adapters());
      return std::nullopt;
    case v1::WorkerMessage::kPair:
      registry_.PairReported(index, event.message.pair(), now);
      metrics_->SetPairs(registry_.NumPairs());
      return std::nullopt;
    case v1::WorkerMessage::kGrant:
    case v1::WorkerMessage::kRefusal:
    case v1::WorkerMessage::kTokens:
    case v1::WorkerMessage::kOutcome:
      break;
    case v1::WorkerMessage::kHeartbeat:
    case v1::WorkerMessage::KIND_NOT_SET:  // a newer worker's message
      return std::nullopt;
  }
  if (!peer.said_hello) {
    Break(index, "it spoke before its hello");
    return std::nullopt;
  }
  News news;
  news.worker = registry_.workers()[index].id;
  news.worker_name = registry_.NameOf(news.worker);
  news.message = std::move(event.message);
  return news;
}

void Cluster::TakeHello(int index, const v1::WorkerMessage& message,
                        absl::Time now) {
  Peer& peer = peers_[index];
  if (peer.said_hello) {
    Break(index, "it said hello twice");
    return;
  }
  peer.said_hello = true;
  peer.backoff = options_.min_reconnect;
  peer.answers = message.hello().answers_heartbeats();
  peer.has_vocabulary = false;
  registry_.Connected(index, message.hello(), now);
  if (peer.detector.Connected(message.hello().incarnation(), now)) {
    metrics_->FalseLoss(registry_.workers()[index].role);
    LOG(WARNING) << "worker " << registry_.Describe(index)
                 << " was not lost, only slow; it has "
                 << peer.detector.patience(now) << " to answer now";
  }
}

void Cluster::TakePrefixes(int index, v1::WorkerMessage message) {
  // Of a worker that has not said hello, nothing is of use.
  if (prefixes_.Take(index, registry_.workers()[index].id,
                     std::move(*message.mutable_prefixes()))) {
    return;
  }
  peers_[index].link->Consumed();
}

Cluster::News Cluster::TakeEnd(int index, const std::string& reason,
                               absl::Time now) {
  // Whole characters: the wire takes nothing else.
  const std::string why = CutUtf8(reason, kMaxReasonBytes);
  Peer& peer = peers_[index];
  peer.link->Ended();
  peer.next_connect_at = now + peer.backoff;
  if (peer.leaving) {
    LOG(INFO) << "worker " << registry_.Describe(index) << " has left";
  } else if (peer.said_hello) {
    LOG(WARNING) << "lost worker " << registry_.Describe(index) << ": " << why;
  } else {
    // Said once, not with each attempt.
    LOG_IF(WARNING,
           !peer.breaking && why != registry_.workers()[index].unreachable)
        << "cannot connect to worker " << registry_.Describe(index) << ": "
        << why;
    peer.backoff = std::min(2 * peer.backoff, options_.max_reconnect);
  }
  // Of a stream that we broke, gRPC says nothing but that.
  if (!peer.breaking) registry_.Unreachable(index, why);
  if (peer.said_hello) peer.detector.Disconnected(peer.silent);
  peer.said_hello = false;
  peer.breaking = false;
  peer.silent = false;
  News news;
  news.worker_name = registry_.NameOf(registry_.workers()[index].id);
  news.worker = registry_.Lost(index);
  prefixes_.Forget(news.worker);
  news.lost = true;
  if (peer.leaving) Remove(index, now);
  return news;
}

void Cluster::TakeStall(absl::Time now) {
  const absl::Duration late = now - wanted_at_;
  if (late < kStall) return;
  for (Peer& peer : peers_) peer.detector.Stalled(late, now);
}

absl::Time Cluster::Advance(absl::Time now) {
  TakeStall(now);
  DropUnlisted(now);
  absl::Time next = absl::InfiniteFuture();
  for (size_t i = 0; i < peers_.size(); ++i) {
    next = std::min(next, AdvancePeer(static_cast<int>(i), now));
  }
  for (int link : prefixes_.ApplySome()) peers_[link].link->Consumed();
  if (prefixes_.pending()) next = now;
  for (WorkerRegistry::PairCommand& command : registry_.DuePairs(now)) {
    v1::RouterMessage message;
    *message.mutable_pair() = std::move(command.pair);
    Send(registry_.workers()[command.prefill].id, std::move(message));
  }
  for (RoleControl::Command& command : roles_.Due(now)) {
    metrics_->RoleAsked(command.set_role.role() == v1::WORKER_ROLE_PREFILL
                            ? WorkerRole::kPrefill
                            : WorkerRole::kDecode);
    v1::RouterMessage message;
    *message.mutable_set_role() = std::move(command.set_role);
    Send(command.worker, std::move(message));
  }
  if (registry_.NumBreakersOpen(now) != breakers_open_ ||
      registry_.num_stuck_changes() != stuck_changes_ ||
      registry_.num_role_changes() != role_changes_) {
    UpdateGauges(now);
  }
  wanted_at_ = std::min({next, registry_.NextDue(now), roles_.NextDue()});
  return wanted_at_;
}

absl::Time Cluster::AdvancePeer(int index, absl::Time now) {
  Peer& peer = peers_[index];
  if (peer.link == nullptr) return absl::InfiniteFuture();
  if (!peer.link->connected()) {
    if (now < peer.next_connect_at) return peer.next_connect_at;
    peer.link->Connect();
    peer.connecting_since = now;
    peer.last_heard_at = now;
    peer.next_heartbeat_at = now + options_.lease / 5;
  }
  if (peer.breaking) return absl::InfiniteFuture();
  const absl::Time due = peer.said_hello
                             ? LostAt(peer, now)
                             : peer.connecting_since + options_.hello_timeout;
  if (now < due) return std::min(due, SendHeartbeat(index, now));
  peer.silent =
      peer.said_hello && peer.answers && now >= peer.detector.LostAt(now);
  Break(index, peer.silent       ? "it answers no heartbeats"
               : peer.said_hello ? "it is silent"
                                 : "it does not answer");
  return absl::InfiniteFuture();
}

absl::Time Cluster::LostAt(const Peer& peer, absl::Time now) const {
  const absl::Time loop_lost = peer.last_heard_at + options_.silence_timeout;
  return peer.answers ? std::min(loop_lost, peer.detector.LostAt(now))
                      : loop_lost;
}

absl::Time Cluster::SendHeartbeat(int index, absl::Time now) {
  Peer& peer = peers_[index];
  if (!peer.said_hello) return absl::InfiniteFuture();
  // Asked again for as long as it is silent.
  const auto ask_at = [&] {
    if (!peer.answers) return absl::InfiniteFuture();
    return std::max(peer.detector.AskAt(),
                    peer.asked_at + options_.detector.interval);
  };
  const bool ask = now >= ask_at();
  if (ask) peer.asked_at = now;
  if (ask || now >= peer.next_heartbeat_at) {
    peer.next_heartbeat_at = now + options_.lease / 5;
    v1::RouterMessage message;
    message.mutable_heartbeat()->set_answer(ask);
    if (!peer.link->Send(std::move(message))) {
      Break(index, "it takes no messages");
    }
  }
  return std::min(peer.next_heartbeat_at, ask_at());
}

void Cluster::Break(int index, const std::string& why) {
  Peer& peer = peers_[index];
  if (peer.breaking) return;
  LOG(WARNING) << "giving up the stream to worker " << registry_.Describe(index)
               << ": " << why;
  peer.breaking = true;
  peer.link->Break();
}

bool Cluster::SendVocabulary(int index) {
  Peer& peer = peers_[index];
  if (std::exchange(peer.has_vocabulary, true)) return true;
  v1::RouterMessage message;
  *message.mutable_vocabulary() = vocabulary_;
  return peer.link->Send(std::move(message));
}

void Cluster::Send(WorkerId worker, v1::RouterMessage message) {
  const int index = registry_.IndexOf(worker);
  if (index < 0 || peers_[index].breaking) return;
  const bool guided = message.reserve().sequence().has_grammar() ||
                      message.prefill().sequence().has_grammar();
  // It came while the request was under way, and would give an answer that may
  // be anything.
  if (guided && !registry_.workers()[index].hello.takes_grammars()) {
    Break(index, "it takes no grammars, and got one");
    return;
  }
  if ((guided && !SendVocabulary(index)) ||
      !peers_[index].link->Send(std::move(message))) {
    Break(index, "it takes no messages");
  }
}

void Cluster::Draining(WorkerId worker, absl::Time now) {
  registry_.Draining(worker);
  UpdateGauges(now);
}

void Cluster::UpdateGauges(absl::Time now) {
  metrics_->SetPairs(registry_.NumPairs());
  metrics_->SetBackends(static_cast<int>(registry_.backends().size()));
  CountDiscovered();
  for (size_t i = 0; i < peers_.size(); ++i) {
    const WorkerRegistry::Worker& worker = registry_.workers()[i];
    if (worker.removed) continue;
    const bool connected = worker.id != kNoWorker;
    const bool good = connected && worker.misfit.empty() && !worker.draining &&
                      !worker.withdrawn && !worker.stuck &&
                      !registry_.BreakerOpen(static_cast<int>(i), now);
    metrics_->SetWorker(worker.role, worker.address,
                        {.connected = connected,
                         .usable = good && !worker.standby,
                         .standby = good && worker.standby});
  }
  breakers_open_ = registry_.NumBreakersOpen(now);
  stuck_changes_ = registry_.num_stuck_changes();
  role_changes_ = registry_.num_role_changes();
}

}  // namespace baton::router
