// The progress thread's inside: every socket and every peer of a local
// transport. It sleeps on epoll while there is nothing to do, but not at once:
// what comes in a row does not pay for a thread that must be woken each time.
//
// Life of a peer:
//   1. connecting: the sockets are connected, and both belong to one user. The
//      side that connected offers its regions, the other side maps them and
//      offers its own.
//   2. up: messages flow.
//   3. down: an error, a deadline, ClosePeer or Stop. The handler is told, and
//      everything outstanding completes with an error, at once: all copying is
//      done on this thread, so that none is under way. The peer's memory is
//      unmapped.
//   4. removed.
//
// Payloads of a peer are copied in the order of arrival, a bounded number of
// bytes at a time, so that messages and ticks come in between; the handler is
// asked where one goes when its turn has come, so that an abort that arrived in
// the meantime counts. A peer is told of payloads that are done when no others
// of it wait, or of a few at once: it has more of them on the wire.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/scoped_fd.h"
#include "kv_transfer/region_table.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/local/local_transport.h"
#include "kv_transfer/transports/local/payload_copy.h"
#include "kv_transfer/transports/local/peer_memory.h"
#include "kv_transfer/transports/mailbox.h"

namespace baton::kv_transfer {

class LocalLoop final {
 public:
  // Most payloads of one peer that wait to be copied. A peer that sends more is
  // closed: ours never have more than max_sends_in_flight.
  static constexpr uint32_t kMaxPayloadsWaiting = 1024;

  // Both must outlive the loop.
  LocalLoop(const LocalOptions& options, Mailbox* mailbox,
            const RegionTable* regions);
  ~LocalLoop();
  LocalLoop(const LocalLoop&) = delete;
  LocalLoop& operator=(const LocalLoop&) = delete;

  // Opens the sockets and fills in the properties. On failure the loop is of no
  // use. Any thread, before Run.
  absl::Status Open(TransportProperties* properties);

  // Runs until the mailbox says stop and everything has completed.
  void Run();

  // Whether the caller is called by the loop.
  bool OnThread() const { return std::this_thread::get_id() == thread_; }
  // Sends at once, so that the peer reads while the caller prepares what comes
  // next. REQUIRES: OnThread(), a payload, and the mailbox's BeginSend said OK.
  void SendPayload(SendOp op) { Send(std::move(op)); }

 private:
  // A datagram that waits for room in the socket.
  struct Outgoing {
    std::string datagram;
    uint64_t cookie = 0;
    bool has_payload = false;
  };
  // A payload that waits to be copied.
  struct Incoming {
    std::string header;
    std::vector<ByteSpan> source;
    uint64_t bytes = 0;
  };
  // One that is being copied.
  struct Copy {
    PayloadCopy payload;
    uint64_t cookie = 0;
  };
  enum class PeerState { kConnecting, kUp, kDown };
  struct Peer {
    PeerId id{};
    std::string address;
    bool incoming = false;
    PeerState state = PeerState::kConnecting;
    ScopedFd socket;
    absl::Time connect_deadline;
    // Not OK: it is to be taken down for this.
    absl::Status failure;
    bool was_up = false;
    // Whether it is in dirty_, in copying_, in owed_, and waits for room in its
    // socket.
    bool dirty = false;
    bool copying = false;
    bool owed = false;
    bool full = false;

    // Sending.
    std::deque<SendOp> queue;     // payloads beyond the window
    std::deque<Outgoing> outbox;  // beyond the socket's buffer
    // Cookies of the payloads that the peer may read, oldest first.
    std::deque<uint64_t> on_wire;

    // Receiving.
    PeerMemory memory;
    std::deque<Incoming> waiting;
    std::optional<Copy> copy;
    uint32_t done_owed = 0;
  };

  // local_loop.cc: the loop and the lives of peers.
  absl::Status OpenListener(TransportProperties* properties);
  void RunMail();
  void Tick();
  void ServeSockets();
  void Accept();
  void Connect(const ConnectOp& op);
  void BeginStop();
  Peer& AddPeer(PeerId id, std::string address, bool incoming);
  // Has epoll report on the peer's socket.
  void Watch(Peer& peer);
  void WatchListener(bool on);
  Peer* FindPeer(PeerId id);
  void MarkDirty(Peer& peer);
  void Fail(Peer& peer, absl::Status why);
  void ServeDirtyPeers();
  void TakeDown(Peer& peer);

  // local_messages.cc: sending, receiving and copying.
  void SendOffer(Peer& peer);
  void Send(SendOp op);
  void StartQueued(Peer& peer);
  void StartSend(Peer& peer, const SendOp& op);
  // True when it went out; false when it must wait or the peer failed.
  bool Write(Peer& peer, absl::string_view datagram);
  void FlushOutbox(Peer& peer);
  void FinishSend(Peer& peer, uint64_t cookie, const absl::Status& status);
  void Receive(Peer& peer);
  void TakeOffer(Peer& peer, ByteSpan bytes,
                 const std::vector<ScopedFd>& files);
  void TakeDatagram(Peer& peer, ByteSpan bytes);
  void TakeDone(Peer& peer, uint32_t count);
  // Goes on with the payloads of one peer, if there are any.
  void CopySome();
  bool BeginCopy(Peer& peer);
  // Goes on with a copy that was begun; how many bytes.
  uint64_t Advance(Peer& peer, uint64_t max_bytes);
  // One more payload is done.
  void OweDone(Peer& peer);
  void FlushDone(Peer& peer);
  void FlushOwed();

  const LocalOptions options_;
  Mailbox* const mailbox_;
  const RegionTable* const regions_;

  ScopedFd epoll_;
  ScopedFd wake_event_;
  ScopedFd listener_;
  std::atomic<std::thread::id> thread_;

  TransportHandler* handler_ = nullptr;
  absl::flat_hash_map<PeerId, std::unique_ptr<Peer>> peers_;
  std::vector<PeerId> dirty_;
  std::deque<PeerId> copying_;
  // Who has not been told of all that is done.
  std::vector<PeerId> owed_;
  // Copied since there was last nothing to do.
  uint64_t copied_in_a_row_ = 0;
  std::vector<std::byte> buffer_;
  absl::Time next_tick_;
  // Until when it looks again instead of sleeping.
  absl::Time awake_until_;
  bool listener_watched_ = false;
  bool stopping_ = false;
};

}  // namespace baton::kv_transfer
