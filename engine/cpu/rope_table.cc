#include "engine/cpu/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

namespace baton::engine::cpu {
namespace {

// Llama 3.1: keeps high frequencies, divides low ones by `factor`, and blends
// in between by the number of turns within the original context.
double ScaleLlama3(const RopeScaling& scaling, double frequency) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double low_wavelength =
      scaling.original_max_position / scaling.low_freq_factor;
  const double high_wavelength =
      scaling.original_max_position / scaling.high_freq_factor;
  if (wavelength < high_wavelength) return frequency;
  if (wavelength > low_wavelength) return frequency / scaling.factor;
  const double blend =
      (scaling.original_max_position / wavelength - scaling.low_freq_factor) /
      (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - blend) * frequency / scaling.factor + blend * frequency;
}

// The pair that turns so many times within the original context: between two
// pairs as a rule.
double PairThatTurns(double times, const ModelConfig& config) {
  const double positions = config.rope_scaling.original_max_position;
  return config.RotaryDim() / 2 *
         std::log(positions / (times * 2.0 * std::numbers::pi)) /
         std::log(config.rope_theta);
}

// Where the blending of YaRN begins and ends, in pairs.
struct YarnRamp {
  double first = 0;
  double last = 0;

  explicit YarnRamp(const ModelConfig& config) {
    const RopeScaling& scaling = config.rope_scaling;
    first = PairThatTurns(scaling.beta_fast, config);
    last = PairThatTurns(scaling.beta_slow, config);
    if (scaling.truncate) {
      first = std::floor(first);
      last = std::ceil(last);
    }
    first = std::max(first, 0.0);
    last = std::min(last, config.RotaryDim() - 1.0);
    // As transformers has it.
    if (first == last) last += 0.001;
  }

  // How much of the stretched frequency pair `i` has.
  double Share(int32_t i) const {
    return std::clamp((i - first) / (last - first), 0.0, 1.0);
  }
};

}  // namespace

std::vector<double> RopeFrequencies(const ModelConfig& config) {
  // Pairs that do not turn have a frequency of zero.
  std::vector<double> frequencies(config.head_dim / 2);
  const int32_t turning = config.RotaryDim() / 2;
  std::optional<YarnRamp> yarn;
  if (config.rope_scaling.kind == RopeScaling::Kind::kYarn) {
    yarn.emplace(config);
  }
  for (int32_t i = 0; i < turning; ++i) {
    double frequency = std::pow(config.rope_theta, -1.0 * i / turning);
    switch (config.rope_scaling.kind) {
      case RopeScaling::Kind::kNone:
        break;
      case RopeScaling::Kind::kLinear:
        frequency /= config.rope_scaling.factor;
        break;
      case RopeScaling::Kind::kLlama3:
        frequency = ScaleLlama3(config.rope_scaling, frequency);
        break;
      case RopeScaling::Kind::kYarn:
        frequency *=
            1.0 - yarn->Share(i) + yarn->Share(i) / config.rope_scaling.factor;
        break;
      case RopeScaling::Kind::kFactors:
        frequency /= config.rope_scaling.factors[i];
        break;
    }
    frequencies[i] = frequency;
  }
  return frequencies;
}

ModelConfig SlidingRopeConfig(const ModelConfig& config) {
  ModelConfig sliding = config;
  sliding.rope_theta = config.sliding_rope_theta.value_or(config.rope_theta);
  if (config.sliding_rope_theta.has_value()) sliding.rope_scaling = {};
  return sliding;
}

RopeTable::RopeTable(const ModelConfig& config)
    : frequencies_(RopeFrequencies(config)),
      half_(static_cast<int32_t>(frequencies_.size())),
      turning_(config.RotaryDim() / 2),
      factor_(config.rope_scaling.attention_factor) {}

void RopeTable::Ensure(int32_t end) {
  while (static_cast<int64_t>(chunks_.size()) * kChunkRows < end) {
    const int64_t first = static_cast<int64_t>(chunks_.size()) * kChunkRows;
    auto chunk = std::make_unique<float[]>(int64_t{kChunkRows} * 2 * half_);
    for (int32_t row = 0; row < kChunkRows; ++row) {
      float* const cos = chunk.get() + int64_t{row} * 2 * half_;
      for (int32_t i = 0; i < half_; ++i) {
        const double angle = static_cast<double>(first + row) * frequencies_[i];
        const double factor = i < turning_ ? factor_ : 1.0;
        cos[i] = static_cast<float>(factor * std::cos(angle));
        cos[half_ + i] = static_cast<float>(factor * std::sin(angle));
      }
    }
    chunks_.push_back(std::move(chunk));
  }
}

}  // namespace baton::engine::cpu
