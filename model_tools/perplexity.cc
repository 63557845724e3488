#include "model_tools/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "model_tools/model_costs.h"

namespace baton::model_tools {
namespace {

using Clock = std::chrono::steady_clock;

// Runs the tokens of one window, of which targets has each one's next, and
// appends the negative log-probabilities of those from `skip` on.
absl::Status ScoreWindow(engine::Engine* engine,
                         absl::Span<const TokenId> tokens,
                         absl::Span<const TokenId> targets, int64_t skip,
                         absl::Span<const BlockId> blocks, int32_t chunk,
                         std::vector<float>* scores) {
  const auto size = static_cast<int64_t>(tokens.size());
  for (int64_t begin = 0; begin < size; begin += chunk) {
    const int64_t count = std::min<int64_t>(chunk, size - begin);
    scheduling::PlannedSequence planned;
    planned.sequence = SequenceId{1};
    planned.tokens = tokens.subspan(begin, count);
    planned.first_position = static_cast<int32_t>(begin);
    planned.blocks = blocks;
    if (!engine->adapters().empty()) planned.adapter = 0;
    // Nobody asks what follows the tokens that another window scores.
    if (begin + count > skip) planned.targets = targets.subspan(begin, count);
    scheduling::StepPlan plan;
    plan.sequences.push_back(planned);
    const scheduling::StepResult result = engine->Execute(plan, [](int32_t) {});
    if (planned.targets.empty()) continue;
    CHECK_EQ(result.target_logprobs.size(), 1u);
    const std::vector<float>& logprobs = result.target_logprobs[0];
    CHECK_EQ(static_cast<int64_t>(logprobs.size()), count);
    for (int64_t i = std::max<int64_t>(0, skip - begin); i < count; ++i) {
      if (std::isnan(logprobs[i])) {
        return absl::InternalError(
            "the model's logits are not finite; its weights may be broken");
      }
      scores->push_back(-logprobs[i]);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckText(const engine::ModelConfig& config,
                       absl::Span<const TokenId> tokens,
                       const PerplexityOptions& options) {
  if (tokens.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a text of ", tokens.size(), " tokens; at least 2 are needed"));
  }
  for (const TokenId token : tokens) {
    if (token < 0 || token >= config.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the text has token ", token, "; the model has ", config.vocab_size));
    }
  }
  if (options.window < 2 || options.window > config.max_position) {
    return absl::InvalidArgumentError(
        absl::StrCat("a window of ", options.window, " tokens: from 2 to ",
                     config.max_position, ", the longest of the model"));
  }
  if (options.stride < 1 || options.stride >= options.window) {
    return absl::InvalidArgumentError(
        absl::StrCat("a stride of ", options.stride, " tokens: from 1 to ",
                     options.window - 1, ", less than the window"));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<ScoredWindow> CutWindows(int64_t num_tokens, int32_t window,
                                     int32_t stride) {
  std::vector<ScoredWindow> windows;
  int64_t scored = 1;  // nothing stands before the first token
  for (int64_t begin = 0; scored < num_tokens; begin += stride) {
    const int64_t end = std::min<int64_t>(begin + window, num_tokens);
    CHECK_LT(begin, scored);
    windows.push_back({begin, end, scored});
    scored = end;
  }
  return windows;
}

Perplexity SummarizeScores(absl::Span<const float> scores) {
  Perplexity result;
  result.scored = static_cast<int64_t>(scores.size());
  if (scores.empty()) return result;
  const auto n = static_cast<double>(scores.size());
  result.mean = std::accumulate(scores.begin(), scores.end(), 0.0) / n;
  double squares = 0;
  for (const float score : scores) {
    squares += (score - result.mean) * (score - result.mean);
  }
  if (n > 1) result.mean_error = std::sqrt(squares / (n - 1) / n);
  result.value = std::exp(result.mean);
  result.error = result.value * result.mean_error;
  return result;
}

absl::StatusOr<Perplexity> MeasurePerplexity(
    engine::Engine* engine, absl::Span<const TokenId> tokens,
    const PerplexityOptions& options,
    absl::FunctionRef<void(const Perplexity&)> progress) {
  BATON_RETURN_IF_ERROR(CheckText(engine->model(), tokens, options));
  const engine::KvLayout& layout = engine->kv_layout();
  std::vector<BlockId> blocks(layout.BlocksFor(options.window));
  CHECK_LE(static_cast<int32_t>(blocks.size()), layout.num_blocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::vector<float> scores;
  int64_t run = 0;
  Perplexity result;
  const Clock::time_point begin = Clock::now();
  for (const ScoredWindow& window :
       CutWindows(static_cast<int64_t>(tokens.size()), options.window,
                  options.stride)) {
    // The last token is scored, and needs not be run.
    const int64_t count = window.end - window.begin - 1;
    BATON_RETURN_IF_ERROR(ScoreWindow(engine,
                                      tokens.subspan(window.begin, count),
                                      tokens.subspan(window.begin + 1, count),
                                      window.first_scored - window.begin - 1,
                                      blocks, options.chunk, &scores));
    run += count;
    result = SummarizeScores(scores);
    result.run = run;
    result.seconds =
        std::chrono::duration<double>(Clock::now() - begin).count();
    progress(result);
  }
  return result;
}

absl::StatusOr<std::unique_ptr<engine::Engine>> CreateScoringEngine(
    engine::EngineOptions engine_options, PerplexityOptions* options) {
  BATON_ASSIGN_OR_RETURN(const engine::ModelConfig config,
                         engine::LoadModelConfig(engine_options.model_dir));
  options->window = std::min(options->window, config.max_position);
  options->stride = std::min(options->stride, options->window - 1);
  // Engines refuse names that are none.
  const engine::KvDtype kv_dtype = engine::ParseKvDtype(engine_options.kv_dtype)
                                       .value_or(engine::KvDtype::kBf16);
  const engine::KvLayout layout =
      MakeKvLayout(config, kv_dtype, engine_options.block_size, 1);
  engine_options.kv_memory_bytes =
      layout.BlocksFor(options->window) * layout.block_bytes();
  return engine::CreateEngine(engine_options);
}

}  // namespace baton::model_tools
