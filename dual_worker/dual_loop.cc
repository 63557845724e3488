#include "dual_worker/dual_loop.h"

#include <utility>

#include "common/log.h"
#include "common/status_macros.h"

namespace baton::dual_worker {

absl::StatusOr<std::unique_ptr<worker::WorkerLoop>> MakeDualLoop(
    const worker::WorkerOptions& options,
    absl::Span<const worker::WorkerParts> parts) {
  CHECK_EQ(parts.size(), 2u);
  CHECK(parts[0].blocks != nullptr && parts[0].blocks == parts[1].blocks);
  BATON_ASSIGN_OR_RETURN(auto prefill,
                         prefill_worker::MakePrefillLoop(options, parts[0]));
  BATON_ASSIGN_OR_RETURN(auto decode,
                         decode_worker::MakeDecodeLoop(options, parts[1]));
  return std::make_unique<DualLoop>(std::move(prefill), std::move(decode),
                                    parts[0].roles);
}

worker::WorkerProgram DualProgram() {
  return {.name = "baton-worker",
          .roles = {v1::WORKER_ROLE_PREFILL, v1::WORKER_ROLE_DECODE},
          .make_loop = MakeDualLoop};
}

DualLoop::DualLoop(std::unique_ptr<prefill_worker::PrefillLoop> prefill,
                   std::unique_ptr<decode_worker::DecodeLoop> decode,
                   worker::RoleSwitch* roles)
    : prefill_(std::move(prefill)), decode_(std::move(decode)), roles_(roles) {
  CHECK(roles_ != nullptr);
  decode_->SetOtherWaits([this] { return prefill_->WantsStep(); });
}

bool DualLoop::Turn(absl::Duration idle_wait) {
  if (prefill_->Drained() && decode_->Drained()) return false;
  decode_->RunTurn(prefill_->idle() ? idle_wait : absl::ZeroDuration());
  if (!decode_->idle()) prefill_->OtherRan();
  if (decode_->has_ahead()) {
    prefill_->RunTurnWithoutStep();
  } else {
    prefill_->MakeWayFor(decode_->SpareSeconds(), decode_->KeptForStreams());
    prefill_->RunTurn(absl::ZeroDuration());
  }
  const bool holds_blocks = prefill_->HoldsBlocks();
  decode_->SetOther(holds_blocks, prefill_->blocks_wanted());
  if (prefill_->blocks_wanted() > 0 && !holds_blocks) decode_->GiveWay();
  if (!prefill_->idle()) decode_->OtherRan();
  roles_->ObserveStandby(roles_->role() == v1::WORKER_ROLE_PREFILL
                             ? decode_->empty()
                             : prefill_->empty());
  return true;
}

worker::LoopProgress DualLoop::progress() const {
  // Steps of both, which share them.
  worker::LoopProgress both = decode_->progress();
  both.has_work = both.has_work || prefill_->progress().has_work;
  return both;
}

void DualLoop::RequestDrain() {
  // The decode side's last: that is where the loop waits.
  prefill_->RequestDrain();
  decode_->RequestDrain();
}

}  // namespace baton::dual_worker
