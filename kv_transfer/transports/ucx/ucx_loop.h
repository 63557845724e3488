// The progress thread's inside: every UCX object and every peer. All of it is
// created, used and destroyed on one thread, which sleeps on UCX's event
// descriptor when there is nothing to do.
//
// Life of a peer:
//   1. connecting: the side that connects knocks at the other's door (door.h),
//      learns where its UCX listener is, and makes an endpoint there. It sends
//      a preamble, the other side answers with its own; that proves that both
//      are what they should be and that bytes flow.
//   2. up: messages flow.
//   3. down: an error, a deadline, ClosePeer or Stop. The handler is told, what
//      is queued completes with an error, the endpoint is closed by force, and
//      progress goes on until every request on it has completed.
//   4. removed.
// UCX callbacks only note what happened; what changes an endpoint is done from
// the loop (ServePeer).
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kv_transfer/region_table.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/mailbox.h"
#include "kv_transfer/transports/socket_address.h"
#include "kv_transfer/transports/ucx/door.h"
#include "kv_transfer/transports/ucx/listener_gate.h"
#include "kv_transfer/transports/ucx/ucx_handles.h"
#include "kv_transfer/transports/ucx/ucx_transport.h"
#include "kv_transfer/transports/ucx/ucx_turn.h"

namespace baton::kv_transfer {

class UcxLoop final {
 public:
  // Both must outlive the loop.
  UcxLoop(const UcxOptions& options, Mailbox* mailbox,
          const RegionTable* regions);
  ~UcxLoop();
  UcxLoop(const UcxLoop&) = delete;
  UcxLoop& operator=(const UcxLoop&) = delete;

  // Creates the UCX objects and fills in the properties. On failure the loop is
  // of no use.
  absl::Status Open(TransportProperties* properties);

  // Runs until the mailbox says stop and everything has completed.
  void Run();

 private:
  struct Peer;
  // A send on its way; owned by UCX between start and completion.
  struct Outgoing {
    Peer* peer = nullptr;
    std::string header;
    std::vector<ucp_dt_iov_t> payload;
    uint64_t cookie = 0;
    // A preamble: nobody but us hears of it.
    bool internal = false;
  };
  // A run of bytes, or a list of them, as UCX takes either.
  struct Buffer {
    ucp_datatype_t datatype = 0;
    void* address = nullptr;
    size_t count = 0;
  };
  struct MappedRegion {
    absl::Span<const std::byte> memory;
    UcxMapped handle;
    bool Contains(const ucp_dt_iov_t& part) const {
      const auto* const from = static_cast<const std::byte*>(part.buffer);
      return from >= memory.data() &&
             from + part.length <= memory.data() + memory.size();
    }
  };
  // A receive that UCX may still write to; owned by UCX until completion.
  struct Incoming {
    Peer* peer = nullptr;
    std::vector<ucp_dt_iov_t> landing;
    uint64_t cookie = 0;
    uint64_t bytes = 0;
  };
  enum class PeerState { kConnecting, kUp, kDown };
  struct Peer {
    UcxLoop* loop = nullptr;
    PeerId id{};
    std::string address;
    bool incoming = false;
    PeerState state = PeerState::kConnecting;
    ucp_ep_h endpoint = nullptr;
    absl::Time connect_deadline;
    std::optional<Knock> knock;  // until it is answered
    SocketAddress socket_address;
    bool owes_preamble = false;
    // Not OK: it is to be taken down for this.
    absl::Status failure;
    bool was_up = false;
    bool close_started = false;
    bool close_pending = false;
    // Whether it is in dirty_.
    bool dirty = false;
    std::deque<std::unique_ptr<Outgoing>> queue;  // payloads beyond the window
    uint32_t payloads_in_flight = 0;
    uint32_t sends_in_flight = 0;  // payloads and messages
    uint32_t receives_in_flight = 0;
  };

  // ucx_setup.cc: what Open makes, and the listener.
  absl::Status OpenWorker();
  absl::Status OpenDoor(TransportProperties* properties);
  absl::Status OpenListener();
  void Map(MapOp op);

  // ucx_loop.cc: the loop and the lives of peers.
  bool RunMail();
  void Tick();
  void Sleep();
  void BeginStop();
  bool Drained();
  void ServeDoor();
  // The port of the listener, for a peer that may connect now; 0: none may.
  uint16_t LetIn();
  void CloseGateWhenUnused();
  void ServeKnocks();
  // Whether there was somebody.
  bool Accept();
  void Connect(const ConnectOp& op);
  void ConnectEndpoint(Peer& peer, uint16_t port);
  absl::Status CreateEndpoint(Peer& peer, ucp_ep_params_t params);
  Peer& AddPeer(PeerId id, std::string address, bool incoming);
  Peer* FindPeer(PeerId id);
  void MarkDirty(Peer& peer);
  void Fail(Peer& peer, absl::Status why);
  bool ServeDirtyPeers();
  void ServePeer(Peer& peer);
  void TakeDown(Peer& peer);
  void CloseEndpoint(Peer& peer);
  static void OnConnectionRequest(ucp_conn_request_h request, void* loop);
  static void OnEndpointError(void* peer, ucp_ep_h endpoint,
                              ucs_status_t status);
  static void OnEndpointClosed(void* request, ucs_status_t status, void* peer);

  // ucx_messages.cc: sending and receiving.
  absl::Status SetReceivers();
  void SendPreamble(Peer& peer);
  // Sets what UCX is to know of the memory of a payload.
  Buffer DescribeBuffer(std::vector<ucp_dt_iov_t>& parts,
                        ucp_request_param_t* param) const;
  void Send(SendOp op);
  void StartSend(std::unique_ptr<Outgoing> outgoing);
  void StartQueued(Peer& peer);
  void FinishSend(std::unique_ptr<Outgoing> outgoing, ucs_status_t status);
  Peer* FindSender(const ucp_am_recv_param_t* param);
  void MarkUp(Peer& peer);
  bool AcceptHeader(Peer* peer, size_t header_bytes);
  ucs_status_t Land(Peer& peer, ByteSpan header, void* data, size_t bytes,
                    bool rendezvous);
  ucs_status_t StartReceive(Peer& peer, std::unique_ptr<Incoming> incoming,
                            void* descriptor);
  void FinishReceive(std::unique_ptr<Incoming> incoming, ucs_status_t status,
                     size_t bytes);
  static ucs_status_t OnPreamble(void* loop, const void* header,
                                 size_t header_bytes, void* data, size_t bytes,
                                 const ucp_am_recv_param_t* param);
  static ucs_status_t OnMessage(void* loop, const void* header,
                                size_t header_bytes, void* data, size_t bytes,
                                const ucp_am_recv_param_t* param);
  static ucs_status_t OnPayload(void* loop, const void* header,
                                size_t header_bytes, void* data, size_t bytes,
                                const ucp_am_recv_param_t* param);
  static void OnSendDone(void* request, ucs_status_t status, void* outgoing);
  static void OnReceiveDone(void* request, ucs_status_t status, size_t bytes,
                            void* incoming);

  const UcxOptions options_;
  Mailbox* const mailbox_;
  const RegionTable* const regions_;

  // In the order of creation; destroyed in reverse.
  UcxContext context_;
  std::vector<MappedRegion> mapped_;  // of a device
  UcxWorker worker_;
  // From the first invitation on, but open only while invited peers are
  // connecting.
  UcxListener listener_;
  ListenerGate gate_;
  int event_fd_ = -1;
  std::optional<Door> door_;
  SocketAddress listen_address_;
  uint16_t listener_port_ = 0;
  // Until when each invited peer may connect, oldest first.
  std::deque<absl::Time> invitations_;
  // Whether a socket of ours, not UCX's, may have something to read.
  bool sockets_ready_ = true;

  std::optional<UcxTurn> turn_;  // while it runs
  TransportHandler* handler_ = nullptr;
  std::vector<ucp_conn_request_h> connection_requests_;
  absl::flat_hash_map<PeerId, std::unique_ptr<Peer>> peers_;
  absl::flat_hash_map<ucp_ep_h, Peer*> by_endpoint_;
  std::vector<PeerId> dirty_;
  absl::Time next_tick_;
  bool stopping_ = false;
  absl::Time stop_deadline_;
};

}  // namespace baton::kv_transfer
