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

AdmissionVerdict AdmitReservation(const WorkerCapacity& capacity,
                                  int32_t blocks_needed, int32_t blocks_cached,
                                  int32_t max_tokens) {
  if (capacity.draining) return AdmissionVerdict::kDraining;
  if (blocks_needed > capacity.total_blocks ||
      max_tokens > capacity.max_context) {
    return AdmissionVerdict::kTooLarge;
  }
  if (capacity.num_sequences >= capacity.max_sequences) {
    return AdmissionVerdict::kNoSequences;
  }
  if (blocks_needed - blocks_cached > capacity.free_blocks) {
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
