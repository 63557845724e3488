// Merging of long words: a linked list of symbols and a queue of possible
// merges, O(n log n). Words come from the outside, so that a quadratic merge
// would let one long "word" stall the router.

#include <queue>
#include <vector>

#include "router/text/bpe_model.h"

namespace baton::router {
namespace {

constexpr int32_t kNoNeighbor = -1;

struct Symbol {
  TokenId id;
  int32_t previous;
  int32_t next;
  bool removed;
};

// A merge of the symbol at `position` with the one after it, as it was possible
// when the candidate was made.
struct Candidate {
  int32_t rank;
  int32_t position;
  TokenId merged;
};

// Lowest rank first, leftmost among equals.
struct ComesLater {
  bool operator()(const Candidate& a, const Candidate& b) const {
    if (a.rank != b.rank) return a.rank > b.rank;
    return a.position > b.position;
  }
};

std::vector<Symbol> LinkSymbols(const std::vector<TokenId>& ids) {
  const int32_t size = static_cast<int32_t>(ids.size());
  std::vector<Symbol> list;
  list.reserve(ids.size());
  for (int32_t i = 0; i < size; ++i) {
    list.push_back({ids[i], i - 1, i + 1 < size ? i + 1 : kNoNeighbor, false});
  }
  return list;
}

}  // namespace

void BpeModel::MergeLongWord(std::vector<TokenId>* symbols) const {
  std::vector<Symbol> list = LinkSymbols(*symbols);
  std::priority_queue<Candidate, std::vector<Candidate>, ComesLater> queue;
  const auto consider = [&](int32_t position) {
    if (position == kNoNeighbor || list[position].next == kNoNeighbor) return;
    const Merge* merge =
        FindMerge(list[position].id, list[list[position].next].id);
    if (merge != nullptr) queue.push({merge->rank, position, merge->merged});
  };
  for (int32_t i = 0; i < static_cast<int32_t>(list.size()); ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = list[best.position];
    if (left.removed || left.next == kNoNeighbor) continue;
    Symbol& right = list[left.next];
    const Merge* merge = FindMerge(left.id, right.id);
    // The neighbours have changed since the candidate was made.
    if (merge == nullptr || merge->merged != best.merged) continue;
    left.id = best.merged;
    left.next = right.next;
    right.removed = true;
    if (right.next != kNoNeighbor) list[right.next].previous = best.position;
    consider(left.previous);
    consider(best.position);
  }
  symbols->clear();
  for (const Symbol& symbol : list) {
    if (!symbol.removed) symbols->push_back(symbol.id);
  }
}

}  // namespace baton::router
