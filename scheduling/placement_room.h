// What placement policies share: how full workers are, by their last report and
// what was placed since, which of them could take a request, who is linked to
// whom, and who has what of a prompt. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduling/admission.h"
#include "scheduling/placement.h"

namespace baton::scheduling {

using Workers = std::vector<const WorkerSnapshot*>;

inline bool Contains(absl::Span<const WorkerId> ids, WorkerId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// Whether it has the request's adapter, if that names one.
inline bool HasAdapter(const WorkerSnapshot& worker,
                       const PlacementRequest& request) {
  return request.adapter == 0 ||
         std::binary_search(worker.adapters.begin(), worker.adapters.end(),
                            request.adapter);
}

// Whether it is placed on at all, and with this request's adapter.
inline bool MayServe(const WorkerSnapshot& worker,
                     const PlacementRequest& request) {
  return worker.usable && HasAdapter(worker, request);
}

// Prompt tokens to be computed there.
inline int64_t QueuedTokens(const WorkerSnapshot& worker) {
  return std::max<int64_t>(0, worker.queued_tokens + worker.placed_tokens);
}

inline int32_t Sequences(const WorkerSnapshot& worker) {
  return std::max(0, worker.running + worker.waiting + worker.placed_sequences);
}

inline int32_t FreeBlocks(const WorkerSnapshot& worker) {
  return std::min(worker.total_blocks,
                  worker.free_blocks - worker.placed_blocks);
}

// Whether `tokens` tokens need no more than so many of the worker's blocks.
inline bool FitsBlocks(const WorkerSnapshot& worker, int32_t tokens,
                       int32_t blocks) {
  return tokens <= int64_t{blocks} * worker.block_size;
}

// Whether it could hold a sequence of so many tokens when it is idle; now. What
// it has cached of the prompt does not count: cached blocks that nobody uses
// are among the free ones already, and who uses the others is not known here.
inline bool CouldEverHold(const WorkerSnapshot& worker, int32_t tokens) {
  return tokens <= worker.max_context &&
         FitsBlocks(worker, tokens, worker.total_blocks);
}

// Whether a step with the request beside what runs there is predicted to keep
// its bound. What would be too slow all alone is not kept waiting for it.
bool KeepsBatchBound(const WorkerSnapshot& worker,
                     const PlacementRequest& request);

// Whether its steps keep that bound while they compute the request's prompt,
// too, as little of it in each as a step does. Where not, all streams there
// would pay for a prompt for which there are prefill workers.
bool KeepsBatchBoundBesidePrompt(const WorkerSnapshot& worker,
                                 const PlacementRequest& request);

// Whether a prompt that stands by, computed there, would take memory that
// prompts of prefill workers need sooner: little would be left, for the long
// time that it takes beside streams, and some prefill worker is soon out of
// work, which has `least_queued` prompt tokens. Then memory is what limits the
// cluster, and who is late anyway would make others late.
bool TakesFromPrefill(const WorkerSnapshot& decode,
                      const PlacementRequest& request, int64_t least_queued);

// Of a request, for which the worker sets blocks aside at once.
inline int32_t TokensSetAside(const WorkerSnapshot& worker,
                              const PlacementRequest& request) {
  return TokensSetAside(request.prefill_tokens, request.total_tokens,
                        worker.output_reserve);
}

// The blocks that are gone once it is placed: one more where it will grow,
// since workers keep one free for each of those.
inline int32_t BlocksTaken(const WorkerSnapshot& worker,
                           const PlacementRequest& request) {
  const int32_t tokens = TokensSetAside(worker, request);
  return BlocksFor(tokens, worker.block_size) +
         (tokens < request.total_tokens ? 1 : 0);
}

// Room for what is set aside at once, and in the batch: more streams than keep
// their targets would all be late, where some could be in time.
inline bool DecodeHasRoom(const WorkerSnapshot& worker,
                          const PlacementRequest& request) {
  return Sequences(worker) < worker.max_sequences &&
         FitsBlocks(worker, TokensSetAside(worker, request),
                    FreeBlocks(worker)) &&
         KeepsBatchBound(worker, request);
}

// An idle worker takes any prompt that it can hold, however long.
inline bool PrefillHasRoom(const WorkerSnapshot& worker, int32_t tokens) {
  const int64_t queued = QueuedTokens(worker);
  return worker.max_queued_tokens == 0 || queued == 0 ||
         queued + tokens <= worker.max_queued_tokens;
}

// How much may be queued where a request stands by
// (PlacementRequest::little_seconds), by its target for the first token, 0:
// none. The time between two reports, about, so that a worker is not idle
// meanwhile; but a tenth of the target at most, as those that come next and can
// be in time find it before them. (With 0.2 s, nearly all that a worker
// computed under five times its load were late, where the target was 0.3 s.)
inline double LittleSeconds(double ttft_target_seconds) {
  constexpr double kMost = 0.2;
  return ttft_target_seconds > 0 ? std::min(kMost, 0.1 * ttft_target_seconds)
                                 : kMost;
}

// Whether a prompt that stands by may be computed there: there is little queued
// by the number of its tokens.
inline bool MayComputeThere(const WorkerSnapshot& worker,
                            const PlacementRequest& request) {
  const auto queued = static_cast<double>(QueuedTokens(worker));
  return !request.stands_by || queued == 0 ||
         (worker.step_cost.known() &&
          queued * worker.step_cost.per_token <= request.little_seconds);
}

inline bool PrefillHasRoom(const WorkerSnapshot& worker,
                           const PlacementRequest& request) {
  return PrefillHasRoom(worker, request.prefill_tokens) &&
         MayComputeThere(worker, request);
}

// In [0, 2]: share of the blocks plus share of the sequence places.
double DecodeLoad(const WorkerSnapshot& worker);

// Of the link from `prefill` to `decode`, in bytes per second; 0: not measured.
double Bandwidth(const WorkerSnapshot& prefill, WorkerId decode);

// Finds the links of many prefill workers to one decode worker. Quick when they
// are paired with the same ones, as they mostly are.
class LinkFinder final {
 public:
  explicit LinkFinder(WorkerId decode) : decode_(decode) {}

  // Whether `prefill` is paired with it.
  bool Find(const WorkerSnapshot& prefill);
  // Of the link found last, as Bandwidth.
  double bandwidth() const { return bandwidth_; }

 private:
  const WorkerId decode_;
  size_t last_ = 0;
  double bandwidth_ = 0;
};

// How much of a request's prompt a worker has cached.
class CachedPrompts final {
 public:
  // The request's spans outlive it.
  explicit CachedPrompts(const PlacementRequest& request);

  // In [0, prefill_tokens): the last token is always computed.
  int32_t Tokens(WorkerId id) const;

 private:
  int32_t Bounded(int32_t tokens) const;

  const int32_t most_;
  const absl::Span<const CachedPrompt> cached_;
  // Of many, by id, from first_ on: asking about each worker of a large cluster
  // takes no search. Empty when there are few, or the ids lie far apart.
  std::vector<int32_t> table_;
  uint64_t first_ = 0;
};

}  // namespace baton::scheduling
