// The transport over UCX active messages: rendezvous with scatter-gather lists,
// the receiver names its pages in the message callback. Features are active
// messages and wake-up only, so that no peer can write or read our memory
// without being asked (one-sided put was measured to overwrite reused memory
// silently and to abort the survivor of a crash).
//
// Threads: one progress thread per transport owns every UCX object and sleeps
// on UCX's event descriptor; other threads reach it through a bounded queue.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/scoped_fd.h"
#include "kv_transfer/transports/mailbox_transport.h"

namespace baton::kv_transfer {

// What the regions of a transport are.
enum class UcxMemory {
  kHost,
  // Of CUDA devices. It takes a UCX that was built with CUDA.
  kCuda,
};

struct UcxOptions {
  // Whether peers may connect to us (decode workers listen).
  bool listen = true;
  // Numeric address to listen on, and its port; 0 takes a free one.
  std::string listen_host = "127.0.0.1";
  uint16_t port = 0;
  // Off: `port` is somebody else's, who passes on those that come to see us
  // (UcxTransport::Admit); properties() has no address.
  bool own_port = true;
  // The host that peers are told to connect to; empty takes listen_host.
  // Needed when listening on all addresses (0.0.0.0, ::).
  std::string advertise_host;
  // UCX_TLS: the transports that UCX may choose from. An operator's UCX_TLS in
  // the environment wins. Only tcp survives the death of a peer (UCX 1.13).
  std::string tls = "tcp";
  // With kCuda the transports that reach it ("cuda", of versions before 1.21
  // "cuda_copy") are added to `tls` unless it names some. No
  // byte of a payload passes through the CPU's hands then, on our side: an
  // eager one, as peers of ours send none, takes its peer down.
  UcxMemory memory = UcxMemory::kHost;
  // Called at the start of the progress thread: makes the device whose memory
  // the regions are the thread's. Empty: nothing to do.
  std::function<void()> select_device;
  // A connection that is not up by then is given up.
  absl::Duration connect_timeout = absl::Seconds(5);
  // How often OnTick comes.
  absl::Duration tick_interval = absl::Milliseconds(20);
  // Most connections at once, in either direction.
  uint32_t max_peers = 256;
  uint32_t max_sends_in_flight = 16;
  uint32_t max_sends_outstanding = 1024;
};

class UcxTransport : public MailboxTransport {
 public:
  // Takes somebody who connected to another's socket and has said so much
  // there, all of which was read. Any thread.
  virtual void Admit(ScopedFd visitor, std::string said) = 0;

 protected:
  using MailboxTransport::MailboxTransport;
};

// Sets the UCX_* environment that Baton wants where the operator has not set
// it, and takes UCX's crash handlers out. Call at the top of main, before there
// are other threads; CreateUcxTransport calls it too. Idempotent.
void PrepareUcxEnvironment();

// Whether UCX has these transports here and reaches this memory by them; errors
// as those of CreateUcxTransport. For who wants to know before there is
// anything to lose.
absl::Status CheckUcx(const std::string& tls, UcxMemory memory);

// Starts a transport. Errors name the transport list or the address:
// FailedPrecondition (no such UCX transport on this machine, or it does not
// reach memory of this kind), AlreadyExists (the port is in use),
// InvalidArgument (a malformed option), Internal.
absl::StatusOr<std::unique_ptr<UcxTransport>> CreateUcxTransport(
    const UcxOptions& options);

}  // namespace baton::kv_transfer
