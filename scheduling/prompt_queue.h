// The prompts that a worker has yet to compute, and in which order. Both kinds
// of worker queue theirs here. First goes, of two prompts,
//
//   1. the interactive one before the batch one;
//   2. of one class, that which can still have its first token in time, or has
//      no target for it, before that which cannot any more by what those
//      before it are predicted to take: it would cost the others theirs;
//   3. that of higher priority;
//   4. that which came first; of those that came between two steps, the one of
//      which more was found in the prefix cache.
//
// Nobody starves: once the oldest prompt of all was passed over in `patience`
// steps, it goes first until it was part of a step. So of every patience + 1
// steps that compute prompts one is the oldest's, whatever else comes; when it
// is done, there is a next oldest one. A step, and not the rest of the prompt:
// a long batch prompt that had to wait does not hold up the interactive ones.
//
// Pure: the caller says what time it is. Used by the worker's loop thread only.
// The sequences are the caller's; a pointer stays in here until Remove.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "scheduling/sequence.h"
#include "scheduling/step_cost.h"

namespace baton::scheduling {

// What a caller knows when it plans a step.
struct StepOutlook {
  // In seconds, by any clock that does not go back; the same one for all calls.
  double now = 0;
  // Of this worker; nothing is predicted while it is not known().
  StepCost cost;
  // Decode workers: sequences that are about to come from prefill workers, and
  // wait for the end of the step.
  absl::Span<const Sequence* const> coming;
  // Prefill side of a dual worker, while streams run on its decode side: the
  // time for the step that comes between two of theirs (0: any), and blocks
  // that are to stay free for them.
  double most_seconds = 0;
  int32_t blocks_kept = 0;
  // Decode side of a dual worker: its other side has prompts to compute.
  bool other_waits = false;
};

// How fast the prompts of a queue are computed.
struct PromptPace {
  // Most tokens in one step, >= 1.
  int32_t chunk = 1;
  // What each of those steps takes besides, in seconds: that of the streams
  // that run beside it.
  double beside_seconds = 0;
};

class PromptQueue final {
 public:
  explicit PromptQueue(int32_t patience);

  // Behind those that are there. `cached` tokens of it need not be computed, as
  // far as is known while it has no blocks.
  void Add(Sequence* sequence, double now, int32_t cached);
  // No-op when it is not there.
  void Remove(SequenceId id);
  // Removes those with only one token left: for workers where that is a stream.
  void RemoveStreams();

  // All of them, in the order in which they are to be computed from now on.
  std::vector<Sequence*> Order(const StepOutlook& outlook,
                               const PromptPace& pace);
  // The step after that order computes some of this prompt.
  void Planned(const Sequence* sequence);

  bool empty() const { return entries_.empty(); }
  int32_t size() const { return static_cast<int32_t>(entries_.size()); }
  // Tokens not yet computed, over all prompts. Takes time in their number.
  int64_t UncomputedTokens() const;

  // CHECK-fails when a prompt has nothing left to compute, or has too few
  // blocks.
  void CheckInvariants(int32_t block_size) const;

 private:
  struct Entry {
    Sequence* sequence = nullptr;
    // How often an order was asked for before it came.
    uint64_t turn = 0;
    int32_t cached = 0;
    // When its first token is due; infinity without a target.
    double due = 0;
  };
  struct Ranked {
    const Entry* entry = nullptr;
    // Cannot be in time any more.
    bool late = false;
  };

  static bool GoesBefore(const Ranked& a, const Ranked& b);
  // Finds out who is late; `ranked` is in order otherwise.
  static void Judge(const StepOutlook& outlook, const PromptPace& pace,
                    std::vector<Ranked>* ranked);
  void Erase(size_t index);
  void CountPassedOver();

  const int32_t patience_;
  std::vector<Entry> entries_;  // in order of arrival
  uint64_t turn_ = 0;
  // Steps since the oldest one became that, or was part of one, that computed
  // others in its stead.
  int32_t passed_over_ = 0;
  // What the last step computed.
  bool oldest_planned_ = false;
  bool others_planned_ = false;
};

}  // namespace baton::scheduling
