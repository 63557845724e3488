#include "tests/sim/invariants.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"

namespace baton::sim {

using scheduling::PlannedSequence;
using scheduling::PrefixCache;

namespace {

using Holders = std::vector<const LoopView::Holder*>;

// By block: those who hold it, but for the prefix cache.
std::vector<Holders> HoldersOf(const LoopView& view) {
  std::vector<Holders> holders(static_cast<size_t>(view.pool->size()));
  for (const LoopView::Holder& holder : view.holders) {
    for (BlockId block : holder.blocks) holders[block].push_back(&holder);
  }
  return holders;
}

}  // namespace

void CheckBlocks(const std::string& worker, const LoopView& view,
                 Journal* journal) {
  view.pool->CheckInvariants();
  view.cache->CheckInvariants();
  const std::vector<Holders> holders = HoldersOf(view);
  for (BlockId block = 0; block < view.pool->size(); ++block) {
    const auto count = static_cast<int32_t>(holders[block].size());
    const bool cached = view.pool->is_kept(block);
    const auto owners =
        std::count_if(holders[block].begin(), holders[block].end(),
                      [](const auto* h) { return !h->fills && !h->drains; });
    if (owners > 1 && !cached) {
      journal->Violate(
          absl::StrCat(worker, ": block ", block, " is held twice"));
    }
    if (count + (cached ? 1 : 0) != view.pool->references(block)) {
      journal->Violate(absl::StrCat(worker, ": block ", block, " has ",
                                    view.pool->references(block),
                                    " references of ", count, " holders",
                                    cached ? " and the cache" : ""));
    }
  }
}

uint64_t CheckCached(const std::string& worker, const LoopView& view,
                     uint64_t above, const SimEngine& engine,
                     Journal* journal) {
  const std::vector<PrefixCache::Content> contents = view.cache->Contents();
  std::map<BlockId, BlockId> before;
  std::map<BlockId, absl::string_view> salts;  // of first blocks
  for (const auto& content : contents) {
    before[content.block] = content.before;
    if (content.before == PrefixCache::kNoBlock) {
      salts[content.block] = content.salt;
    }
  }
  for (const LoopView::Holder& holder : view.holders) {
    if (holder.quarantined || holder.over || holder.fills || holder.drains ||
        holder.blocks.empty()) {
      continue;
    }
    const auto it = salts.find(holder.blocks[0]);
    if (it == salts.end() || it->second == holder.salt) continue;
    journal->Violate(absl::StrCat(
        worker, ": sequence ", static_cast<uint64_t>(holder.sequence),
        " shares block ", holder.blocks[0], " with another salt"));
  }
  uint64_t highest = above;
  for (const auto& content : contents) {
    if (content.number <= above) continue;
    highest = std::max(highest, content.number);
    int32_t position = 0;
    BlockId first = content.block;
    for (BlockId b = content.before; b != PrefixCache::kNoBlock;
         b = before.at(b)) {
      position += kBlockSize;
      first = b;
    }
    if (engine.HasKvOf(content.tokens, position, AdapterOfSalt(salts.at(first)),
                       content.block, content.before)) {
      continue;
    }
    journal->Violate(absl::StrCat(worker, ": block ", content.block,
                                  " is cached, but holds other KV"));
  }
  return highest;
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
  const std::vector<Holders> holders = HoldersOf(view);
  for (BlockId block = 0; block < view.pool->size(); ++block) {
    if (!written[block] && !read[block]) continue;
    const auto violate = [&](const char* but) {
      journal->Violate(absl::StrCat(worker, ": block ", block, " may still be ",
                                    written[block] ? "written" : "read",
                                    " by a transfer, but is ", but));
    };
    if (written[block] && view.pool->is_kept(block)) violate("cached");
    const bool for_transfer = std::any_of(
        holders[block].begin(), holders[block].end(), [](const auto* h) {
          return h->quarantined || h->transfers || h->fills;
        });
    if (for_transfer) continue;
    violate(holders[block].empty() ? "free" : "held for no transfer");
  }
}

void CheckStaged(const std::string& worker, const LoopView& view,
                 const KvInUse& kv, const std::vector<BlockId>& in_use,
                 Journal* journal) {
  view.staged_pool->CheckInvariants();
  std::vector<int32_t> holders(view.staged_pool->size());
  for (const absl::Span<const BlockId> blocks : view.staged_holders) {
    for (BlockId block : blocks) ++holders[block];
  }
  std::vector<bool> touched = kv.BlocksOf(kv.landings);
  const std::vector<bool> read = kv.BlocksOf(kv.sends);
  for (size_t i = 0; i < read.size(); ++i) touched[i] = touched[i] || read[i];
  for (BlockId block : in_use) touched[block] = true;
  for (BlockId block = 0; block < view.staged_pool->size(); ++block) {
    if (holders[block] != view.staged_pool->references(block) ||
        holders[block] > 1) {
      journal->Violate(absl::StrCat(
          worker, ": staged block ", block, " has ", holders[block],
          " holders and ", view.staged_pool->references(block), " references"));
    }
    if (touched[block] && holders[block] == 0) {
      journal->Violate(absl::StrCat(worker, ": staged block ", block,
                                    " may still be touched, but is free"));
    }
  }
}

void CheckPlan(const std::string& worker, const LoopView& view,
               const scheduling::StepPlan& plan, const KvInUse& kv,
               bool is_ahead, Journal* journal) {
  const std::vector<bool> may_be_written = kv.BlocksOf(kv.landings);
  const std::vector<Holders> holders = HoldersOf(view);
  for (const PlannedSequence& planned : plan.sequences) {
    const auto first_written =
        static_cast<size_t>(planned.first_position / kBlockSize);
    for (size_t i = 0; i < planned.blocks.size(); ++i) {
      const BlockId block = planned.blocks[i];
      const auto violate = [&](const char* what) {
        journal->Violate(absl::StrCat(worker, ": sequence ",
                                      static_cast<uint64_t>(planned.sequence),
                                      " runs in block ", block, what));
      };
      const bool is_its = std::any_of(
          holders[block].begin(), holders[block].end(), [&](const auto* h) {
            if (h->over) return is_ahead;
            return !h->quarantined && !h->fills && !h->drains &&
                   h->sequence == planned.sequence;
          });
      if (holders[block].empty()) {
        violate(", which is free");
      } else if (!is_its) {
        violate(", which is another's");
      }
      if (may_be_written[block]) {
        violate(", into which a transfer may still write");
      }
      if (std::any_of(holders[block].begin(), holders[block].end(),
                      [](const auto* h) { return h->fills; })) {
        violate(", which is still loaded");
      }
      if (i < first_written) continue;
      if (holders[block].size() > 1) violate(" and writes to it, with another");
      if (view.pool->is_kept(block)) violate(" and writes to it: it is cached");
    }
  }
}

void CheckNothingIsLeft(const std::string& worker, const LoopView& view,
                        Journal* journal) {
  if (view.num_attempts == 0 && view.holders.empty() &&
      view.pool->num_in_use() == 0 && view.transfers_open == 0 &&
      view.transfers_quarantined == 0 && view.num_waiting_swapped == 0 &&
      view.staged_holders.empty()) {
    return;
  }
  journal->Violate(absl::StrCat(
      worker, ": in the end there are ", view.num_attempts, " attempts, ",
      view.holders.size(), " holders, ", view.pool->num_in_use(),
      " blocks in use, ", view.transfers_open, " open and ",
      view.transfers_quarantined, " quarantined transfers, ",
      view.num_waiting_swapped, " swapped sequences, ",
      view.staged_holders.size(), " holders of staged blocks"));
}

}  // namespace baton::sim
