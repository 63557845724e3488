#include "worker/control_service.h"

#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/log.h"
#include "common/rpc/pending_writes.h"
#include "worker/inbox_rule.h"
#include "worker/output_guides.h"

namespace baton::worker {
namespace {

// A message is a step's tokens or smaller; a router this far behind is stuck.
constexpr size_t kMaxPendingMessages = 4096;
// One this far behind is busy, or far away.
constexpr size_t kBacklog = 64;
constexpr uint32_t kInboxFullRetryMs = 50;

using Writes = rpc::PendingWrites<v1::WorkerMessage>;

// What all workers of this version can do.
v1::WorkerHello WithAbilities(v1::WorkerHello hello) {
  hello.set_answers_heartbeats(true);
  hello.set_takes_grammars(true);
  return hello;
}

}  // namespace

// Lives as long as gRPC or a sender holds it: `self_` is gRPC's reference and
// goes in OnDone.
class ControlService::Session final
    : public grpc::ServerBidiReactor<v1::RouterMessage, v1::WorkerMessage> {
 public:
  static std::shared_ptr<Session> Make(ControlService* service, SessionId id) {
    std::shared_ptr<Session> session(new Session(service, id));
    session->self_ = session;
    return session;
  }

  // The hello is queued from the beginning: whoever sends before this call is
  // behind it.
  void Start() {
    service_->leases_->Open(id_, /*lease_ms=*/0);
    StartWriteUnlessFinished(writes_.InFlight());
    StartRead(&incoming_);
  }

  // Refuses at once, without a session.
  void Refuse() { FinishOnce(grpc::Status(grpc::UNAVAILABLE, "draining")); }

  void Send(v1::WorkerMessage message) {
    switch (writes_.Push(std::move(message))) {
      case Writes::PushResult::kStart:
        StartWriteUnlessFinished(writes_.InFlight());
        return;
      case Writes::PushResult::kFull:
        LOG(ERROR) << "control stream " << id_ << ": the router does not read, "
                   << kMaxPendingMessages << " messages wait; closing";
        FinishOnce(grpc::Status(grpc::RESOURCE_EXHAUSTED,
                                "the router reads too slowly"));
        return;
      case Writes::PushResult::kQueued:
      case Writes::PushResult::kClosed:
        return;
    }
  }

  bool Backlogged() const { return writes_.size() >= kBacklog; }

  // Ends the stream after what is queued.
  void EndGracefully() {
    if (writes_.Close()) FinishOnce(grpc::Status::OK);
  }

 private:
  Session(ControlService* service, SessionId id)
      : service_(service), id_(id), writes_(kMaxPendingMessages) {
    v1::WorkerMessage hello;
    *hello.mutable_hello() = service_->hello_;
    CHECK(writes_.Push(std::move(hello)) == Writes::PushResult::kStart);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      // The router has closed its side, or is gone.
      FinishOnce(grpc::Status::OK);
      return;
    }
    Deliver();
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      FinishOnce(grpc::Status(grpc::UNAVAILABLE, "the router is gone"));
      return;
    }
    if (const v1::WorkerMessage* next = writes_.Done()) {
      StartWriteUnlessFinished(next);
    } else if (writes_.closed()) {
      FinishOnce(grpc::Status::OK);
    }
  }

  void OnCancel() override {
    FinishOnce(grpc::Status(grpc::CANCELLED, "the router is gone"));
  }

  void OnDone() override {
    RouterEvent gone;
    gone.kind = RouterEvent::Kind::kGone;
    gone.session = id_;
    service_->inbox_->PushUnbounded(std::move(gone));
    service_->leases_->Close(id_);
    service_->Forget(id_);
    self_.reset();
  }

  // On this thread: the loop may be at a step that takes long.
  void Answer() {
    v1::WorkerMessage message;
    message.mutable_heartbeat();
    Send(std::move(message));
  }

  void Deliver() {
    if (incoming_.has_hello()) {
      service_->leases_->Open(id_, incoming_.hello().lease_ms());
    } else {
      service_->leases_->Renew(id_);
      if (incoming_.has_heartbeat()) {
        if (incoming_.heartbeat().answer()) Answer();
        return;
      }
    }
    RouterEvent event;
    event.session = id_;
    event.received_at = Clock::Monotonic()->Now();
    if (incoming_.has_vocabulary()) {
      // One is enough, and a stream of them would fill the inbox.
      if (std::exchange(had_vocabulary_, true)) return;
      event.vocabulary = ReadVocabulary();
      incoming_.mutable_vocabulary()->Clear();
    }
    event.message = std::move(incoming_);
    incoming_.Clear();
    const uint64_t attempt = event.message.has_reserve()
                                 ? event.message.reserve().attempt()
                                 : event.message.prefill().attempt();
    const InboxRule rule = RuleOf(event.message);
    if (rule == InboxRule::kTaken) {
      service_->inbox_->PushUnbounded(std::move(event));
      return;
    }
    if (service_->inbox_->TryPush(std::move(event)) ||
        rule == InboxRule::kDropped) {
      return;
    }
    v1::WorkerMessage message;
    v1::Refusal* refusal = message.mutable_refusal();
    refusal->set_attempt(attempt);
    refusal->set_reason(v1::REFUSAL_REASON_QUEUE_FULL);
    refusal->set_message("the worker's inbox is full");
    refusal->set_retry_after_ms(kInboxFullRetryMs);
    Send(std::move(message));
  }

  // On this thread, since it takes long.
  std::shared_ptr<const scheduling::Vocabulary> ReadVocabulary() {
    auto vocabulary = FromWire(
        incoming_.vocabulary(),
        static_cast<int32_t>(service_->hello_.fingerprint().vocab_size()));
    if (vocabulary.ok()) return *std::move(vocabulary);
    LOG(ERROR) << "control stream " << id_ << ": "
               << vocabulary.status().message();
    return nullptr;
  }

  // gRPC aborts the process on a write that starts after Finish, and the two
  // come from different threads: hence the lock.
  void StartWriteUnlessFinished(const v1::WorkerMessage* message)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (!finished_) StartWrite(message);
  }

  void FinishOnce(const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    writes_.Close();
    absl::MutexLock lock(&mu_);
    if (finished_) return;
    finished_ = true;
    Finish(status);
  }

  ControlService* const service_;
  const SessionId id_;
  Writes writes_;
  v1::RouterMessage incoming_;   // the read under way
  bool had_vocabulary_ = false;  // read on one thread at a time
  std::shared_ptr<Session> self_;
  absl::Mutex mu_;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

ControlService::ControlService(v1::WorkerHello hello, Inbox* inbox,
                               SessionLeases* leases)
    : hello_(WithAbilities(std::move(hello))), inbox_(inbox), leases_(leases) {}

ControlService::~ControlService() {
  absl::MutexLock lock(&mu_);
  CHECK(sessions_.empty()) << "the gRPC server must be shut down first";
}

grpc::ServerBidiReactor<v1::RouterMessage, v1::WorkerMessage>*
ControlService::Connect(grpc::CallbackServerContext* context) {
  std::shared_ptr<Session> session;
  bool refuse = false;
  {
    absl::MutexLock lock(&mu_);
    const SessionId id = ++last_session_;
    session = Session::Make(this, id);
    refuse = shut_down_;
    // From here on others send to it.
    if (!refuse) sessions_[id] = session;
  }
  if (refuse) {
    session->Refuse();
  } else {
    session->Start();
  }
  return session.get();
}

std::shared_ptr<ControlService::Session> ControlService::Find(
    SessionId session) {
  absl::MutexLock lock(&mu_);
  const auto it = sessions_.find(session);
  return it == sessions_.end() ? nullptr : it->second;
}

void ControlService::Forget(SessionId session) {
  absl::MutexLock lock(&mu_);
  sessions_.erase(session);
}

void ControlService::Send(SessionId session, v1::WorkerMessage message) {
  if (std::shared_ptr<Session> found = Find(session)) {
    found->Send(std::move(message));
  }
}

void ControlService::SendToAll(const v1::WorkerMessage& message) {
  std::vector<std::shared_ptr<Session>> all;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, session] : sessions_) all.push_back(session);
  }
  for (const std::shared_ptr<Session>& session : all) session->Send(message);
}

bool ControlService::Backlogged(SessionId session) {
  const std::shared_ptr<Session> found = Find(session);
  return found != nullptr && found->Backlogged();
}

void ControlService::Shutdown() {
  std::vector<std::shared_ptr<Session>> all;
  {
    absl::MutexLock lock(&mu_);
    shut_down_ = true;
    for (const auto& [id, session] : sessions_) all.push_back(session);
  }
  for (const std::shared_ptr<Session>& session : all) session->EndGracefully();
}

}  // namespace baton::worker
