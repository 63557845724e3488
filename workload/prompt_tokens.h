// The tokens of a planned prompt: the same for the same workload, seed and
// request, wherever they are made; equal prefixes where the trace says so.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "workload/planned_request.h"

namespace baton::workload {

// Ids [first, first + count) stand for ordinary tokens of the model.
struct TokenRange {
  uint32_t first = 100;
  uint32_t count = 1900;  // > 0
};

// `number` is the request's place in the workload: prompts that share nothing
// differ by it.
std::vector<uint32_t> PromptTokens(const PlannedRequest& request,
                                   uint64_t number, uint64_t seed,
                                   const TokenRange& range);

// English words, for servers that take no token ids: one word for each token,
// which most tokenizers make about one token of.
std::string PromptText(const PlannedRequest& request, uint64_t number,
                       uint64_t seed);

}  // namespace baton::workload
