// Whether a worker takes one more sequence: a pure verdict from a snapshot.
// The worker decides for itself, so that two routers cannot oversubscribe it.
#pragma once

#include <cstdint>

namespace baton::scheduling {

enum class AdmissionVerdict {
  kAdmit,
  kNoBlocks,     // not now: too few free blocks
  kNoSequences,  // not now: too many sequences
  kQueueFull,    // not now: too much is queued
  kTooLarge,     // never: larger than the pool or the context
  kDraining,     // never again: the worker goes away
};

// Stable lower-case name ("no_blocks"), for labels and logs.
const char* AdmissionVerdictName(AdmissionVerdict verdict);

// What the worker holds now.
struct WorkerCapacity {
  int32_t total_blocks = 0;
  int32_t free_blocks = 0;  // those that can be evicted included
  int32_t max_sequences = 0;
  int32_t num_sequences = 0;  // reserved, waiting and running
  int32_t max_context = 0;
  bool draining = false;
  // Prefill workers: prompt tokens waiting to be computed.
  int64_t max_queued_tokens = 0;
  int64_t queued_tokens = 0;
};

// A decode worker sets blocks aside for the whole sequence at once, output
// included, so an admitted sequence always ends. It holds `blocks_cached` of
// the `blocks_needed` already, which are not free then.
AdmissionVerdict AdmitReservation(const WorkerCapacity& capacity,
                                  int32_t blocks_needed, int32_t blocks_cached,
                                  int32_t max_tokens);

// A prefill worker queues up to a bound of tokens and takes blocks when a
// sequence's turn comes. One sequence is always taken when nothing is queued.
AdmissionVerdict AdmitPrefill(const WorkerCapacity& capacity,
                              int32_t blocks_needed, int32_t num_tokens);

}  // namespace baton::scheduling
