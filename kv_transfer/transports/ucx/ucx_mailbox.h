// How other threads reach the progress thread: a queue of what it is to do, and
// per peer a gate that bounds how much that can be. Posting wakes the thread
// with ucp_worker_signal, the one UCX call that any thread may make.
//
// Bounds: sends per peer by the gate, connections by max_peers, one close per
// peer; wake-ups do not queue.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/ucx/socket_address.h"

namespace baton::kv_transfer {

struct UcxSendOp {
  PeerId peer{};
  std::string header;
  std::vector<ucp_dt_iov_t> payload;
  uint64_t cookie = 0;
};
struct UcxConnectOp {
  PeerId peer{};
  std::string address;
  SocketAddress socket_address;
};
struct UcxCloseOp {
  PeerId peer{};
};
struct UcxStartOp {
  TransportHandler* handler = nullptr;
};
using UcxOp = std::variant<UcxSendOp, UcxConnectOp, UcxCloseOp, UcxStartOp>;

class UcxMailbox final {
 public:
  UcxMailbox(uint32_t max_peers, uint32_t max_sends_outstanding)
      : max_peers_(max_peers), max_sends_outstanding_(max_sends_outstanding) {}

  // Any thread. As in Transport.
  void PostStart(TransportHandler* handler) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<PeerId> PostConnect(const std::string& address,
                                     const SocketAddress& socket_address)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status PostSend(UcxSendOp op) ABSL_LOCKS_EXCLUDED(mu_);
  void PostClose(PeerId peer) ABSL_LOCKS_EXCLUDED(mu_);
  void PostWake() ABSL_LOCKS_EXCLUDED(mu_);
  // Refuses all later posts.
  void PostStop() ABSL_LOCKS_EXCLUDED(mu_);

  // The progress thread. Between Attach and Detach posts signal `worker`.
  void Attach(ucp_worker_h worker) ABSL_LOCKS_EXCLUDED(mu_);
  void Detach() ABSL_LOCKS_EXCLUDED(mu_);

  struct Mail {
    std::vector<UcxOp> ops;
    bool wake = false;
    bool stop = false;
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

  void Signal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint32_t max_peers_;
  const uint32_t max_sends_outstanding_;

  mutable absl::Mutex mu_;
  ucp_worker_h worker_ ABSL_GUARDED_BY(mu_) = nullptr;
  Mail mail_ ABSL_GUARDED_BY(mu_);
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<PeerId, Gate> gates_ ABSL_GUARDED_BY(mu_);
  uint64_t next_peer_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace baton::kv_transfer
