#include "scheduling/prefill_scheduler.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/log.h"
#include "scheduling/step_budget.h"

namespace baton::scheduling {

PrefillScheduler::PrefillScheduler(const PrefillSchedulerOptions& options,
                                   BlockPool* pool, PrefixCache* cache,
                                   PrefixLoader* loader)
    : options_(options),
      pool_(pool),
      cache_(cache),
      loader_(loader),
      queue_(options.patience) {
  CHECK_GE(options_.token_budget, 1);
  CHECK_GE(options_.block_size, 1);
}

void PrefillScheduler::Add(Sequence* sequence, double now) {
  queue_.Add(sequence, now, Cached(*sequence));
}

int32_t PrefillScheduler::Cached(const Sequence& sequence) const {
  if (cache_ == nullptr) return 0;
  return cache_->CachedTokens(sequence, sequence.MaxCached());
}

void PrefillScheduler::Remove(SequenceId id) {
  queue_.Remove(id);
  not_stored_.erase(id);
  ahead_.erase(id);
}

StepPlan PrefillScheduler::Plan(const StepOutlook& outlook) {
  StepPlan plan;
  blocks_wanted_ = 0;
  if (queue_.empty()) return plan;
  int32_t budget = options_.token_budget;
  bool may_start = true;
  int32_t waiting = queue_.size();
  int32_t ending = 0;
  StepShape shape;
  const std::vector<Sequence*> order =
      queue_.Order(outlook, {.chunk = options_.token_budget});
  for (Sequence* sequence : order) {
    if (budget == 0) break;
    if (sequence->loading()) continue;
    const bool begun = sequence->blocks().size() > 0;
    if (!begun && !may_start) continue;
    // Before it gets blocks: in its own step, more may be cached.
    const int32_t computed = begun ? sequence->computed() : Cached(*sequence);
    const int32_t tokens =
        Fitting(outlook, shape, computed,
                std::min(budget, sequence->num_tokens() - computed));
    const StepShape chunk = ChunkShape(computed, tokens);
    if (tokens == 0 || !PaysToJoin(outlook.cost, chunk, ending, waiting)) {
      break;
    }
    if (!begun) {
      may_start = GiveBlocks(sequence, outlook.blocks_kept);
      if (!may_start) {
        blocks_wanted_ = BlocksOf(*sequence);
        continue;
      }
      if (Load(sequence, outlook)) continue;
    }
    const int32_t count = std::min(outlook.most_seconds == 0 ? budget : tokens,
                                   sequence->uncomputed());
    shape += chunk;
    shape.tokens += count - tokens;
    ++shape.sequences;
    sequence->AppendTo(&plan, count);
    queue_.Planned(sequence);
    ahead_.erase(sequence->id());
    budget -= count;
    --waiting;
    ending += count == sequence->uncomputed();
  }
  if (may_start) {
    LoadAhead(order, outlook);
    WantBlocks(order, outlook.blocks_kept);
  }
  return plan;
}

bool PrefillScheduler::Load(Sequence* sequence, const StepOutlook& outlook) {
  return loader_ != nullptr &&
         loader_->Load(sequence, outlook.cost, options_.token_budget);
}

void PrefillScheduler::LoadAhead(absl::Span<Sequence* const> order,
                                 const StepOutlook& outlook) {
  if (loader_ == nullptr) return;
  auto seen = static_cast<int32_t>(ahead_.size());
  for (Sequence* sequence : order) {
    if (sequence->blocks().size() > 0) continue;
    if (++seen > kLoadAhead) return;
    if (not_stored_.contains(sequence->id())) continue;
    if (loader_->StoredTokens(*sequence, sequence->MaxCached()) <=
        Cached(*sequence)) {
      not_stored_.insert(sequence->id());
      continue;
    }
    if (!GiveBlocks(sequence, outlook.blocks_kept)) return;
    ahead_.insert(sequence->id());
    Load(sequence, outlook);
  }
}

void PrefillScheduler::WantBlocks(absl::Span<Sequence* const> order,
                                  int32_t kept) {
  const auto first = std::find_if(
      order.begin(), order.end(),
      [](const Sequence* sequence) { return sequence->blocks().size() == 0; });
  if (first == order.end()) return;
  const int32_t blocks = BlocksOf(**first);
  if (pool_->num_available() - kept < blocks) blocks_wanted_ = blocks;
}

int32_t PrefillScheduler::BlocksOf(const Sequence& sequence) const {
  return (sequence.num_tokens() + options_.block_size - 1) /
         options_.block_size;
}

int32_t PrefillScheduler::Fitting(const StepOutlook& outlook,
                                  const StepShape& shape, int32_t computed,
                                  int32_t most) {
  if (outlook.most_seconds == 0) return most;
  const int32_t tokens =
      outlook.cost.known()
          ? MaxChunkTokens(outlook.cost, shape, outlook.most_seconds, computed,
                           most)
          : 0;
  return shape.tokens == 0 ? std::max(tokens, std::min(most, kLeastChunk))
                           : tokens;
}

bool PrefillScheduler::GiveBlocks(Sequence* sequence, int32_t kept) {
  const int32_t count = BlocksOf(*sequence);
  PooledBlocks blocks;
  if (cache_ != nullptr) {
    blocks = cache_->Match(sequence, sequence->MaxCached());
  }
  // What was matched is free no more.
  if (pool_->num_available() - kept < count - blocks.size()) return false;
  std::optional<PooledBlocks> rest = pool_->Allocate(count - blocks.size());
  if (!rest.has_value()) return false;
  blocks.Append(*std::move(rest));
  sequence->blocks() = std::move(blocks);
  if (sequence->cached() > 0) sequence->AdoptComputed(sequence->cached());
  return true;
}

void PrefillScheduler::CheckInvariants() const {
  queue_.CheckInvariants(options_.block_size);
}

}  // namespace baton::scheduling
