#include "engine/cuda/sample_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "engine/philox.h"
#include "engine/sampling.h"

namespace baton::engine::cuda {
namespace {

using scheduling::PlannedSequence;
using scheduling::SampledToken;
using scheduling::SamplingParams;

static_assert(kTopPlaces == scheduling::kMaxTopLogprobs);

// The tokens whose logits penalties change, with their counts in the output.
std::vector<LogitEdit> Penalties(const PlannedSequence& sequence) {
  const SamplingParams& params = *sequence.sampling;
  const bool repetition = params.repetition_penalty != 1.0f;
  std::vector<LogitEdit> edits;
  if (!repetition && params.presence_penalty == 0.0f &&
      params.frequency_penalty == 0.0f) {
    return edits;
  }
  absl::flat_hash_map<TokenId, size_t> places;
  for (size_t i = repetition ? 0 : sequence.prompt_length;
       i < sequence.history.size(); ++i) {
    const TokenId token = sequence.history[i];
    const auto [place, is_new] = places.try_emplace(token, edits.size());
    if (is_new) edits.push_back({token, 0.0f});
    if (i >= static_cast<size_t>(sequence.prompt_length)) {
      edits[place->second].value += 1.0f;
    }
  }
  return edits;
}

}  // namespace

SampleRow PlanSample(const PlannedSequence& sequence, int32_t index,
                     int32_t vocab_size, DrawLists* lists) {
  std::vector<LogitEdit>& edits = lists->edits;
  const SamplingParams& params = *sequence.sampling;
  SampleRow row;
  row.temperature = params.temperature;
  row.top_k = params.top_k;
  row.top_p = params.top_p;
  row.min_p = params.min_p;
  row.repetition_penalty = params.repetition_penalty;
  row.presence_penalty = params.presence_penalty;
  row.frequency_penalty = params.frequency_penalty;
  row.top = sequence.top_logprobs;
  row.first_edit = static_cast<int32_t>(edits.size());
  const auto leave_to_host = [&] {
    row.biases = row.penalties = row.forbidden = row.top = 0;
    row.statistics_only = 1;
    return row;
  };
  if (sequence.want_logits) return leave_to_host();
  // The device does not know a token twice in one list.
  absl::flat_hash_map<TokenId, bool> forbidden;
  for (const TokenId token : sequence.forbidden) forbidden[token] = true;
  const std::vector<LogitEdit> penalties = Penalties(sequence);
  const size_t all =
      params.logit_bias.size() + penalties.size() + forbidden.size();
  if (edits.size() + all > static_cast<size_t>(kMaxEdits)) {
    return leave_to_host();
  }
  const scheduling::TokenMask* const allowed = sequence.AllowedOf(index);
  if (allowed != nullptr) {
    if (lists->masks.size() == static_cast<size_t>(kMaxMasks)) {
      return leave_to_host();
    }
    lists->masks.push_back(allowed);
    row.mask = static_cast<int32_t>(lists->masks.size());
  }
  for (const scheduling::LogitBias& bias : params.logit_bias) {
    edits.push_back({bias.token, bias.bias});
  }
  edits.insert(edits.end(), penalties.begin(), penalties.end());
  for (const auto& [token, unused] : forbidden) edits.push_back({token, 0});
  row.biases = static_cast<int32_t>(params.logit_bias.size());
  row.penalties = static_cast<int32_t>(penalties.size());
  row.forbidden = static_cast<int32_t>(forbidden.size());
  row.uniform = UniformDraw(params.seed, sequence.sample_index() + index);
  return row;
}

bool HostDraws(const SampleRow& row, const SampleOutcome& outcome) {
  return row.statistics_only != 0 || outcome.undecided != 0;
}

float LogprobOf(float logit, const SampleOutcome& outcome) {
  if (outcome.finite == 0) return std::numeric_limits<float>::quiet_NaN();
  return static_cast<float>(logit - (outcome.max + std::log(outcome.total)));
}

std::vector<scheduling::TokenLogprob> TopOf(const SampleOutcome& outcome,
                                            const TopLogit* tops,
                                            int32_t most) {
  const int32_t count = std::min(outcome.top, most);
  std::vector<scheduling::TokenLogprob> top;
  top.reserve(count);
  for (int32_t i = 0; i < count; ++i) {
    top.push_back({tops[i].token, LogprobOf(tops[i].logit, outcome)});
  }
  return top;
}

SampledToken TokenOf(SequenceId sequence, const SampleOutcome& outcome,
                     const TopLogit* tops, int32_t most) {
  SampledToken token;
  token.sequence = sequence;
  token.ok = outcome.finite != 0;
  if (!token.ok) return token;
  token.token = outcome.token;
  token.logprob = LogprobOf(outcome.own_logit, outcome);
  token.top = TopOf(outcome, tops, most);
  return token;
}

SampledToken DrawOnHost(const PlannedSequence& sequence, int32_t index,
                        absl::Span<float> logits) {
  std::vector<float> copy;
  if (sequence.want_logits) copy.assign(logits.begin(), logits.end());
  SampledToken token =
      Sample(logits, *sequence.sampling, sequence.history,
             sequence.prompt_length, sequence.sample_index() + index,
             {.forbidden = sequence.forbidden,
              .allowed = sequence.AllowedOf(index),
              .top_logprobs = sequence.top_logprobs});
  token.sequence = sequence.sequence;
  token.logits = std::move(copy);
  return token;
}

}  // namespace baton::engine::cuda
