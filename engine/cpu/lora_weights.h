// LoRA adapters (engine/lora_adapter.h) as the forward pass reads them: packed
// in bfloat16, whatever the model's matrices are in. Packed once; constant
// afterwards.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cpu/cpu_weights.h"
#include "engine/cpu/memory_arena.h"
#include "engine/cpu/packed_matrix.h"
#include "engine/cpu/thread_team.h"
#include "engine/lora_adapter.h"
#include "engine/model_config.h"

namespace baton::engine::cpu {

struct CpuLoraLayer {
  // [LoraInput]: the A of its targets in one, each as wide as CpuLora::rank
  // says, zero where it adds nothing; without panels when it adds to none of
  // them.
  std::array<PackedMatrix, kNumLoraInputs> a;
  // [LoraTarget]: B, in panels as the target's own matrix has them (of gate and
  // up, each apart); without any where it adds nothing.
  std::array<PackedMatrix, kNumLoraTargets> b;
  // [LoraTarget]: what A's products are multiplied by.
  std::array<float, kNumLoraTargets> scale = {};

  const PackedMatrix& a_of(LoraInput input) const {
    return a[static_cast<size_t>(input)];
  }
  const PackedMatrix& b_of(LoraTarget target) const {
    return b[static_cast<size_t>(target)];
  }
};

struct CpuLora {
  // Values that A's product has for a target: the adapter's rank, padded to
  // whole panels.
  int32_t rank = 0;
  std::vector<CpuLoraLayer> layers;  // as many as the model's
  MemoryArena arena;
  int64_t bytes = 0;
};

// By PlannedSequence::adapter; null: there is none.
using CpuLoras = std::vector<std::unique_ptr<const CpuLora>>;

// Packs one, for a model whose weights are packed as `weights` are.
// ResourceExhausted when there is no memory. Any thread.
absl::StatusOr<std::unique_ptr<const CpuLora>> PackLora(
    const LoraAdapter& adapter, const ModelConfig& config,
    const CpuWeights& weights, ThreadTeam& team);

}  // namespace baton::engine::cpu
