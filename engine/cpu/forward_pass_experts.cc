// Layers with experts: each row goes through a few of many feed-forward
// networks. The rows of an expert lie together, so that its weights are read
// once a step.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/types/span.h"
#include "engine/cpu/forward_pass.h"

namespace baton::engine::cpu {
namespace {

// Writes the indices of the `count` largest scores, the largest first, to
// `chosen`. Of equal ones the first goes before.
void ChooseLargest(absl::Span<const float> scores, int32_t count,
                   int32_t* chosen) {
  for (int32_t i = 0; i < count; ++i) {
    int32_t best = -1;
    for (int32_t e = 0; e < static_cast<int32_t>(scores.size()); ++e) {
      // Whatever the numbers are: NaN is no less than anything.
      if (best >= 0 && !(scores[e] > scores[best])) continue;
      if (std::find(chosen, chosen + i, e) == chosen + i) best = e;
    }
    chosen[i] = best;
  }
}

// Leaves of the scores those of `chosen` groups of experts, the ones with the
// largest sum of their best two scores, or of `best` = 1; the others become
// less than any. Of equal ones the first goes before. `chosen_groups` and
// `group_scores` are scratch.
void KeepGroups(absl::Span<float> scores, int32_t groups, int32_t chosen,
                int32_t best, std::vector<int32_t>& chosen_groups,
                std::vector<float>& group_scores) {
  const int64_t size = static_cast<int64_t>(scores.size()) / groups;
  group_scores.resize(groups);
  chosen_groups.resize(chosen);
  for (int32_t g = 0; g < groups; ++g) {
    int32_t of_group[2];
    const absl::Span<const float> part = scores.subspan(g * size, size);
    ChooseLargest(part, best, of_group);
    group_scores[g] = 0;
    for (int32_t i = 0; i < best; ++i) group_scores[g] += part[of_group[i]];
  }
  ChooseLargest(group_scores, chosen, chosen_groups.data());
  for (int32_t g = 0; g < groups; ++g) {
    if (absl::c_linear_search(chosen_groups, g)) continue;
    std::fill_n(scores.begin() + g * size, size,
                -std::numeric_limits<float>::infinity());
  }
}

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// The scores of those chosen, and by what they are divided.
float ScoreSoftmax(absl::Span<const float> logits,
                   absl::Span<const int32_t> chosen, bool normalized,
                   float* scores) {
  float max = logits[chosen[0]];
  if (!normalized) max = *std::max_element(logits.begin(), logits.end());
  float sum = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    scores[i] = std::exp(logits[chosen[i]] - max);
    sum += scores[i];
  }
  if (normalized) return sum;
  sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  return sum;
}
float ScoreSigmoid(absl::Span<const float> logits,
                   absl::Span<const int32_t> chosen, bool normalized,
                   float* scores) {
  // As transformers has it, for scores that are all zero.
  float sum = 1e-20f;
  for (size_t i = 0; i < chosen.size(); ++i) {
    scores[i] = Sigmoid(logits[chosen[i]]);
    sum += scores[i];
  }
  return normalized ? sum : 1.0f;
}

}  // namespace

void ForwardPass::MixExperts(const CpuLayerWeights& layer) {
  ChooseExperts(layer);
  for (int32_t first = 0; first < num_rows_; first += kExpertRows) {
    MixRows(layer, first, std::min(kExpertRows, num_rows_ - first));
  }
}

void ForwardPass::MixRows(const CpuLayerWeights& layer, int32_t first,
                          int32_t count) {
  SortChoices(first, count);
  const int32_t hidden = config_.hidden_size;
  const int32_t passed = config_.experts.passed();
  expert_rows_ += int64_t{count} * passed;
  ForRows(first, count, int64_t{passed} * hidden, [&](int32_t row, int32_t) {
    for (int32_t i = 0; i < passed; ++i) {
      expert_in_.CopyRow(normed_, row, choices_[row * passed + i].place);
    }
  });
  const absl::Span<const RowGroup> groups =
      ExpertGroups(layer, &CpuExpertWeights::gate_up);
  expert_reads_ += static_cast<int64_t>(groups.size());
  const auto expert_of = [&](const Strip& strip) -> const CpuExpertWeights& {
    return layer.experts[group_experts_[strip.group]];
  };
  const auto limit = static_cast<float>(config_.experts.swiglu_limit);
  matmul_.RunGroups(
      expert_in_, groups, 2 * kGatePanels, [&](const Strip& strip) {
        Gate(strip, expert_of(strip).gate_up_bias, limit, expert_gated_,
             /*exact=*/nullptr);
      });
  matmul_.RunGroups(
      expert_gated_, ExpertGroups(layer, &CpuExpertWeights::down),
      layer.experts[0].down.unit(), [&](const Strip& strip) {
        const int32_t column = strip.first_column();
        const int32_t n =
            std::min(strip.panels * kPanelColumns, hidden - column);
        const std::vector<float>& bias = expert_of(strip).down_bias;
        for (int32_t i = 0; i < strip.rows; ++i) {
          if (!bias.empty()) {
            kernels_.add(strip.row(i), bias.data() + column, n);
          }
          std::memcpy(expert_out_.data() +
                          int64_t{strip.first_row + i} * hidden + column,
                      strip.row(i), sizeof(float) * n);
        }
      });
  ForRows(first, count, int64_t{2 * passed} * hidden,
          [&](int32_t row, int32_t) {
            for (int32_t i = 0; i < passed; ++i) {
              const Choice& choice = choices_[row * passed + i];
              float* const out =
                  expert_out_.data() + int64_t{choice.place} * hidden;
              kernels_.scale(out, choice.weight, hidden);
              kernels_.add(residual(row), out, hidden);
            }
          });
}

absl::Span<const RowGroup> ForwardPass::ExpertGroups(
    const CpuLayerWeights& layer, PackedMatrix CpuExpertWeights::*matrix) {
  expert_groups_.clear();
  group_experts_.clear();
  int32_t begin = 0;
  for (size_t i = 0; i < layer.experts.size(); ++i) {
    const int32_t rows = expert_ends_[i] - begin;
    if (rows > 0) {
      expert_groups_.push_back({begin, rows, &(layer.experts[i].*matrix)});
      group_experts_.push_back(static_cast<int32_t>(i));
    }
    begin = expert_ends_[i];
  }
  return expert_groups_;
}

void ForwardPass::ChooseExperts(const CpuLayerWeights& layer) {
  const ExpertsConfig& experts = config_.experts;
  const PackedMatrix& router = layer.expert_router;
  const int64_t stride = router.outputs();
  router_logits_.Reserve(num_rows_ * stride);
  matmul_.Run(normed_exact(), /*first_row=*/0, num_rows_, router, router.unit(),
              [&](const Strip& strip) {
                for (int32_t i = 0; i < strip.rows; ++i) {
                  std::memcpy(router_logits_.data() +
                                  (strip.first_row + i) * stride +
                                  strip.first_column(),
                              strip.row(i),
                              sizeof(float) * strip.panels * kPanelColumns);
                }
              });
  ForRows(int64_t{experts.per_token} * experts.count,
          [&](int32_t row, int32_t thread) {
            float* const of_row = router_logits_.data() + row * stride;
            if (!layer.router_bias.empty()) {
              kernels_.add(of_row, layer.router_bias.data(), experts.count);
            }
            const absl::Span<const float> logits(of_row, experts.count);
            ChooseForRow(layer, logits, thread,
                         choices_.data() + int64_t{row} * experts.passed());
          });
}

void ForwardPass::ChooseForRow(const CpuLayerWeights& layer,
                               absl::Span<const float> logits, int32_t thread,
                               Choice* choices) {
  const ExpertsConfig& experts = config_.experts;
  std::vector<int32_t>& chosen = chosen_scratch_[thread];
  std::vector<float>& scores = score_scratch_[thread];
  chosen.resize(experts.per_token);
  scores.resize(experts.count);
  float divisor;
  const auto keep_groups = [&](int32_t best) {
    if (experts.groups == 1) return;
    KeepGroups(absl::MakeSpan(scores), experts.groups, experts.chosen_groups,
               best, chosen_groups_scratch_[thread],
               group_score_scratch_[thread]);
  };
  if (experts.score == ExpertsConfig::Score::kSoftmax) {
    std::copy(logits.begin(), logits.end(), scores.begin());
    keep_groups(/*best=*/1);
    ChooseLargest(scores, experts.per_token, chosen.data());
    divisor = ScoreSoftmax(logits, chosen, experts.normalized, scores.data());
  } else {
    for (int32_t e = 0; e < experts.count; ++e) {
      scores[e] = Sigmoid(logits[e]);
      if (!layer.choice_bias.empty()) scores[e] += layer.choice_bias[e];
    }
    keep_groups(/*best=*/2);
    ChooseLargest(scores, experts.per_token, chosen.data());
    divisor = ScoreSigmoid(logits, chosen, experts.normalized, scores.data());
  }
  const auto scale = static_cast<float>(experts.scale);
  for (int32_t i = 0; i < experts.per_token; ++i) {
    choices[i].expert = chosen[i];
    choices[i].weight = scores[i] / divisor * scale;
  }
  for (int32_t i = 0; i < experts.shared; ++i) {
    Choice& choice = choices[experts.per_token + i];
    choice.expert = experts.count + i;
    choice.weight = 1.0f;
  }
}

void ForwardPass::SortChoices(int32_t first, int32_t count) {
  const int32_t passed = config_.experts.passed();
  const absl::Span<Choice> choices = absl::MakeSpan(choices_).subspan(
      int64_t{first} * passed, int64_t{count} * passed);
  expert_ends_.assign(config_.experts.all(), 0);
  for (const Choice& choice : choices) ++expert_ends_[choice.expert];
  int32_t begin = 0;
  for (int32_t& end : expert_ends_) begin += std::exchange(end, begin);
  // From here on, where the next one of an expert goes.
  for (Choice& choice : choices) choice.place = expert_ends_[choice.expert]++;
}

}  // namespace baton::engine::cpu
