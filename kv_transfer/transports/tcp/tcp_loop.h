// The progress thread's inside: every peer of a TCP transport. When its
// connection stands, and its TLS handshake is over, if it has one, both sides
// greet; then the peer is up.
//
// Messages go out before payloads that wait, but never into one that has begun.
// Of each peer a bounded number of bytes is written and read at a time, so that
// other peers, mail and ticks come in between.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/repeat_filter.h"
#include "common/tls/tls_context.h"
#include "kv_transfer/region_table.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/mailbox.h"
#include "kv_transfer/transports/socket_loop.h"
#include "kv_transfer/transports/tcp/tcp_stream.h"
#include "kv_transfer/transports/tcp/tcp_transport.h"

namespace baton::kv_transfer {

class TcpLoop final : public SocketLoop {
 public:
  // All must outlive the loop.
  TcpLoop(const TcpOptions& options, Mailbox* mailbox,
          const RegionTable* regions);

  // Opens the sockets and fills in the properties. On failure the loop is of no
  // use. Any thread, before Run.
  absl::Status Open(TransportProperties* properties);

  // Whether this peer is connected by TLS though it need not have been. Any
  // thread.
  bool IsEncryptedAsItWished(PeerId peer) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A frame that goes out.
  struct Writing {
    std::string frame;  // but for the payload
    // What is left of it: the frame's first bytes, then the payload's.
    std::vector<ByteSpan> rest;
    size_t next = 0;
    uint64_t cookie = 0;
  };
  // A payload that comes in.
  struct Reading {
    // Where the rest goes; nothing when it is thrown away.
    std::vector<absl::Span<std::byte>> rest;
    size_t next = 0;
    uint64_t bytes_left = 0;
    // None: refused.
    std::optional<uint64_t> cookie;
  };
  struct TcpPeer : Peer {
    explicit TcpPeer(size_t buffer_bytes) : buffer(buffer_bytes) {}

    // Null until it is known whether it is plain text, and until a connection
    // that we make stands.
    std::unique_ptr<TcpStream> stream;
    bool encrypted = false;
    bool shook_hands = false;

    // Sending.
    std::deque<SendOp> messages;
    std::deque<SendOp> payloads;
    std::optional<Writing> writing;
    // Whether it is in busy_.
    bool busy = false;

    // Receiving: what was read and not looked at is in [begin, end).
    std::vector<std::byte> buffer;
    size_t begin = 0;
    size_t end = 0;
    std::optional<Reading> reading;
  };
  static TcpPeer& Tcp(Peer& peer) { return static_cast<TcpPeer&>(peer); }

  // tcp_loop.cc: the lives of peers.
  absl::Status OpenListener(TransportProperties* properties);
  std::unique_ptr<Peer> NewPeer() const override;
  absl::StatusOr<std::string> Welcome(int socket,
                                      const sockaddr_storage& from) override;
  void BeginConnect(Peer& peer, const SocketAddress& to) override;
  void OnWritable(Peer& peer) override;
  void OnReadable(Peer& peer) override;
  bool HasWork() const override { return !busy_.empty(); }
  void Work() override;
  void CompleteAll(Peer& peer) override;
  // Fails a peer that could not be connected to.
  bool IsConnected(TcpPeer& peer);
  // By the first byte of who came to us; false while there is none.
  bool ChooseStream(TcpPeer& peer);
  void SetStream(TcpPeer& peer, bool encrypted);
  // Whether there are bytes of ours on the stream now, or later.
  bool ShakeHands(TcpPeer& peer);
  // All or an error: a few bytes into an empty socket buffer.
  void Say(TcpPeer& peer, absl::string_view words);
  void RefusePlainText(TcpPeer& peer);
  // A few lines, however often somebody comes.
  void LogRefusal(const TcpPeer& peer, const absl::Status& why);
  // Sends what the stream has kept.
  void SendRest(TcpPeer& peer);
  void TakeGreeting(TcpPeer& peer);
  void MarkBusy(TcpPeer& peer);

  // tcp_messages.cc: frames.
  void Queue(Peer& peer, SendOp op) override;
  // Writes until the socket is full, a turn is over, or nothing is left.
  void Flush(TcpPeer& peer);
  bool TakeNext(TcpPeer& peer);
  // What the stream took; 0 when the socket is full or the peer failed.
  uint64_t Write(TcpPeer& peer);
  void Receive(TcpPeer& peer);
  // Reads once from the socket, to where it is to go; false when there is no
  // more for now.
  bool Read(TcpPeer& peer, uint64_t max_bytes, uint64_t* read);
  // Goes through what is in the buffer.
  void TakeBuffered(TcpPeer& peer);
  bool TakeFrame(TcpPeer& peer);
  void BeginPayload(TcpPeer& peer, ByteSpan header, uint64_t payload_bytes);
  // So many more bytes of a payload are where they go.
  void Advance(TcpPeer& peer, uint64_t bytes);

  const TcpOptions options_;
  const RegionTable* const regions_;
  // Null without TLS.
  std::unique_ptr<tls::TlsContexts> contexts_;
  RepeatFilter refusals_;

  mutable absl::Mutex mu_;
  absl::flat_hash_set<PeerId> encrypted_as_wished_ ABSL_GUARDED_BY(mu_);

  // Who has more to write, or to read.
  std::deque<PeerId> busy_;
};

}  // namespace baton::kv_transfer
