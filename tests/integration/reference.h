// What a cluster must answer: the same engine in one process, which runs a
// whole prompt in one step and then decodes token by token, one sequence at a
// time. What it was asked before it knows.
//
// One thread at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "baton/v1/inference.pb.h"
#include "common/ids.h"
#include "engine/engine.h"
#include "engine/engine_factory.h"
#include "scheduling/request.h"
#include "scheduling/step_plan.h"

namespace baton::test {

class Reference final {
 public:
  static absl::StatusOr<std::unique_ptr<Reference>> Load(
      const std::string& model_dir, const std::string& weights = "auto",
      const std::string& kv_dtype = "bf16",
      const std::vector<engine::AdapterSource>& adapters = {});

  // Of this engine, which loaded the model in that directory.
  Reference(std::unique_ptr<engine::Engine> engine, std::string model_dir);

  // The output tokens for a request with token ids, max_tokens, and every
  // sampling field set that is not neutral, with what comes with each. The
  // model's end-of-text tokens end it unless ignore_eos. Stop strings are not
  // looked at. What the answer may be (response_format) is tried out token by
  // token. `model` may name an adapter.
  std::vector<scheduling::SampledToken> Sampled(
      const v1::GenerateRequest& request);
  std::vector<TokenId> Tokens(const v1::GenerateRequest& request);

  // Of each token of the request's prompt but the first: its log-probability,
  // and behind it those of the prompt_logprobs likeliest in its place. None
  // when it asks for none.
  std::vector<std::vector<scheduling::TokenLogprob>> PromptLogprobs(
      const v1::GenerateRequest& request);

  const engine::ModelConfig& model() const { return engine_->model(); }

 private:
  std::vector<scheduling::SampledToken> Compute(
      const v1::GenerateRequest& request);
  int32_t AdapterOf(const v1::GenerateRequest& request) const;

  // Which tokens may follow `output` in an answer of that format, and end it.
  class Format;

  std::unique_ptr<engine::Engine> engine_;
  const std::string model_dir_;
  std::vector<BlockId> blocks_;
  uint64_t next_sequence_ = 1;
  // By the request's bytes.
  std::map<std::string, std::vector<scheduling::SampledToken>> sampled_;
  std::map<std::string, std::vector<std::vector<scheduling::TokenLogprob>>>
      prompt_logprobs_;
};

}  // namespace baton::test
