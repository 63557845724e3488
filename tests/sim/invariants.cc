#include "tests/sim/invariants.h"

#include "absl/strings/str_cat.h"

namespace baton::sim {

using scheduling::PlannedSequence;

void CheckBlocks(const std::string& worker, const LoopView& view,
                 Journal* journal) {
  view.pool->CheckInvariants();
  std::vector<bool> held(static_cast<size_t>(view.pool->size()));
  int32_t num_held = 0;
  for (const LoopView::Holder& holder : view.holders) {
    for (BlockId block : holder.blocks) {
      if (held[block]) {
        journal->Violate(
            absl::StrCat(worker, ": block ", block, " is held twice"));
      }
      held[block] = true;
      ++num_held;
    }
  }
  if (num_held + view.pool->num_free() != view.pool->size()) {
    journal->Violate(absl::StrCat(worker, ": of ", view.pool->size(),
                                  " blocks ", num_held, " are held, ",
                                  view.pool->num_free(), " are free"));
  }
}

void CheckPlan(const std::string& worker, const LoopView& view,
               const scheduling::StepPlan& plan,
               const std::vector<absl::Span<const std::byte>>& landings,
               const engine::KvLayout& layout, const std::byte* kv_memory,
               Journal* journal) {
  const auto num = static_cast<size_t>(layout.num_blocks);
  std::vector<bool> may_be_written(num);
  for (absl::Span<const std::byte> landing : landings) {
    const int64_t offset = landing.data() - kv_memory;
    if (offset < 0 || offset >= layout.total_bytes()) continue;
    may_be_written[static_cast<size_t>(offset / layout.page_bytes()) % num] =
        true;
  }
  std::vector<const LoopView::Holder*> owner(num);
  for (const LoopView::Holder& holder : view.holders) {
    for (BlockId block : holder.blocks) owner[block] = &holder;
  }
  std::vector<bool> planned_for(num);
  for (const PlannedSequence& planned : plan.sequences) {
    for (BlockId block : planned.blocks) {
      const auto violate = [&](const char* what) {
        journal->Violate(absl::StrCat(worker, ": sequence ",
                                      static_cast<uint64_t>(planned.sequence),
                                      " runs in block ", block, what));
      };
      if (owner[block] == nullptr) {
        violate(", which is free");
      } else if (owner[block]->quarantined ||
                 owner[block]->sequence != planned.sequence) {
        violate(", which is another's");
      }
      if (planned_for[block]) violate(" of another sequence of the step");
      if (may_be_written[block]) {
        violate(", into which a transfer may still write");
      }
      planned_for[block] = true;
    }
  }
}

void CheckNothingIsLeft(const std::string& worker, const LoopView& view,
                        Journal* journal) {
  if (view.num_attempts == 0 && view.holders.empty() &&
      view.pool->num_in_use() == 0 && view.transfers_open == 0 &&
      view.transfers_quarantined == 0) {
    return;
  }
  journal->Violate(absl::StrCat(
      worker, ": in the end there are ", view.num_attempts, " attempts, ",
      view.holders.size(), " holders of ", view.pool->num_in_use(), " blocks, ",
      view.transfers_open, " open and ", view.transfers_quarantined,
      " quarantined transfers"));
}

}  // namespace baton::sim
