// The loop of a dual worker: a prefill and a decode loop that take turns on one
// thread, one device and one set of KV blocks.
//
// The worker's role says which of them gets new requests
// (worker/role_switch.h). What runs on the other side when the role changes
// goes on until it ends: prompts are handed over, streams get their tokens.
// Until then steps of both sides alternate; one that computes prompts is then
// so short that streams keep their target for tokens
// (DecodeScheduler::SpareSeconds).
//
// Threads: Run and Turn on one thread; RequestDrain from any.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "decode_worker/decode_loop.h"
#include "prefill_worker/prefill_loop.h"
#include "worker/options.h"
#include "worker/role_switch.h"
#include "worker/worker_process.h"

namespace baton::dual_worker {

// The loop for a process. REQUIRES: `parts` are those of a prefill and of a
// decode side, in this order, of one engine, with blocks and roles.
absl::StatusOr<std::unique_ptr<worker::WorkerLoop>> MakeDualLoop(
    const worker::WorkerOptions& options,
    absl::Span<const worker::WorkerParts> parts);

// baton-worker.
worker::WorkerProgram DualProgram();

class DualLoop final : public worker::WorkerLoop {
 public:
  // `roles` outlives the loop. News of the prefill side wake the decode side's
  // inbox, where the loop waits.
  DualLoop(std::unique_ptr<prefill_worker::PrefillLoop> prefill,
           std::unique_ptr<decode_worker::DecodeLoop> decode,
           worker::RoleSwitch* roles);

  // Drained: both sides are.
  bool Turn(absl::Duration idle_wait) override;
  worker::LoopProgress progress() const override;
  void RequestDrain() override;

 private:
  const std::unique_ptr<prefill_worker::PrefillLoop> prefill_;
  const std::unique_ptr<decode_worker::DecodeLoop> decode_;
  worker::RoleSwitch* const roles_;
};

}  // namespace baton::dual_worker
