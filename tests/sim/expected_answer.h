// What a client must be answered, from the reference alone: which tokens, which
// text, and where a stop string ends it. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "router/answer_options.h"
#include "scheduling/request.h"

namespace baton::sim {

struct ExpectedAnswer {
  std::vector<TokenId> tokens;
  // Without the stop string, and what is behind it.
  std::string text;
  scheduling::FinishReason reason = scheduling::FinishReason::kLength;
  // The stop string that ends it; empty: none does.
  std::string stop;
};

ExpectedAnswer ExpectAnswer(const scheduling::RequestSpec& spec,
                            const router::AnswerOptions& options);

}  // namespace baton::sim
