// DecodeLoop: blocks for sequences that grow, and who gives theirs up when
// there are none (scheduling/preemption.h).
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "decode_worker/decode_loop.h"
#include "scheduling/preemption.h"

namespace baton::decode_worker {

using scheduling::PooledBlocks;
using scheduling::PreemptionCandidate;
using scheduling::PreemptionWay;
using scheduling::Sequence;
using scheduling::StaysLonger;

namespace {

PreemptionCandidate CandidateOf(const Sequence& sequence) {
  return {.id = sequence.id(),
          .request_class = sequence.urgency().request_class,
          .priority = sequence.urgency().priority};
}

}  // namespace

int32_t DecodeLoop::BlocksToReserve(const Sequence& sequence) const {
  return engine_->kv_layout().BlocksFor(scheduling::TokensSetAside(
      sequence.num_tokens(), sequence.MaxComputed(), options_.output_reserve));
}

void DecodeLoop::LoadStored(Sequence* sequence) {
  if (blocks_->offload == nullptr) return;
  blocks_->offload->Load(sequence, step_cost_.cost(), options_.token_budget);
}

int32_t DecodeLoop::KeptFree() const {
  if (options_.output_reserve == 0) return 0;
  int32_t kept = 0;
  for (const Attempt* attempt : attempts_.All()) {
    const Sequence& sequence = *attempt->sequence;
    if (attempt->swapped.has_value()) continue;
    kept += sequence.blocks().size() <
            engine_->kv_layout().BlocksFor(sequence.MaxComputed());
  }
  return kept;
}

int32_t DecodeLoop::KeptForStreams() const {
  int32_t kept = KeptFree();
  if (swap_store_.num_sequences() == 0) return kept;
  // The first of those that wait to be brought back.
  const Attempt* first = nullptr;
  for (const Attempt* attempt : attempts_.All()) {
    if (!attempt->swapped.has_value()) continue;
    if (first == nullptr || StaysLonger(CandidateOf(*attempt->sequence),
                                        CandidateOf(*first->sequence))) {
      first = attempt;
    }
  }
  return kept + BlocksToReserve(*first->sequence);
}

int32_t DecodeLoop::FreeForOthers() const {
  if (swap_store_.num_sequences() > 0) return 0;
  return std::max(0, pool_.num_available() - KeptFree() - kept_for_other_);
}

int64_t DecodeLoop::BlocksCommitted() const {
  const engine::KvLayout& layout = engine_->kv_layout();
  int64_t blocks = 0;
  for (const Attempt* attempt : attempts_.All()) {
    if (!attempt->landed.has_value() || attempt->first_step_at.has_value()) {
      continue;
    }
    blocks += layout.BlocksFor(attempt->num_tokens) -
              layout.BlocksFor(attempt->sequence->cached());
  }
  return blocks;
}

void DecodeLoop::GrowBlocks() {
  std::vector<PreemptionCandidate> growing;
  for (const Sequence* sequence : scheduler_.running()) {
    if (!scheduler_.HasBlocks(*sequence)) {
      growing.push_back(CandidateOf(*sequence));
    }
  }
  std::sort(growing.begin(), growing.end(), StaysLonger);
  for (const PreemptionCandidate& candidate : growing) {
    // It may have to give up its own.
    while (Attempt* attempt = attempts_.Find(candidate.id)) {
      if (attempt->swapped.has_value()) break;
      std::optional<PooledBlocks> block = pool_.Allocate(1);
      if (block.has_value()) {
        attempt->sequence->blocks().Append(*std::move(block));
        break;
      }
      if (!PreemptOne() && !ForgetCache(*attempt->sequence)) break;
    }
  }
  BringBack();
  GrowForGuesses();
}

void DecodeLoop::GrowForGuesses() {
  if (options_.draft_tokens == 0) return;
  int32_t free = FreeForOthers();
  for (Sequence* sequence : scheduler_.running()) {
    if (free == 0) return;
    if (!scheduler_.LacksRoomToGuess(*sequence)) continue;
    std::optional<PooledBlocks> block = pool_.Allocate(1);
    CHECK(block.has_value());
    sequence->blocks().Append(*std::move(block));
    --free;
  }
}

void DecodeLoop::GiveWay() {
  if (!idle_ || quarantine_.num_blocks() > 0) return;
  std::vector<PreemptionCandidate> candidates;
  for (const Attempt* attempt : attempts_.All()) {
    if (attempt->transfer.has_value()) {
      candidates.push_back(CandidateOf(*attempt->sequence));
    }
  }
  if (candidates.empty()) return;
  const auto victim =
      std::max_element(candidates.begin(), candidates.end(), StaysLonger);
  GiveBack(attempts_.Find(victim->id),
           "prompts of this worker need its blocks");
}

bool DecodeLoop::ForgetCache(const Sequence& alone) {
  if (other_holds_) return false;
  for (const Attempt* attempt : attempts_.All()) {
    const Sequence& other = *attempt->sequence;
    // Its blocks will be free.
    if (other.id() != alone.id() && other.blocks().size() > 0) return false;
  }
  const absl::Span<const BlockId> own = alone.blocks().ids();
  const auto kept = std::count_if(
      own.begin(), own.end(), [this](BlockId id) { return pool_.is_kept(id); });
  if (cache_.num_blocks() <= kept) return false;
  cache_.Clear();
  return true;
}

bool DecodeLoop::PreemptOne() {
  std::vector<PreemptionCandidate> candidates;
  // Those that KV is still coming for, or that is read for, are not among them:
  // it would be a while before their blocks are free, and transfers can join
  // only once.
  for (const Sequence* sequence : scheduler_.running()) {
    if (sequence->loading()) continue;
    candidates.push_back(CandidateOf(*sequence));
  }
  const std::optional<SequenceId> victim = scheduling::PickVictim(candidates);
  if (!victim.has_value()) return false;
  Preempt(attempts_.Find(*victim));
  return true;
}

PreemptionWay DecodeLoop::WayOf(const Attempt& attempt) const {
  const Sequence& sequence = *attempt.sequence;
  // Of a prompt that is computed here, too little is there to keep.
  if (attempt.prefilling || sequence.uncomputed() > 1) {
    return PreemptionWay::kRecompute;
  }
  // Others hold the cached blocks of its beginning, too: they stay. Of the rest
  // nothing is counted on, for blocks are scarce.
  int32_t shared = 0;
  for (BlockId block : sequence.blocks().ids()) {
    if (!pool_.is_kept(block) || pool_.references(block) < 3) break;
    ++shared;
  }
  const engine::KvLayout& layout = engine_->kv_layout();
  return scheduling::CheaperWay(
      {.step = step_cost_.cost(),
       .chunk = options_.token_budget,
       .tokens = sequence.num_tokens(),
       .cached = shared * layout.block_size,
       .queued_tokens = scheduler_.QueuedTokens(),
       .kv_bytes = swap_store_.BytesOf(layout.BlocksFor(sequence.computed())),
       .swap_room = swap_store_.room(),
       .copy_bytes_per_second = swap_store_.bytes_per_second()});
}

void DecodeLoop::Preempt(Attempt* attempt) {
  const PreemptionWay way = WayOf(*attempt);
  ++num_preempted_;
  metrics_->CountPreemption(scheduling::PreemptionWayName(way));
  if (way == PreemptionWay::kRecompute) {
    GiveBack(attempt, "another sequence needed its blocks");
    return;
  }
  Sequence& sequence = *attempt->sequence;
  const int32_t blocks = engine_->kv_layout().BlocksFor(sequence.computed());
  attempt->swapped.emplace(
      swap_store_.Save(sequence.blocks().ids().first(blocks)));
  attempt->swapped_until = clock_->Now() + absl::Seconds(options_.swap_seconds);
  metrics_->swap_seconds->Observe(swap_store_.last_seconds());
  pace_.Idle();  // copying is no part of what a step costs
  scheduler_.Remove(sequence.id());
  blocks_->Leave(&sequence, /*keep=*/false);
  sequence.blocks().Release();
  ++num_swapped_;
}

void DecodeLoop::GiveBack(Attempt* attempt, const char* why) {
  Fail(attempt,
       absl::StrCat("preempted on decode worker ", options_.name, ": ", why),
       /*retryable=*/true, v1::FAILURE_KIND_PREEMPTED);
}

void DecodeLoop::BringBack() {
  if (swap_store_.num_sequences() == 0) return;
  std::vector<PreemptionCandidate> swapped;
  for (const Attempt* attempt : attempts_.All()) {
    if (attempt->swapped.has_value()) {
      swapped.push_back(CandidateOf(*attempt->sequence));
    }
  }
  std::sort(swapped.begin(), swapped.end(), StaysLonger);
  const absl::Time now = clock_->Now();
  bool first_waits = false;
  for (const PreemptionCandidate& candidate : swapped) {
    Attempt* attempt = attempts_.Find(candidate.id);
    Sequence& sequence = *attempt->sequence;
    const int32_t blocks = BlocksToReserve(sequence);
    // Not before one that keeps its blocks longer.
    if (!first_waits && blocks <= pool_.num_available() - KeptFree()) {
      sequence.blocks() = *pool_.Allocate(blocks);
      swap_store_.Restore(
          *attempt->swapped,
          sequence.blocks().ids().first(attempt->swapped->num_blocks()));
      attempt->swapped.reset();
      metrics_->swap_seconds->Observe(swap_store_.last_seconds());
      pace_.Idle();
      // The blocks are its own now, whatever the cache has of them.
      sequence.prefix().num_blocks = 0;
      // From now on: what it waited for its blocks is not made up for.
      scheduler_.Add(&sequence, absl::ToDoubleSeconds(now - absl::UnixEpoch()));
      ++num_brought_back_;
      continue;
    }
    first_waits = true;
    if (now < attempt->swapped_until) continue;
    metrics_->swaps_given_up->Increment();
    GiveBack(attempt, "no blocks were free in time");
  }
}

}  // namespace baton::decode_worker
