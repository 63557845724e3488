#include "scheduling/admission.h"

#include "common/log.h"

namespace baton::scheduling {

const char* AdmissionVerdictName(AdmissionVerdict verdict) {
  switch (verdict) {
    case AdmissionVerdict::kAdmit:
      return "admit";
    case AdmissionVerdict::kNoBlocks:
      return "no_blocks";
    case AdmissionVerdict::kNoSequences:
      return "no_sequences";
    case AdmissionVerdict::kQueueFull:
      return "queue_full";
    case AdmissionVerdict::kTooLarge:
      return "too_large";
    case AdmissionVerdict::kDraining:
      return "draining";
  }
  LOG(FATAL) << "AdmissionVerdict " << static_cast<int>(verdict);
}

int32_t TokensSetAside(int32_t tokens, int32_t most_tokens,
                       int32_t output_reserve) {
  if (output_reserve == 0 || tokens >= most_tokens) return most_tokens;
  return output_reserve < most_tokens - tokens ? tokens + output_reserve
                                               : most_tokens;
}

AdmissionVerdict AdmitReservation(const WorkerCapacity& capacity,
                                  const ReservationNeed& need) {
  if (capacity.draining) return AdmissionVerdict::kDraining;
  if (need.most_blocks > capacity.total_blocks ||
      need.most_tokens > capacity.max_context) {
    return AdmissionVerdict::kTooLarge;
  }
  if (capacity.num_sequences >= capacity.max_sequences) {
    return AdmissionVerdict::kNoSequences;
  }
  if (capacity.others_wait || need.blocks - need.cached_blocks >
                                  capacity.free_blocks - capacity.kept_free) {
    return AdmissionVerdict::kNoBlocks;
  }
  return AdmissionVerdict::kAdmit;
}

AdmissionVerdict AdmitPrefill(const WorkerCapacity& capacity,
                              int32_t blocks_needed, int32_t num_tokens) {
  if (capacity.draining) return AdmissionVerdict::kDraining;
  if (blocks_needed > capacity.total_blocks ||
      num_tokens > capacity.max_context) {
    return AdmissionVerdict::kTooLarge;
  }
  if (capacity.num_sequences >= capacity.max_sequences) {
    return AdmissionVerdict::kNoSequences;
  }
  if (capacity.queued_tokens > 0 &&
      capacity.queued_tokens + num_tokens > capacity.max_queued_tokens) {
    return AdmissionVerdict::kQueueFull;
  }
  return AdmissionVerdict::kAdmit;
}

}  // namespace baton::scheduling
