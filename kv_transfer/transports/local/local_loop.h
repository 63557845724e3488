// The progress thread's inside: every peer of a local transport. The side that
// connected offers its regions, the other side, if both belong to one user,
// maps them and offers its own; then the peer is up. When it is down, its
// memory is unmapped.
//
// Payloads of a peer are copied in the order of arrival, a bounded number of
// bytes at a time, so that messages and ticks come in between; the handler is
// asked where one goes when its turn has come, so that an abort that arrived in
// the meantime counts. A peer is told of payloads that are done when no others
// of it wait, or of a few at once: it has more of them on the wire.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/scoped_fd.h"
#include "kv_transfer/region_table.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/local/local_transport.h"
#include "kv_transfer/transports/local/payload_copy.h"
#include "kv_transfer/transports/local/peer_memory.h"
#include "kv_transfer/transports/mailbox.h"
#include "kv_transfer/transports/socket_loop.h"

namespace baton::kv_transfer {

class LocalLoop final : public SocketLoop {
 public:
  // Most payloads of one peer that wait to be copied. A peer that sends more is
  // closed: ours never have more than max_sends_in_flight.
  static constexpr uint32_t kMaxPayloadsWaiting = 1024;

  // Both must outlive the loop.
  LocalLoop(const LocalOptions& options, Mailbox* mailbox,
            const RegionTable* regions);

  // Opens the sockets and fills in the properties. On failure the loop is of no
  // use. Any thread, before Run.
  absl::Status Open(TransportProperties* properties);

 private:
  // That are read by one call.
  static constexpr size_t kDatagramsPerBatch = 16;

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
  struct LocalPeer : Peer {
    // Whether it is in copying_, and in owed_.
    bool copying = false;
    bool owed = false;

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

  static LocalPeer& Local(Peer& peer) { return static_cast<LocalPeer&>(peer); }
  LocalPeer* FindLocal(PeerId id) {
    return static_cast<LocalPeer*>(FindPeer(id));
  }

  // local_loop.cc: the lives of peers.
  absl::Status OpenListener(TransportProperties* properties);
  std::unique_ptr<Peer> NewPeer() const override {
    return std::make_unique<LocalPeer>();
  }
  absl::StatusOr<std::string> Welcome(int socket,
                                      const sockaddr_storage& from) override;
  void BeginConnect(Peer& peer, const SocketAddress& to) override;
  void OnWritable(Peer& peer) override;
  void OnReadable(Peer& peer) override { Receive(Local(peer)); }
  bool HasWork() const override { return !copying_.empty() || !owed_.empty(); }
  void Work() override;
  void OnIdle() override { copied_in_a_row_ = 0; }
  void CompleteAll(Peer& peer) override;

  // local_messages.cc: sending, receiving and copying.
  void SendOffer(LocalPeer& peer);
  void Queue(Peer& peer, SendOp op) override;
  void StartQueued(LocalPeer& peer);
  void StartSend(LocalPeer& peer, const SendOp& op);
  // True when it went out; false when it must wait or the peer failed.
  bool Write(LocalPeer& peer, absl::string_view datagram);
  void FlushOutbox(LocalPeer& peer);
  void Receive(LocalPeer& peer);
  void ReceiveOffer(LocalPeer& peer);
  void TakeOffer(LocalPeer& peer, ByteSpan bytes,
                 const std::vector<ScopedFd>& files);
  void TakeDatagram(LocalPeer& peer, ByteSpan bytes);
  void TakeDone(LocalPeer& peer, uint32_t count);
  // Goes on with the payloads of one peer, if there are any.
  void CopySome();
  bool BeginCopy(LocalPeer& peer);
  // Goes on with a copy that was begun; how many bytes.
  uint64_t Advance(LocalPeer& peer, uint64_t max_bytes);
  // One more payload is done.
  void OweDone(LocalPeer& peer);
  void FlushDone(LocalPeer& peer);
  void FlushOwed();

  const LocalOptions options_;
  const RegionTable* const regions_;
  const Stores faster_stores_;

  std::deque<PeerId> copying_;
  // Who has not been told of all that is done.
  std::vector<PeerId> owed_;
  // Copied since there was last nothing to do.
  uint64_t copied_in_a_row_ = 0;
  std::vector<std::byte> buffer_;  // of a batch
};

}  // namespace baton::kv_transfer
