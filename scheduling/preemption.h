// What a decode worker does when no KV block is left: which sequence gives its
// own up, and where it goes on.
//
// Sequences of a worker stand in one order that never changes: interactive
// before batch, then higher priority, then those that came first. Who needs a
// block takes it from the last of them, and the first never gives one up. So
// the first always goes on, whatever the others do, and comes to its end, since
// none is taken that the pool could not hold alone; then the next one is the
// first. One that gave its blocks up comes back behind all that are there, when
// there are blocks for all it had and its reserve besides
// (scheduling/admission.h): more than were taken for it, so that it cannot be
// let in again at the expense of the one that it gave way to.
//
// Pure. One thread.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "common/ids.h"
#include "scheduling/request.h"
#include "scheduling/step_cost.h"

namespace baton::scheduling {

// A sequence that could give its blocks up.
struct PreemptionCandidate {
  // Larger ones came later.
  SequenceId id{};
  RequestClass request_class = RequestClass::kInteractive;
  int32_t priority = 0;
};

// Whether `a` keeps its blocks longer than `b`: a strict order of all.
bool StaysLonger(const PreemptionCandidate& a, const PreemptionCandidate& b);

// Who gives its blocks up; nobody, when there are fewer than two.
std::optional<SequenceId> PickVictim(
    absl::Span<const PreemptionCandidate> candidates);

// Where a sequence goes on that gave its blocks up.
enum class PreemptionWay {
  kRecompute,  // back to the router: its KV is computed again, somewhere
  kSwap,       // its KV waits in the host's memory
};

// Stable lower-case name ("recompute"), for labels and logs.
const char* PreemptionWayName(PreemptionWay way);

// What the two ways would take.
struct PreemptionCost {
  // Of the worker's steps; most tokens of a chunk.
  StepCost step;
  int32_t chunk = 1;
  // Tokens whose KV is there; of them, those that a prefix cache keeps.
  int32_t tokens = 0;
  int32_t cached = 0;
  // Tokens of prompts that would go before it.
  int64_t queued_tokens = 0;
  // Of its KV. `swap_room` is what the host's memory still takes.
  int64_t kv_bytes = 0;
  int64_t swap_room = 0;
  // To the host, or back; 0: not known yet.
  double copy_bytes_per_second = 0;
};

// The cheaper one; kSwap, which shows what it takes, while that is not known.
PreemptionWay CheaperWay(const PreemptionCost& cost);

}  // namespace baton::scheduling
