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
  // Decode workers: of the free blocks, those that are kept for sequences that
  // may still grow (scheduling/preemption.h).
  int32_t kept_free = 0;
  // Decode workers: sequences that were here wait for blocks, before all
  // others.
  bool others_wait = false;
  // Prefill workers: prompt tokens waiting to be computed.
  int64_t max_queued_tokens = 0;
  int64_t queued_tokens = 0;
};

// Tokens for which a decode worker sets blocks aside when it takes a sequence
// of `tokens` that has at most `most_tokens` in the end: `output_reserve` more
// than there are; 0: all. Routers reckon with the same. REQUIRES: 0 <= tokens,
// output_reserve.
int32_t TokensSetAside(int32_t tokens, int32_t most_tokens,
                       int32_t output_reserve);

// What a sequence needs on a decode worker.
struct ReservationNeed {
  // At once; of them, those of a cached prefix that it holds already, which are
  // not free then.
  int32_t blocks = 0;
  int32_t cached_blocks = 0;
  // In the end.
  int32_t most_blocks = 0;
  int32_t most_tokens = 0;
};

// A decode worker takes what it could hold to the end if it were alone, when
// there are blocks for the beginning, and some are left for those that run.
AdmissionVerdict AdmitReservation(const WorkerCapacity& capacity,
                                  const ReservationNeed& need);

// A prefill worker queues up to a bound of tokens and takes blocks when a
// sequence's turn comes. One sequence is always taken when nothing is queued.
AdmissionVerdict AdmitPrefill(const WorkerCapacity& capacity,
                              int32_t blocks_needed, int32_t num_tokens);

}  // namespace baton::scheduling
