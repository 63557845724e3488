// Cosines and sines of rotary position embedding (Su et al. 2021, RoFormer),
// with the frequency scalings of transformers' modeling_rope_utils; both times
// RopeScaling::attention_factor. Computed in double and rounded to float once.
//
// Ensure is called by the engine's thread before a step; Cos and Sin may then
// be read from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/model_config.h"

namespace baton::engine::cpu {

// Radians per position of pair i, for i < head_dim / 2; zero of those from
// RotaryDim() / 2 on.
// Of layers that slide and turn by a base of their own
// (ModelConfig::sliding_rope_theta) in SlidingRopeConfig.
std::vector<double> RopeFrequencies(const ModelConfig& config);

// `config` with what such layers have in place of what others have.
ModelConfig SlidingRopeConfig(const ModelConfig& config);

class RopeTable final {
 public:
  explicit RopeTable(const ModelConfig& config);

  // Computes the rows of positions [0, end) that are missing.
  void Ensure(int32_t end);

  // head_dim / 2 values.
  // REQUIRES: Ensure(position + 1) was called.
  const float* Cos(int32_t position) const {
    return Chunk(position) + position % kChunkRows * 2 * half_;
  }
  const float* Sin(int32_t position) const { return Cos(position) + half_; }

 private:
  static constexpr int32_t kChunkRows = 256;

  const float* Chunk(int32_t position) const {
    return chunks_[position / kChunkRows].get();
  }

  const std::vector<double> frequencies_;
  const int32_t half_;
  const int32_t turning_;  // pairs
  const double factor_;
  // kChunkRows rows of `half_` cosines and `half_` sines each; grows with the
  // longest sequence, because models declare far longer contexts than most
  // sequences have.
  std::vector<std::unique_ptr<float[]>> chunks_;
};

}  // namespace baton::engine::cpu
