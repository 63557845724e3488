// Planned prompts as prefix caches know them. An entry stands for the block of
// a trace (PlannedRequest::prefix) and all blocks before it in the same prompt:
// two prompts have an entry in common exactly when they begin alike up to its
// end.
//
// Whole blocks only. Prompts whose blocks have another size than the first one
// with blocks share nothing.
//
// Const after construction; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "workload/planned_request.h"

namespace baton::planner {

class PrefixChains final {
 public:
  // Of no request.
  PrefixChains() = default;
  explicit PrefixChains(absl::Span<const workload::PlannedRequest> requests);

  // Whether no request has an entry.
  bool empty() const { return entries_.empty(); }
  // Tokens of an entry.
  int32_t entry_tokens() const { return entry_tokens_; }
  // How many there are; they go by number, from 0.
  uint32_t num_entries() const { return num_entries_; }

  // The entries of a request's prompt, first things first.
  absl::Span<const uint32_t> Of(uint32_t request) const {
    if (entries_.empty()) return {};
    return absl::MakeConstSpan(entries_).subspan(
        begin_[request], begin_[request + 1] - begin_[request]);
  }

 private:
  int32_t entry_tokens_ = 0;
  uint32_t num_entries_ = 0;
  std::vector<size_t> begin_;  // by request, and the end
  std::vector<uint32_t> entries_;
};

}  // namespace baton::planner
