#include "planner/prefix_chains.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace baton::planner {

PrefixChains::PrefixChains(
    absl::Span<const workload::PlannedRequest> requests) {
  const auto first =
      std::find_if(requests.begin(), requests.end(), [](const auto& request) {
        return !request.prefix.empty() && request.prefix_block > 0;
      });
  if (first == requests.end()) return;
  entry_tokens_ = first->prefix_block;
  // By the entry before, plus one, and the trace's name of the block.
  absl::flat_hash_map<std::pair<uint32_t, uint64_t>, uint32_t> numbers;
  begin_.reserve(requests.size() + 1);
  for (const workload::PlannedRequest& request : requests) {
    begin_.push_back(entries_.size());
    if (request.prefix_block != entry_tokens_) continue;
    const size_t count =
        std::min(request.prefix.size(),
                 static_cast<size_t>(request.prompt_tokens / entry_tokens_));
    uint32_t before = 0;
    for (size_t i = 0; i < count; ++i) {
      const auto [at, is_new] =
          numbers.emplace(std::pair(before, request.prefix[i]), num_entries_);
      if (is_new) ++num_entries_;
      entries_.push_back(at->second);
      before = at->second + 1;
    }
  }
  begin_.push_back(entries_.size());
}

}  // namespace baton::planner
