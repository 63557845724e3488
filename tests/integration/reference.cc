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
#include "router/output_format/response_grammars.h"
#include "router/text/tokenizer.h"
#include "scheduling/grammar_automaton.h"
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

class Reference::Format {
 public:
  Format(const v1::ResponseFormat& format, const std::string& model_dir,
         int32_t vocab_size)
      : vocab_size_(vocab_size) {
    auto tokenizer = router::Tokenizer::Load(model_dir);
    CHECK(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    const auto grammar = router::MakeGrammar(format);
    CHECK(grammar.ok()) << grammar.status();
    auto automaton = scheduling::GrammarAutomaton::Make(**grammar);
    CHECK(automaton.ok()) << automaton.status();
    automaton_ = *std::move(automaton);
    state_ = automaton_->start();
  }

  // Null: none but those that end it, if it may be over.
  std::shared_ptr<const scheduling::TokenMask> Allowed(
      const std::vector<TokenId>& stop, bool may_stop) {
    std::vector<TokenId> tokens;
    for (TokenId token = 0; token < vocab_size_; ++token) {
      if (Behind(token) != scheduling::GrammarAutomaton::kNone) {
        tokens.push_back(token);
      }
    }
    if (tokens.empty()) return nullptr;
    if (may_stop && automaton_->MayEnd(state_)) {
      tokens.insert(tokens.end(), stop.begin(), stop.end());
    }
    return std::make_shared<scheduling::TokenMask>(vocab_size_, tokens);
  }

  void Take(TokenId token) { state_ = Behind(token); }
  bool over() const { return automaton_->MustEnd(state_); }

 private:
  scheduling::GrammarAutomaton::State Behind(TokenId token) {
    const std::string text =
        tokenizer_->IsSpecial(token) ? "" : tokenizer_->TokenBytes(token);
    if (text.empty()) return scheduling::GrammarAutomaton::kNone;
    return automaton_->Next(state_, text);
  }

  const int32_t vocab_size_;
  std::unique_ptr<router::Tokenizer> tokenizer_;
  std::unique_ptr<scheduling::GrammarAutomaton> automaton_;
  scheduling::GrammarAutomaton::State state_ = 0;
};

absl::StatusOr<std::unique_ptr<Reference>> Reference::Load(
    const std::string& model_dir, const std::string& weights,
    const std::string& kv_dtype,
    const std::vector<engine::AdapterSource>& adapters) {
  engine::EngineOptions options;
  options.adapters = adapters;
  options.model_dir = model_dir;
  options.weights = weights;
  options.kv_dtype = kv_dtype;
  options.num_threads = 1;
  options.kv_memory_bytes = int64_t{16} << 20;
  // The cluster's own default is another one: the answer may not depend on it.
  options.block_size = 32;
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<engine::Engine> engine,
                         engine::CreateEngine(options));
  return std::make_unique<Reference>(std::move(engine), model_dir);
}

Reference::Reference(std::unique_ptr<engine::Engine> engine,
                     std::string model_dir)
    : engine_(std::move(engine)),
      model_dir_(std::move(model_dir)),
      blocks_(engine_->kv_layout().num_blocks) {
  std::iota(blocks_.begin(), blocks_.end(), 0);
}

int32_t Reference::AdapterOf(const v1::GenerateRequest& request) const {
  for (size_t i = 0; i < engine_->adapters().size(); ++i) {
    if (engine_->adapters()[i].name == request.model()) {
      return static_cast<int32_t>(i);
    }
  }
  return scheduling::kNoAdapter;
}

std::vector<std::vector<scheduling::TokenLogprob>> Reference::PromptLogprobs(
    const v1::GenerateRequest& request) {
  if (!request.has_prompt_logprobs()) return {};
  const auto [known, added] =
      prompt_logprobs_.try_emplace(request.SerializeAsString());
  if (!added) return known->second;
  const std::vector<TokenId> prompt(request.token_ids().ids().begin(),
                                    request.token_ids().ids().end());
  scheduling::PlannedSequence planned;
  planned.sequence = SequenceId{next_sequence_++};
  planned.tokens = prompt;
  planned.blocks = blocks_;
  planned.adapter = AdapterOf(request);
  planned.targets = absl::MakeConstSpan(prompt).subspan(1);
  planned.target_top_logprobs = static_cast<int32_t>(request.prompt_logprobs());
  scheduling::StepPlan plan;
  plan.sequences = {planned};
  const scheduling::StepResult result = engine_->Execute(plan, [](int32_t) {});
  std::vector<std::vector<scheduling::TokenLogprob>>& logprobs = known->second;
  for (size_t i = 1; i < prompt.size(); ++i) {
    logprobs.push_back({{prompt[i], result.target_logprobs[0][i - 1]}});
    if (result.target_top[0].empty()) continue;
    const auto& top = result.target_top[0][i - 1];
    logprobs.back().insert(logprobs.back().end(), top.begin(), top.end());
  }
  return logprobs;
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
  const auto [known, added] = sampled_.try_emplace(request.SerializeAsString());
  if (added) known->second = Compute(request);
  return known->second;
}

std::vector<scheduling::SampledToken> Reference::Compute(
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
  planned.adapter = AdapterOf(request);
  planned.allowed = sampling.allowed.get();
  std::optional<Format> format;
  if (request.has_response_format()) {
    CHECK(sampling.allowed == nullptr) << "one of the two";
    format.emplace(request.response_format(), model_dir_,
                   engine_->model().vocab_size);
  }
  std::shared_ptr<const scheduling::TokenMask> allowed;
  planned.top_logprobs = static_cast<int32_t>(request.top_logprobs());
  std::vector<scheduling::SampledToken> output;
  int32_t computed = 0;
  std::optional<scheduling::FinishReason> finished;
  while (!finished.has_value()) {
    const bool may_stop =
        static_cast<int32_t>(output.size()) >= stop.min_output_tokens;
    planned.forbidden = may_stop ? absl::Span<const TokenId>()
                                 : absl::MakeConstSpan(stop.stop_token_ids);
    if (format.has_value()) {
      allowed = format->Allowed(stop.stop_token_ids, may_stop);
      CHECK(allowed != nullptr);
      planned.allowed = allowed.get();
    }
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
    if (format.has_value() && finished != scheduling::FinishReason::kStop) {
      format->Take(history.back());
      if (format->over()) finished = scheduling::FinishReason::kStop;
    }
  }
  return output;
}

}  // namespace baton::test
