#include "tests/sim/sim_engine.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "common/log.h"
#include "tests/sim/mix.h"

namespace baton::sim {
namespace {

using scheduling::PlannedSequence;
using scheduling::SampledToken;
using scheduling::StepPlan;
using scheduling::StepResult;
using scheduling::TokenLogprob;

constexpr size_t kSlotBytes = 64;
using SlotWords = std::array<uint64_t, kSlotBytes / sizeof(uint64_t)>;

uint64_t Digest(const SlotWords& slot) {
  uint64_t hash = 0;
  for (uint64_t word : slot) hash = Mix(hash, word);
  return hash;
}

// What a token's slot holds; `before` is the digest of the slot of the position
// before it in the same layer, 0 for the first.
SlotWords SlotContent(uint64_t before, TokenId token, int32_t position,
                      int32_t layer, int32_t adapter) {
  uint64_t hash = Mix(before, static_cast<uint64_t>(token));
  hash = Mix(hash, static_cast<uint64_t>(adapter - scheduling::kNoAdapter));
  hash = Mix(hash, static_cast<uint64_t>(position));
  hash = Mix(hash, static_cast<uint64_t>(layer));
  SlotWords slot;
  for (size_t i = 0; i < slot.size(); ++i) slot[i] = Mix(hash, i);
  return slot;
}

// The token number `index` of an output, from the digests of all slots of each
// layer; none of `forbidden`. Of a third of all requests a few tokens come
// again and again, so that there is something to guess.
TokenId Draw(const std::array<uint64_t, kNumLayers>& layers, uint64_t seed,
             int32_t index, absl::Span<const TokenId> forbidden) {
  uint64_t hash = Mix(seed, static_cast<uint64_t>(index));
  for (uint64_t layer : layers) hash = Mix(hash, layer);
  const int32_t tokens = seed % 3 == 0 ? 5 : kVocabSize;
  for (;;) {
    const auto token = static_cast<TokenId>(hash % tokens);
    if (std::find(forbidden.begin(), forbidden.end(), token) ==
        forbidden.end()) {
      return token;
    }
    hash = Mix(hash, 1);
  }
}

// By its identity, as PlannedSequence.
int32_t AdapterOf(absl::string_view identity) {
  for (size_t i = 0; i < std::size(kAdapterIdentities); ++i) {
    if (identity == kAdapterIdentities[i]) return static_cast<int32_t>(i);
  }
  return scheduling::kNoAdapter;
}

// Of `target` behind a position whose slots have these digests: its
// log-probability, and behind it `top` others.
std::vector<TokenLogprob> ScoreOf(
    const std::array<uint64_t, kNumLayers>& digests, TokenId target,
    int32_t top) {
  uint64_t hash = static_cast<uint64_t>(target);
  for (const uint64_t digest : digests) hash = Mix(hash, digest);
  std::vector<TokenLogprob> all = {
      {target, -static_cast<float>(hash % 4096) / 64}};
  for (int32_t i = 0; i < top; ++i) {
    hash = Mix(hash, 1);
    all.push_back({static_cast<TokenId>(hash % kVocabSize),
                   -static_cast<float>(i) - 0.5f});
  }
  return all;
}

}  // namespace

int32_t AdapterOfSalt(absl::string_view salt) {
  if (!absl::ConsumePrefix(&salt, "\xff") || salt.empty()) {
    return scheduling::kNoAdapter;
  }
  return AdapterOf(salt.substr(1, static_cast<uint8_t>(salt[0])));
}

std::vector<TokenId> ReferenceOutput(const scheduling::RequestSpec& spec) {
  std::array<uint64_t, kNumLayers> before{};
  std::array<uint64_t, kNumLayers> layers{};
  int32_t position = 0;
  const int32_t adapter = AdapterOf(spec.adapter);
  const auto run = [&](TokenId token) {
    for (int32_t layer = 0; layer < kNumLayers; ++layer) {
      before[layer] =
          Digest(SlotContent(before[layer], token, position, layer, adapter));
      layers[layer] = Mix(layers[layer], before[layer]);
    }
    ++position;
  };
  for (TokenId token : spec.prompt) run(token);
  std::vector<TokenId> output;
  for (;;) {
    const int32_t index = static_cast<int32_t>(output.size());
    absl::Span<const TokenId> forbidden;
    if (index < spec.stop.min_output_tokens) {
      forbidden = spec.stop.stop_token_ids;
    }
    const TokenId token = Draw(layers, spec.sampling.seed, index, forbidden);
    output.push_back(token);
    if (scheduling::CheckFinished(spec.stop,
                                  static_cast<int32_t>(output.size()), token)) {
      return output;
    }
    run(token);
  }
}

std::vector<scheduling::TokenLogprob> ReferenceTop(uint64_t seed, int32_t index,
                                                   TokenId token,
                                                   int32_t count) {
  const uint64_t hash = Mix(Mix(seed, static_cast<uint64_t>(index)),
                            static_cast<uint64_t>(token));
  std::vector<scheduling::TokenLogprob> top;
  for (int32_t i = 0; i < count; ++i) {
    top.push_back(
        {static_cast<TokenId>(Mix(hash, static_cast<uint64_t>(i)) % kVocabSize),
         -1.0f - static_cast<float>(i)});
  }
  return top;
}

std::vector<std::vector<TokenLogprob>> ReferencePromptLogprobs(
    const scheduling::RequestSpec& spec) {
  std::vector<std::vector<TokenLogprob>> all;
  if (!spec.prompt_logprobs.has_value()) return all;
  const int32_t adapter = AdapterOf(spec.adapter);
  std::array<uint64_t, kNumLayers> digests{};
  for (size_t i = 0; i + 1 < spec.prompt.size(); ++i) {
    for (int32_t layer = 0; layer < kNumLayers; ++layer) {
      digests[layer] =
          Digest(SlotContent(digests[layer], spec.prompt[i],
                             static_cast<int32_t>(i), layer, adapter));
    }
    all.push_back(ScoreOf(digests, spec.prompt[i + 1], *spec.prompt_logprobs));
  }
  return all;
}

SimEngine::SimEngine(int32_t num_blocks, Hooks hooks, int32_t staged_blocks,
                     bool has_adapters)
    : hooks_(std::move(hooks)) {
  if (has_adapters) {
    for (const char* identity : kAdapterIdentities) {
      adapters_.push_back({.name = identity, .identity = identity});
    }
  }
  layout_.num_layers = kNumLayers;
  layout_.num_blocks = num_blocks;
  layout_.block_size = kBlockSize;
  layout_.num_kv_heads = 1;
  layout_.head_dim = 16;
  CHECK_EQ(layout_.page_bytes(), static_cast<int64_t>(kBlockSize * kSlotBytes));
  model_.num_layers = kNumLayers;
  model_.num_kv_heads = 1;
  model_.head_dim = 16;
  model_.vocab_size = kVocabSize;
  model_.max_position = kMaxPosition;
  memory_.assign(static_cast<size_t>(layout_.total_bytes()), std::byte{0xA5});
  if (staged_blocks > 0) {
    stage_ = std::make_unique<SimStage>(layout_, memory(), staged_blocks,
                                        hooks_.copied);
  }
}

std::byte* SimEngine::SlotOf(const PlannedSequence& planned, int32_t layer,
                             int32_t position) {
  CHECK_LT(position, kMaxPosition);
  const size_t index = static_cast<size_t>(position / kBlockSize);
  CHECK_LT(index, planned.blocks.size());
  const BlockId block = planned.blocks[index];
  CHECK_GE(block, 0);
  CHECK_LT(block, layout_.num_blocks);
  return memory_.data() + layout_.PageOffset(layer, block) +
         (position % kBlockSize) * kSlotBytes;
}

void SimEngine::Write(const PlannedSequence& planned, int32_t layer,
                      bool wrong) {
  SlotWords slot;
  uint64_t before = 0;
  if (planned.first_position > 0) {
    std::memcpy(slot.data(), SlotOf(planned, layer, planned.first_position - 1),
                kSlotBytes);
    before = Digest(slot);
  }
  for (size_t i = 0; i < planned.tokens.size(); ++i) {
    const int32_t position = planned.first_position + static_cast<int32_t>(i);
    slot = SlotContent(before, planned.tokens[i], position, layer,
                       planned.adapter);
    if (wrong) slot[0] ^= 1;
    std::memcpy(SlotOf(planned, layer, position), slot.data(), kSlotBytes);
    before = Digest(slot);
  }
}

void SimEngine::Score(const PlannedSequence& planned, StepResult* result) {
  if (planned.targets.empty()) return;
  CHECK_LE(planned.targets.size(), planned.tokens.size());
  std::vector<float>& logprobs = result->target_logprobs.emplace_back();
  auto& tops = result->target_top.emplace_back();
  for (size_t i = 0; i < planned.targets.size(); ++i) {
    std::array<uint64_t, kNumLayers> digests;
    SlotWords slot;
    for (int32_t layer = 0; layer < kNumLayers; ++layer) {
      const auto position = planned.first_position + static_cast<int32_t>(i);
      std::memcpy(slot.data(), SlotOf(planned, layer, position), kSlotBytes);
      digests[layer] = Digest(slot);
    }
    const std::vector<TokenLogprob> all =
        ScoreOf(digests, planned.targets[i], planned.target_top_logprobs);
    logprobs.push_back(all[0].logprob);
    if (planned.target_top_logprobs > 0) {
      tops.emplace_back(all.begin() + 1, all.end());
    }
  }
}

SampledToken SimEngine::Sample(const PlannedSequence& planned, int32_t sample) {
  std::array<uint64_t, kNumLayers> layers{};
  SlotWords slot;
  const int32_t count = planned.first_position +
                        static_cast<int32_t>(planned.tokens.size()) -
                        planned.num_drafts + sample;
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    for (int32_t position = 0; position < count; ++position) {
      std::memcpy(slot.data(), SlotOf(planned, layer, position), kSlotBytes);
      layers[layer] = Mix(layers[layer], Digest(slot));
    }
  }
  const int32_t index = planned.sample_index() + sample;
  SampledToken sampled;
  sampled.sequence = planned.sequence;
  sampled.token =
      Draw(layers, planned.sampling->seed, index, planned.forbidden);
  sampled.top = ReferenceTop(planned.sampling->seed, index, sampled.token,
                             planned.top_logprobs);
  return sampled;
}

bool SimEngine::HasKvOf(absl::Span<const TokenId> tokens, int32_t position,
                        int32_t adapter, BlockId block, BlockId before) const {
  const auto slot_of = [&](int32_t layer, BlockId b, size_t offset) {
    SlotWords slot;
    std::memcpy(
        slot.data(),
        memory_.data() + layout_.PageOffset(layer, b) + offset * kSlotBytes,
        kSlotBytes);
    return slot;
  };
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    uint64_t digest =
        position == 0 ? 0 : Digest(slot_of(layer, before, kBlockSize - 1));
    for (size_t i = 0; i < tokens.size(); ++i) {
      const SlotWords slot =
          SlotContent(digest, tokens[i], position + static_cast<int32_t>(i),
                      layer, adapter);
      if (slot_of(layer, block, i) != slot) return false;
      digest = Digest(slot);
    }
  }
  return true;
}

StepResult SimEngine::Guess(const StepPlan& plan) {
  CHECK(has_draft_weights_);
  hooks_.on_model_guess();
  StepResult result;
  for (const PlannedSequence& planned : plan.sequences) {
    CHECK(planned.tokens.size() == 1 && planned.sample && !planned.follows);
    const bool wrong = Mix(planned.sampling->seed,
                           static_cast<uint64_t>(planned.first_position)) %
                           2 ==
                       0;
    for (int32_t layer = 0; layer < kNumLayers; ++layer) {
      Write(planned, layer, wrong);
    }
    result.sampled.push_back(Sample(planned, 0));
  }
  return result;
}

StepResult SimEngine::Execute(const StepPlan& plan, LayerHook on_layer_done) {
  CHECK(!ahead_.has_value());
  if (plan.draft) return Guess(plan);
  hooks_.on_plan(plan);
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    for (const PlannedSequence& planned : plan.sequences) {
      CHECK(!planned.tokens.empty());
      Write(planned, layer);
    }
    if (stage_ != nullptr) stage_->RunLayerOfStep(layer);
    on_layer_done(layer);
    hooks_.interlude();
  }
  if (stage_ != nullptr) stage_->EndStep();
  StepResult result;
  for (const PlannedSequence& planned : plan.sequences) {
    Score(planned, &result);
    for (int32_t i = 0; i < planned.num_samples(); ++i) {
      result.sampled.push_back(Sample(planned, i));
    }
    if (planned.num_drafts > 0 &&
        result.sampled.end()[-planned.num_samples()].token ==
            planned.tokens[planned.tokens.size() - planned.num_drafts]) {
      hooks_.on_right_guess();
    }
  }
  return result;
}

StepResult SimEngine::ExecuteBeside(const StepPlan& plan,
                                    LayerHook on_layer_done,
                                    absl::FunctionRef<void()> meanwhile) {
  CHECK(!ahead_.has_value());
  for (const PlannedSequence& planned : plan.sequences) {
    CHECK(!planned.follows);
    if (planned.sample) running_.push_back(planned.sequence);
    guesses_ |= planned.num_drafts > 0;
  }
  // Tables of blocks may be others afterwards.
  StepResult result = Execute(plan, on_layer_done);
  meanwhile();
  running_.clear();
  guesses_ = false;
  FollowUp(/*was_ahead=*/false, &result);
  return result;
}

bool SimEngine::RunAhead(const StepPlan& plan) {
  CHECK(!running_.empty() && !plan.sequences.empty());
  CHECK(!guesses_) << "what comes behind guesses is not known";
  CHECK(!ahead_.has_value());
  if (hooks_.chance(0.1)) return false;
  hooks_.on_plan(plan);
  Ahead ahead;
  for (const PlannedSequence& planned : plan.sequences) {
    CHECK(planned.follows && planned.sample);
    CHECK_EQ(planned.tokens.size(), 1u);
    CHECK_EQ(planned.first_position,
             static_cast<int32_t>(planned.history.size()));
    CHECK(std::find(running_.begin(), running_.end(), planned.sequence) !=
          running_.end());
    auto part = std::make_unique<Ahead::Part>();
    part->sampling = *planned.sampling;
    part->blocks.assign(planned.blocks.begin(), planned.blocks.end());
    part->forbidden.assign(planned.forbidden.begin(), planned.forbidden.end());
    part->history.assign(planned.history.begin(), planned.history.end());
    PlannedSequence copy = planned;
    copy.sampling = &part->sampling;
    copy.blocks = part->blocks;
    copy.forbidden = part->forbidden;
    ahead.plan.sequences.push_back(copy);
    ahead.parts.push_back(std::move(part));
  }
  ahead_ = std::move(ahead);
  return true;
}

void SimEngine::FollowUp(bool was_ahead, StepResult* result) {
  ran_.reset();
  if (!was_ahead && !ahead_.has_value()) return;
  for (SampledToken& token : result->sampled) {
    token.again = hooks_.chance(0.02);
    if (token.again) token.token = 0;
  }
  before_ = *result;
  if (ahead_.has_value() && hooks_.chance(0.5)) ran_ = Run(&*ahead_, before_);
}

StepResult SimEngine::Run(Ahead* ahead, const StepResult& before) {
  hooks_.on_ahead(ahead->plan);
  for (size_t i = 0; i < ahead->parts.size(); ++i) {
    PlannedSequence& planned = ahead->plan.sequences[i];
    const auto token = std::find_if(
        before.sampled.begin(), before.sampled.end(),
        [&](const auto& t) { return t.sequence == planned.sequence; });
    CHECK(token != before.sampled.end());
    std::vector<TokenId>& history = ahead->parts[i]->history;
    history.push_back(token->token);
    planned.history = history;
    planned.tokens = planned.history.last(1);
    planned.follows = false;
  }
  StepResult result;
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    for (const PlannedSequence& planned : ahead->plan.sequences) {
      Write(planned, layer);
    }
    hooks_.interlude();
  }
  for (const PlannedSequence& planned : ahead->plan.sequences) {
    result.sampled.push_back(Sample(planned, 0));
  }
  return result;
}

StepResult SimEngine::Await(absl::FunctionRef<void()> meanwhile) {
  CHECK(ahead_.has_value());
  const std::optional<StepResult> ran = std::exchange(ran_, std::nullopt);
  Ahead current = *std::exchange(ahead_, std::nullopt);
  for (const PlannedSequence& planned : current.plan.sequences) {
    running_.push_back(planned.sequence);
  }
  meanwhile();
  running_.clear();
  StepResult result = ran.has_value() ? *ran : Run(&current, before_);
  FollowUp(/*was_ahead=*/true, &result);
  return result;
}

}  // namespace baton::sim
