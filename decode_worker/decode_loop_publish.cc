// DecodeLoop: what the end of a turn tells routers and metrics.
#include <cstdint>

#include "decode_worker/decode_loop.h"

namespace baton::decode_worker {

void DecodeLoop::Publish() {
  unpublished_ = false;
  const int waiting = attempts_.size() - scheduler_.num_running();
  metrics_->Observe(*blocks_, scheduler_.num_running(), waiting,
                    quarantine_.num_blocks());
  metrics_->swapped_sequences->Set(swap_store_.num_sequences());
  metrics_->swapped_bytes->Set(static_cast<double>(swap_store_.bytes()));
  metrics_->ObserveHandoff(landings_.stats());
  metrics_->reserved_committed->Set(static_cast<double>(BlocksCommitted()));
  metrics_->prompt_tokens_waiting->Set(
      static_cast<double>(scheduler_.QueuedTokens()));

  v1::LoadReport load;
  load.set_running(static_cast<uint32_t>(scheduler_.num_running()));
  load.set_waiting(static_cast<uint32_t>(waiting));
  load.set_free_blocks(static_cast<uint32_t>(FreeForOthers()));
  load.set_queued_tokens(static_cast<uint64_t>(scheduler_.QueuedTokens()));
  load.set_queued_prompts(static_cast<uint32_t>(scheduler_.NumPrompts()));
  load.set_context_tokens(static_cast<uint64_t>(scheduler_.ContextTokens()));
  load.set_steps(blocks_->steps);
  load.set_draining(draining_.requested());
  if (roles_ != nullptr) {
    load.set_standby(roles_->standby(v1::WORKER_ROLE_DECODE));
    load.set_role(roles_->role());
  }
  worker::SetStepCost(step_cost_.cost(), &load);
  publisher_.Flush(clock_->Now(), load);
  prefix_feed_.Flush(clock_->Now());
  adapter_feed_.Flush();
}

}  // namespace baton::decode_worker
