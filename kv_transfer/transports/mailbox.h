// How other threads reach a transport's progress thread: a queue of what it is
// to do, and per peer a gate that bounds how much that can be. The first mail
// in an empty queue wakes the thread.
//
// Bounds: sends per peer by the gate, connections by max_peers, one close per
// peer, a few visitors; wake-ups do not queue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/scoped_fd.h"
#include "kv_transfer/region_table.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/socket_address.h"

namespace baton::kv_transfer {

// What may be sent of one transport: sizes that both ends keep to.
inline constexpr uint64_t kMaxHeaderBytes = 4096;
// A page larger than the usual message still goes in one.
inline constexpr uint64_t kMaxPayloadBytes = uint64_t{64} << 20;
inline constexpr uint32_t kMaxPayloadExtents = 64;

// Those, and the bounds that operators set.
void SetLimits(uint32_t max_sends_in_flight, uint32_t max_sends_outstanding,
               TransportProperties* properties);

struct SendOp {
  PeerId peer{};
  std::string header;
  std::vector<Extent> payload;
  uint64_t cookie = 0;
};
struct ConnectOp {
  PeerId peer{};
  std::string address;
  SocketAddress socket_address;
};
struct CloseOp {
  PeerId peer{};
};
// Has the progress thread make memory known to what is below, and call `done`.
struct MapOp {
  absl::Span<std::byte> memory;
  std::function<void(absl::Status)> done;
};
struct StartOp {
  TransportHandler* handler = nullptr;
};
// Somebody who came to another's socket, and what was read of him there.
struct VisitorOp {
  ScopedFd socket;
  std::string said;
};
// The operation that Transport::Send asks for, or why there is none, as said
// there. Any thread.
absl::StatusOr<SendOp> MakeSendOp(const RegionTable& regions, PeerId peer,
                                  ByteSpan header,
                                  absl::Span<const Extent> payload,
                                  uint64_t cookie,
                                  uint32_t max_extents = kMaxPayloadExtents);

using MailOp =
    std::variant<SendOp, ConnectOp, CloseOp, MapOp, StartOp, VisitorOp>;

class Mailbox final {
 public:
  Mailbox(uint32_t max_peers, uint32_t max_sends_outstanding)
      : max_peers_(max_peers), max_sends_outstanding_(max_sends_outstanding) {}

  // Any thread. As in Transport.
  void PostStart(TransportHandler* handler) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<PeerId> PostConnect(const std::string& address,
                                     const SocketAddress& socket_address)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status PostSend(SendOp op) ABSL_LOCKS_EXCLUDED(mu_);
  // As PostSend, but nothing is posted: the caller has the means to send.
  absl::Status BeginSend(PeerId peer) ABSL_LOCKS_EXCLUDED(mu_);
  void PostClose(PeerId peer) ABSL_LOCKS_EXCLUDED(mu_);
  // Unavailable after the stop; else `done` is called.
  absl::Status PostMap(MapOp op) ABSL_LOCKS_EXCLUDED(mu_);
  void PostWake() ABSL_LOCKS_EXCLUDED(mu_);
  // Hangs up on the visitor when too many wait.
  void PostVisitor(VisitorOp op) ABSL_LOCKS_EXCLUDED(mu_);
  // Refuses all later posts.
  void PostStop() ABSL_LOCKS_EXCLUDED(mu_);

  // The progress thread. Between Attach and Detach posts call `signal`, on any
  // thread and with the lock held; it must wake the progress thread, now or
  // when it is about to sleep.
  void Attach(std::function<void()> signal) ABSL_LOCKS_EXCLUDED(mu_);
  void Detach() ABSL_LOCKS_EXCLUDED(mu_);

  struct Mail {
    std::vector<MailOp> ops;
    bool wake = false;
    bool stop = false;
    int visitors = 0;  // of the ops
  };
  Mail Take() ABSL_LOCKS_EXCLUDED(mu_);
  bool HasMail() const ABSL_LOCKS_EXCLUDED(mu_);

  // Whether there is place for one more peer.
  bool HasPlace() const ABSL_LOCKS_EXCLUDED(mu_);
  // A gate for a peer that connects to us; none when max_peers are there.
  std::optional<PeerId> AddIncoming() ABSL_LOCKS_EXCLUDED(mu_);
  void SetUp(PeerId peer) ABSL_LOCKS_EXCLUDED(mu_);
  void SetDown(PeerId peer) ABSL_LOCKS_EXCLUDED(mu_);
  // One of its sends completed.
  void EndSend(PeerId peer) ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets a peer that is down, unless sends to it are still in the mail.
  bool TryRemove(PeerId peer) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class GateState { kConnecting, kUp, kDown };
  struct Gate {
    GateState state = GateState::kConnecting;
    bool close_posted = false;
    uint32_t sends_outstanding = 0;
  };

  // Counts one more send, or says why there may be none.
  absl::Status CountSend(PeerId peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Before mail is added.
  void SignalIfEmpty() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint32_t max_peers_;
  const uint32_t max_sends_outstanding_;

  mutable absl::Mutex mu_;
  std::function<void()> signal_ ABSL_GUARDED_BY(mu_);
  Mail mail_ ABSL_GUARDED_BY(mu_);
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<PeerId, Gate> gates_ ABSL_GUARDED_BY(mu_);
  uint64_t next_peer_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace baton::kv_transfer
