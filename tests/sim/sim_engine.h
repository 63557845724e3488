// An engine whose answers prove what it read. It writes into each token's KV
// slot a hash of the token, its place, its adapter and all before it, and draws
// the next token from a hash of the KV bytes that it reads back through the
// block table, of all layers and positions. So a sequence that decodes on
// partial, stale or foreign KV gives other tokens than ReferenceOutput, which
// knows no cluster and no KV memory.
//
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/engine.h"
#include "scheduling/request.h"
#include "tests/sim/sim_stage.h"

namespace baton::sim {

inline constexpr int32_t kNumLayers = 2;
inline constexpr int32_t kBlockSize = 16;
inline constexpr int32_t kVocabSize = 4000;
// Most positions of a sequence.
inline constexpr int32_t kMaxPosition = 96;

// Adapters of those engines that have some; spec.adapter names them.
inline constexpr const char* kAdapterIdentities[] = {"A0", "A1"};
// Of a sequence with such a salt (router/prefix_salt.h), as PlannedSequence.
int32_t AdapterOfSalt(absl::string_view salt);

// The right output of a request.
std::vector<TokenId> ReferenceOutput(const scheduling::RequestSpec& spec);

// The `count` "likeliest" tokens beside output token `token` of index `index`:
// others for each of these, so that none passes for another's.
std::vector<scheduling::TokenLogprob> ReferenceTop(uint64_t seed, int32_t index,
                                                   TokenId token,
                                                   int32_t count);

// The right log-probabilities of a request's prompt: of each of its tokens but
// the first, and behind it of spec.prompt_logprobs others. None when it asks
// for none.
std::vector<std::vector<scheduling::TokenLogprob>> ReferencePromptLogprobs(
    const scheduling::RequestSpec& spec);

class SimEngine final : public engine::Engine {
 public:
  struct Hooks {
    // Before a step runs.
    std::function<void(const scheduling::StepPlan&)> on_plan;
    // Between two layers: what the world does meanwhile.
    std::function<void()> interlude;
    // Of engines with a stage: SimStage's chance.
    std::function<bool()> copied = nullptr;
    // And for steps that run ahead. Whether something that may happen does,
    // with that probability.
    std::function<bool(double)> chance = nullptr;
    // Before such a step runs, which is at any time until it is awaited.
    std::function<void(const scheduling::StepPlan&)> on_ahead = nullptr;
    // When a guess at what a sequence says next was right.
    std::function<void()> on_right_guess = nullptr;
    // When it guesses itself (StepPlan::draft).
    std::function<void()> on_model_guess = nullptr;
  };

  // With `staged_blocks` its KV lies on a device, with such a stage.
  SimEngine(int32_t num_blocks, Hooks hooks, int32_t staged_blocks = 0,
            bool has_adapters = true);

  const engine::ModelConfig& model() const override { return model_; }
  const std::string& model_identity() const override { return identity_; }
  const std::string& backend_name() const override { return backend_; }
  const engine::KvLayout& kv_layout() const override { return layout_; }
  absl::Span<const engine::AdapterInfo> adapters() const override {
    return adapters_;
  }
  absl::Span<std::byte> kv_memory() override {
    return stage_ != nullptr ? absl::Span<std::byte>() : memory();
  }
  SimStage* kv_stage() const override { return stage_.get(); }
  bool runs_on_device() const override { return stage_ != nullptr; }
  int32_t max_drafts() const override { return engine::kMaxDrafts; }
  // To guess with; every other guess is wrong, and so is the KV of it.
  bool has_draft_weights() const override { return has_draft_weights_; }
  void SetDraftWeights(bool there) { has_draft_weights_ = there; }
  // Wherever it lies.
  absl::Span<std::byte> memory() { return absl::MakeSpan(memory_); }

  scheduling::StepResult Execute(const scheduling::StepPlan& plan,
                                 LayerHook on_layer_done) override;

  scheduling::StepResult ExecuteBeside(
      const scheduling::StepPlan& plan, LayerHook on_layer_done,
      absl::FunctionRef<void()> meanwhile) override;
  // Now and then refuses. A step now and then has a token run again.
  bool runs_ahead() const override { return runs_on_device() && hooks_.chance; }
  bool RunAhead(const scheduling::StepPlan& plan) override;
  scheduling::StepResult Await(absl::FunctionRef<void()> meanwhile) override;

  // Whether `block` holds the KV of these tokens, the first of them at
  // `position`, with that adapter, behind what block `before` holds. `before`
  // is not looked at for position 0.
  bool HasKvOf(absl::Span<const TokenId> tokens, int32_t position,
               int32_t adapter, BlockId block, BlockId before) const;

 private:
  // A step that was given and has not run, with all that it reads.
  struct Ahead {
    struct Part {
      scheduling::SamplingParams sampling;
      std::vector<BlockId> blocks;
      std::vector<TokenId> forbidden;
      // Where it stands among the output, and, once it is known, the token.
      std::vector<TokenId> history;
    };
    scheduling::StepPlan plan;
    std::vector<std::unique_ptr<Part>> parts;
  };

  // Runs `ahead` behind the step with that result.
  scheduling::StepResult Run(Ahead* ahead,
                             const scheduling::StepResult& before);
  // Behind a step that is done: if it was ahead or one is, some of its logits
  // are gone, and the other may run.
  void FollowUp(bool was_ahead, scheduling::StepResult* result);
  std::byte* SlotOf(const scheduling::PlannedSequence& planned, int32_t layer,
                    int32_t position);
  void Write(const scheduling::PlannedSequence& planned, int32_t layer,
             bool wrong = false);
  // With weights of fewer bits.
  scheduling::StepResult Guess(const scheduling::StepPlan& plan);
  // What comes of the part's targets, from the KV of the tokens before them.
  void Score(const scheduling::PlannedSequence& planned,
             scheduling::StepResult* result);
  // That which `sample` says (PlannedSequence::num_samples).
  scheduling::SampledToken Sample(const scheduling::PlannedSequence& planned,
                                  int32_t sample);

  const Hooks hooks_;
  bool has_draft_weights_ = false;
  const std::string identity_ = "sim";
  const std::string backend_ = "sim";
  engine::ModelConfig model_;
  engine::KvLayout layout_;
  std::vector<engine::AdapterInfo> adapters_;
  std::vector<std::byte> memory_;
  std::unique_ptr<SimStage> stage_;  // null: there is none
  // Of the step under way, while RunAhead may be called.
  std::vector<SequenceId> running_;
  bool guesses_ = false;  // it has some
  std::optional<Ahead> ahead_;
  // What is known of the step before it; and its own result, if it has run.
  scheduling::StepResult before_;
  std::optional<scheduling::StepResult> ran_;
};

}  // namespace baton::sim
