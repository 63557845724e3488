#include "tests/sim/invariants.h"

#include "absl/strings/str_cat.h"

namespace baton::sim {

using scheduling::PlannedSequence;

namespace {

// By block; null: free.
std::vector<const LoopView::Holder*> OwnersOf(const LoopView& view) {
  std::vector<const LoopView::Holder*> owners(
      static_cast<size_t>(view.pool->size()));
  for (const LoopView::Holder& holder : view.holders) {
    for (BlockId block : holder.blocks) owners[block] = &holder;
  }
  return owners;
}

}  // namespace

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

std::vector<bool> KvInUse::BlocksOf(
    const std::vector<absl::Span<const std::byte>>& spans) const {
  const auto num = static_cast<size_t>(layout->num_blocks);
  std::vector<bool> blocks(num);
  for (absl::Span<const std::byte> span : spans) {
    const int64_t offset = span.data() - memory;
    if (offset < 0 || offset >= layout->total_bytes()) continue;
    blocks[static_cast<size_t>(offset / layout->page_bytes()) % num] = true;
  }
  return blocks;
}

void CheckTransfers(const std::string& worker, const LoopView& view,
                    const KvInUse& kv, Journal* journal) {
  if (kv.landings.empty() && kv.sends.empty()) return;
  const std::vector<bool> written = kv.BlocksOf(kv.landings);
  const std::vector<bool> read = kv.BlocksOf(kv.sends);
  const auto owners = OwnersOf(view);
  for (size_t block = 0; block < owners.size(); ++block) {
    if (!written[block] && !read[block]) continue;
    const LoopView::Holder* owner = owners[block];
    if (owner != nullptr && (owner->quarantined || owner->transfers)) continue;
    journal->Violate(absl::StrCat(
        worker, ": block ", block, " may still be ",
        written[block] ? "written" : "read", " by a transfer, but is ",
        owner == nullptr ? "free" : "held for no transfer"));
  }
}

void CheckPlan(const std::string& worker, const LoopView& view,
               const scheduling::StepPlan& plan, const KvInUse& kv,
               Journal* journal) {
  const std::vector<bool> may_be_written = kv.BlocksOf(kv.landings);
  const auto owner = OwnersOf(view);
  std::vector<bool> planned_for(owner.size());
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
