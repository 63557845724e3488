// The inside of a progress thread that serves stream or packet sockets: it
// sleeps on epoll while there is nothing to do, but not at once, as what comes
// in a row should not pay for a thread that must be woken each time.
//
// Life of a peer:
//   1. connecting: it has a socket; the two ends say hello in the protocol's
//      words.
//   2. up: messages flow.
//   3. down: an error, a deadline, ClosePeer or Stop. The handler is told, and
//      everything outstanding completes with an error, at once: all bytes are
//      moved by this thread, so that none is under way.
//   4. removed.
//
// The protocol derives from it and says what comes over the sockets.
//
// Threads: the progress thread, but for the constructor, what is called before
// Run, and OnThread.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/scoped_fd.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/mailbox.h"
#include "kv_transfer/transports/socket_address.h"

namespace baton::kv_transfer {

class SocketLoop {
 public:
  virtual ~SocketLoop();
  SocketLoop(const SocketLoop&) = delete;
  SocketLoop& operator=(const SocketLoop&) = delete;

  // Runs until the mailbox says stop and everything has completed.
  void Run();

  // Whether the caller is called by the loop.
  bool OnThread() const { return std::this_thread::get_id() == thread_; }
  // Sends payloads at once, so that the peer reads while the caller prepares
  // what comes next. REQUIRES: OnThread(), and the mailbox counts the send.
  void Send(SendOp op);

 protected:
  enum class PeerState { kConnecting, kUp, kDown };
  struct Peer {
    virtual ~Peer() = default;

    PeerId id{};
    std::string address;
    bool incoming = false;
    PeerState state = PeerState::kConnecting;
    ScopedFd socket;
    absl::Time connect_deadline;
    // Not OK: it is to be taken down for this.
    absl::Status failure;
    bool was_up = false;
    // Its socket takes no more for now: OnWritable follows.
    bool full = false;
    // Whether it is in dirty_.
    bool dirty = false;
    // Cookies of sends that are done, of which the handler has not heard.
    std::deque<uint64_t> written;
  };

  // `mailbox` must outlive the loop.
  SocketLoop(absl::Duration connect_timeout, absl::Duration tick_interval,
             Mailbox* mailbox)
      : connect_timeout_(connect_timeout),
        tick_interval_(tick_interval),
        mailbox_(mailbox) {}

  // ResourceExhausted: no descriptors.
  absl::Status OpenEvents();
  // Accepts peers from `listener`, a non-blocking socket, once there is a
  // handler. After OpenEvents.
  void SetListener(ScopedFd listener);

  // What the protocol does.
  virtual std::unique_ptr<Peer> NewPeer() const = 0;
  // Who knocked, for logs, or why it is to be hung up on.
  virtual absl::StatusOr<std::string> Welcome(int socket,
                                              const sockaddr_storage& from) = 0;
  // Opens the peer's socket, and watches it, or fails it.
  virtual void BeginConnect(Peer& peer, const SocketAddress& to) = 0;
  // Of a peer that is up, or fails. What this, Watch and Fail do must not call
  // the handler, which may be the caller: a send that is done at once is
  // Written().
  virtual void Queue(Peer& peer, SendOp op) = 0;
  virtual void OnWritable(Peer& peer) = 0;
  virtual void OnReadable(Peer& peer) = 0;
  // Whether there is something to do without any news; the loop does not sleep.
  virtual bool HasWork() const = 0;
  // After the sockets were served, each time. A bounded part of what there is.
  virtual void Work() = 0;
  // There is nothing to do.
  virtual void OnIdle() {}
  // Completes everything outstanding with the peer's failure; it is down.
  virtual void CompleteAll(Peer& peer) = 0;

  // Has epoll report on the peer's socket.
  void Watch(Peer& peer);
  // Its socket, for somebody else. The peer must be failed.
  ScopedFd Release(Peer& peer);
  // Its protocol says that the connection stands.
  void SetUp(Peer& peer);
  void Fail(Peer& peer, absl::Status why);
  void FinishSend(Peer& peer, uint64_t cookie, const absl::Status& status);
  // As FinishSend with OK, but the handler hears of it later, from the loop.
  void Written(Peer& peer, uint64_t cookie);
  // Null when there is none.
  Peer* FindPeer(PeerId id);
  // Has ServeDirtyPeers look at it.
  void MarkDirty(Peer& peer);

  TransportHandler* handler_ = nullptr;

 private:
  void RunMail();
  void Tick();
  void ServeSockets();
  void Accept();
  void BeginStop();
  enum class Came { kToUs, kByUs };
  Peer& AddPeer(PeerId id, std::string address, Came came);
  void WatchListener(bool on);
  bool HangUpOnOldestVisitor();
  void TellOfWritten(Peer& peer);
  void ServeDirtyPeers();
  void TakeDown(Peer& peer);

  const absl::Duration connect_timeout_;
  const absl::Duration tick_interval_;
  Mailbox* const mailbox_;

  ScopedFd epoll_;
  ScopedFd wake_event_;
  ScopedFd listener_;
  std::atomic<std::thread::id> thread_;

  absl::flat_hash_map<PeerId, std::unique_ptr<Peer>> peers_;
  std::vector<PeerId> dirty_;
  // Whose `written` is not empty.
  std::vector<PeerId> written_;
  absl::Time next_tick_;
  // Until when it looks again instead of sleeping.
  absl::Time awake_until_;
  bool listener_watched_ = false;
  bool stopping_ = false;
};

}  // namespace baton::kv_transfer
