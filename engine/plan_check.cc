#include "engine/plan_check.h"

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "common/log.h"

namespace baton::engine {
namespace {

// With `ahead`, of what follows a running step.
void Check(const scheduling::StepPlan& plan, const ModelConfig& config,
           const KvLayout& layout, bool ahead, int32_t max_drafts) {
  absl::flat_hash_set<SequenceId> seen;
  for (const scheduling::PlannedSequence& s : plan.sequences) {
    CHECK(seen.insert(s.sequence).second) << "a sequence is planned twice";
    CHECK_EQ(s.follows, ahead);
    CHECK(!s.tokens.empty());
    CHECK(!ahead || (s.tokens.size() == 1 && s.sample && s.targets.empty()));
    CHECK(s.num_drafts == 0 ||
          (s.num_drafts > 0 && !ahead && s.sample && s.targets.empty() &&
           s.tokens.size() == 1 + static_cast<size_t>(s.num_drafts)))
        << s.num_drafts << " drafts";
    CHECK_LE(s.num_drafts, max_drafts);
    CHECK(!plan.draft ||
          (!ahead && s.tokens.size() == 1 && s.sample && s.targets.empty()));
    CHECK_GE(s.first_position, 0);
    const int64_t end = s.first_position + int64_t(s.tokens.size());
    CHECK_LE(end, config.max_position);
    for (const TokenId token : s.tokens) {
      CHECK(token >= 0 && token < config.vocab_size) << token;
    }
    CHECK_LE(s.targets.size(), s.tokens.size()) << "targets";
    CHECK_GE(s.target_top_logprobs, 0);
    CHECK_LE(s.target_top_logprobs, scheduling::kMaxTopLogprobs);
    for (const TokenId target : s.targets) {
      CHECK(target >= 0 && target < config.vocab_size) << target;
    }
    const int32_t num_blocks = layout.BlocksFor(end);
    CHECK_GE(s.blocks.size(), static_cast<size_t>(num_blocks));
    for (const BlockId block : s.blocks.first(num_blocks)) {
      CHECK(block >= 0 && block < layout.num_blocks) << block;
    }
    if (!s.sample) continue;
    CHECK(s.sampling != nullptr);
    CHECK(!s.history.empty());
    const int64_t known = ahead ? end - 1 : end - s.num_drafts;
    if (!ahead) {
      CHECK_EQ(s.history.back(), s.tokens[s.tokens.size() - 1 - s.num_drafts]);
    }
    CHECK_EQ(static_cast<int64_t>(s.history.size()), known);
    CHECK(s.allowed_after_drafts.empty() ||
          s.allowed_after_drafts.size() == static_cast<size_t>(s.num_drafts));
    for (int32_t i = 0; i <= s.num_drafts; ++i) {
      const scheduling::TokenMask* const allowed = s.AllowedOf(i);
      CHECK(allowed == nullptr || allowed->vocab_size() == config.vocab_size)
          << allowed->vocab_size();
    }
    CHECK(s.prompt_length >= 1 &&
          s.prompt_length <= static_cast<int64_t>(s.history.size()))
        << s.prompt_length;
  }
}

}  // namespace

void CheckPlan(const scheduling::StepPlan& plan, const ModelConfig& config,
               const KvLayout& layout, int32_t max_drafts,
               absl::Span<const AdapterInfo> adapters) {
  Check(plan, config, layout, /*ahead=*/false, max_drafts);
  for (const scheduling::PlannedSequence& s : plan.sequences) {
    if (s.adapter == scheduling::kNoAdapter) continue;
    CHECK(s.adapter >= 0 && s.adapter < static_cast<int32_t>(adapters.size()) &&
          !adapters[s.adapter].name.empty())
        << "adapter " << s.adapter;
  }
}

void CheckPlanAhead(const scheduling::StepPlan& plan, const ModelConfig& config,
                    const KvLayout& layout) {
  Check(plan, config, layout, /*ahead=*/true, /*max_drafts=*/0);
}

}  // namespace baton::engine
