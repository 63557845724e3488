#include "tests/integration/reference.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "engine/engine_factory.h"
#include "scheduling/step_plan.h"

namespace baton::test {
namespace {

scheduling::SamplingParams SamplingOf(const v1::SamplingParams& in,
                                      int32_t vocab_size) {
  scheduling::SamplingParams out;
  if (in.has_temperature()) out.temperature = in.temperature();
  if (in.has_top_k()) out.top_k = static_cast<int32_t>(in.top_k());
  if (in.has_top_p()) out.top_p = in.top_p();
  if (in.has_min_p()) out.min_p = in.min_p();
  if (in.has_repetition_penalty()) {
    out.repetition_penalty = in.repetition_penalty();
  }
  if (in.has_presence_penalty()) out.presence_penalty = in.presence_penalty();
  if (in.has_frequency_penalty()) {
    out.frequency_penalty = in.frequency_penalty();
  }
  out.seed = in.seed();
  for (const auto& [token, bias] : in.logit_bias()) {
    out.logit_bias.push_back({static_cast<TokenId>(token), bias});
  }
  if (!in.allowed_token_ids().empty()) {
    const std::vector<TokenId> allowed(in.allowed_token_ids().begin(),
                                       in.allowed_token_ids().end());
    out.allowed = std::make_shared<scheduling::TokenMask>(vocab_size, allowed);
  }
  std::sort(out.logit_bias.begin(), out.logit_bias.end(),
            [](const auto& a, const auto& b) { return a.token < b.token; });
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Reference>> Reference::Load(
    const std::string& model_dir, const std::string& weights,
    const std::string& kv_dtype) {
  engine::EngineOptions options;
  options.model_dir = model_dir;
  options.weights = weights;
  options.kv_dtype = kv_dtype;
  options.num_threads = 1;
  options.kv_memory_bytes = int64_t{16} << 20;
  // The cluster's own default is another one: the answer may not depend on it.
  options.block_size = 32;
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<engine::Engine> engine,
                         engine::CreateEngine(options));
  return std::unique_ptr<Reference>(new Reference(std::move(engine)));
}

Reference::Reference(std::unique_ptr<engine::Engine> engine)
    : engine_(std::move(engine)), blocks_(engine_->kv_layout().num_blocks) {
  std::iota(blocks_.begin(), blocks_.end(), 0);
}

std::vector<TokenId> Reference::Tokens(const v1::GenerateRequest& request) {
  std::vector<TokenId> tokens;
  for (const scheduling::SampledToken& t : Sampled(request)) {
    tokens.push_back(t.token);
  }
  return tokens;
}

std::vector<scheduling::SampledToken> Reference::Sampled(
    const v1::GenerateRequest& request) {
  std::vector<TokenId> history(request.token_ids().ids().begin(),
                               request.token_ids().ids().end());
  const auto prompt_length = static_cast<int32_t>(history.size());
  const scheduling::SamplingParams sampling =
      SamplingOf(request.sampling(), engine_->model().vocab_size);
  scheduling::StopParams stop;
  stop.max_output_tokens = static_cast<int32_t>(request.max_tokens());
  if (!request.ignore_eos()) {
    stop.stop_token_ids = engine_->model().eos_token_ids;
  }
  for (uint32_t id : request.stop_token_ids()) {
    stop.stop_token_ids.push_back(static_cast<TokenId>(id));
  }
  stop.min_output_tokens = static_cast<int32_t>(request.min_tokens());
  CHECK_LE(
      engine_->kv_layout().BlocksFor(prompt_length + stop.max_output_tokens),
      engine_->kv_layout().num_blocks);

  scheduling::PlannedSequence planned;
  planned.sequence = SequenceId{next_sequence_++};
  planned.blocks = blocks_;
  planned.sample = true;
  planned.sampling = &sampling;
  planned.prompt_length = prompt_length;
  planned.allowed = sampling.allowed.get();
  planned.top_logprobs = static_cast<int32_t>(request.top_logprobs());
  std::vector<scheduling::SampledToken> output;
  int32_t computed = 0;
  std::optional<scheduling::FinishReason> finished;
  while (!finished.has_value()) {
    const bool may_stop =
        static_cast<int32_t>(output.size()) >= stop.min_output_tokens;
    planned.forbidden = may_stop ? absl::Span<const TokenId>()
                                 : absl::MakeConstSpan(stop.stop_token_ids);
    planned.tokens = absl::MakeConstSpan(history).subspan(computed);
    planned.first_position = computed;
    planned.history = history;
    scheduling::StepPlan plan;
    plan.sequences = {planned};
    const scheduling::StepResult result =
        engine_->Execute(plan, [](int32_t) {});
    CHECK_EQ(result.sampled.size(), 1u);
    CHECK(result.sampled[0].ok);
    computed = static_cast<int32_t>(history.size());
    history.push_back(result.sampled[0].token);
    output.push_back(result.sampled[0]);
    finished = scheduling::CheckFinished(
        stop, static_cast<int32_t>(output.size()), history.back());
  }
  return output;
}

}  // namespace baton::test
