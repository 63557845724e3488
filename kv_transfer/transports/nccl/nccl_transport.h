// The transport over NCCL, for KV that lies in the memory of GPUs: payloads go
// over one communicator of two ranks per peer, all else over another transport,
// the control transport (UCX). NCCL is two-sided, so the two sides agree there
// on what to post and in which order (nccl_peer.h); refused bytes are never
// posted. Regions are pointers here: the CPU neither reads nor writes them.
//
// Its address is the control transport's with "nccl:" before it, so that peers
// know that they need NCCL, too.
//
// Only the receiver's own posts write to its memory, and after an abort of the
// communicator nothing does: a landing completes with an error only then.
//
// Threads: none of its own. Everything happens on the control transport's
// progress threads, which communicators wake; what blocks inside NCCL is done
// on threads of the communicators.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/nccl/communicator.h"

namespace baton::kv_transfer {

struct NcclOptions {
  // A communicator that is not ready by then, from when the control transport
  // is connected, is given up: the peer goes down.
  absl::Duration create_timeout = absl::Seconds(20);
  // How long Stop() waits for communicators to become quiet. Their memory may
  // be written until then, so that going on could corrupt it: the process ends.
  absl::Duration stop_timeout = absl::Seconds(30);
  // How often OnTick comes at least, while there is much to do; else as often
  // as the control transport's.
  absl::Duration tick_interval = absl::Milliseconds(20);
  uint32_t max_sends_in_flight = 16;  // at most NcclPeer::kMaxLandings
  uint32_t max_sends_outstanding = 1024;
  // Must outlive the transport.
  const Clock* clock = Clock::Monotonic();
};

// A transport that owns both of them; neither was used before. `control` must
// deliver each message once, or end the connection, as every transport does;
// it is listened to, and connected, as this one is. InvalidArgument: an option,
// or a control transport that takes too small headers.
absl::StatusOr<std::unique_ptr<Transport>> CreateNcclTransport(
    const NcclOptions& options, std::unique_ptr<Transport> control,
    std::unique_ptr<Communicators> communicators);

}  // namespace baton::kv_transfer
