// A golden model and its expected answers (README.md), for tests.
#pragma once

#include <string>
#include <vector>

#include "common/ids.h"

namespace baton::engine {

struct GoldenPrompt {
  std::vector<TokenId> tokens;
  // logits[position][token], one row per prompt token.
  std::vector<std::vector<float>> logits;
  // The greedy continuation and the gap of the two best logits at each step.
  std::vector<TokenId> greedy;
  std::vector<float> gaps;
  // What chose greedy.back().
  std::vector<float> last_greedy_logits;
};

struct GoldenModel {
  std::string name;
  std::string dir;
  // Of the LoRA adapter that its answers are computed with; empty: none.
  std::string adapter_dir;
  // Allowed deviation of one logit, and root mean square over all.
  float max_error = 0;
  float rms_error = 0;
  std::vector<GoldenPrompt> prompts;
};

// Names of the directories under tests/golden/models.
const std::vector<std::string>& GoldenModelNames();

// Names of the directories under tests/golden/adapters.
const std::vector<std::string>& GoldenAdapterNames();
// Both.
std::vector<std::string> GoldenNames();

// CHECK-fails when the files of the repository are not as they should be.
GoldenModel LoadGoldenModel(const std::string& name);

}  // namespace baton::engine
