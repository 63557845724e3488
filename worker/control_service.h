// The worker's end of the control streams: any number of routers, each with a
// session of its own.
//
// What a router sends renews its lease and, but for heartbeats, goes to the
// worker's inbox, in order. Assignments
// (Reserve, Prefill) that find the inbox full are refused here and now; all
// else belongs to an admitted assignment and always finds a place.
//
// Threads: gRPC's threads run the reactors. Send, SendToAll, Backlogged and
// Shutdown may be called from any thread and never block.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/v1/worker.grpc.pb.h"
#include "common/bounded_queue.h"
#include "scheduling/vocabulary.h"
#include "worker/control_outbox.h"
#include "worker/session_leases.h"

namespace baton::worker {

struct RouterEvent {
  enum class Kind {
    kMessage,
    // The stream is gone: all that this router had asked for is to be dropped.
    kGone,
  };
  Kind kind = Kind::kMessage;
  SessionId session = 0;
  v1::RouterMessage message;
  // Of a message with one, in its place; null where that is no good.
  std::shared_ptr<const scheduling::Vocabulary> vocabulary;
  // On Clock::Monotonic(). Loops see messages between two steps, and take one
  // without a time as received then.
  absl::Time received_at = absl::InfiniteFuture();
};

using Inbox = BoundedQueue<RouterEvent>;

class ControlService final : public v1::WorkerControl::CallbackService,
                             public ControlOutbox {
 public:
  // `hello`, with what the service itself can do, is the first message to each
  // router. `inbox` and `leases` outlive
  // the service and its server.
  ControlService(v1::WorkerHello hello, Inbox* inbox, SessionLeases* leases);
  ~ControlService() override;

  grpc::ServerBidiReactor<v1::RouterMessage, v1::WorkerMessage>* Connect(
      grpc::CallbackServerContext* context) override;

  // A router that reads too slowly to take a message loses its stream: tokens
  // are never dropped from the middle of one.
  void Send(SessionId session, v1::WorkerMessage message) override;
  void SendToAll(const v1::WorkerMessage& message) override;
  bool Backlogged(SessionId session) override;

  // Ends every stream after what is queued on it has been written, and takes no
  // new ones.
  void Shutdown();

 private:
  class Session;

  std::shared_ptr<Session> Find(SessionId session) ABSL_LOCKS_EXCLUDED(mu_);
  void Forget(SessionId session) ABSL_LOCKS_EXCLUDED(mu_);

  const v1::WorkerHello hello_;
  Inbox* const inbox_;
  SessionLeases* const leases_;

  absl::Mutex mu_;
  SessionId last_session_ ABSL_GUARDED_BY(mu_) = 0;
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<SessionId, std::shared_ptr<Session>> sessions_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::worker
