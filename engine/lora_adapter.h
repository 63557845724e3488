// LoRA adapters (Hu et al. 2021, "LoRA: Low-rank adaptation of large language
// models"), as PEFT writes them: what fine-tuning adds to some matrices of a
// model, as products of two narrow ones. With an adapter a matrix W is
//
//   W + scale * B * A,   scale = lora_alpha / rank, or lora_alpha / sqrt(rank)
//                        with use_rslora (Kalajdzievski 2023)
//
// Found in a directory and checked against the model. Views only; a backend
// packs them as it likes. Constant after loading, readable from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model_config.h"
#include "engine/weight_matrix.h"

namespace baton::engine {

// The matrices of a layer that an adapter may add to, as LayerWeights has them.
enum class LoraTarget { kQ, kK, kV, kO, kGate, kUp, kDown };
inline constexpr int kNumLoraTargets = 7;

// Matrices that read the same rows.
enum class LoraInput { kQkv, kO, kGateUp, kDown };
inline constexpr int kNumLoraInputs = 4;
// Most targets of an input.
inline constexpr int kMaxLoraParts = 3;
absl::Span<const LoraTarget> TargetsOf(LoraInput input);

struct LoraPair {
  WeightMatrix a;  // [rank, inputs]
  WeightMatrix b;  // [outputs, rank]
  double scale = 1.0;
};

struct LoraLayer {
  std::array<std::optional<LoraPair>, kNumLoraTargets> pairs;

  const std::optional<LoraPair>& of(LoraTarget target) const {
    return pairs[static_cast<size_t>(target)];
  }
};

// What an operator names.
struct AdapterSource {
  std::string name;
  std::string dir;
};

struct LoraAdapter {
  std::string name;
  // 32 hexadecimal digits: XXH3-128 over all that it adds. Of two adapters of
  // the same identity, the same answers are to be had.
  std::string identity;
  // The largest of any pair.
  int32_t rank = 0;
  std::vector<LoraLayer> layers;  // as many as the model's
  // Keeps the file mapped.
  std::shared_ptr<const void> storage;
};

// One that an engine has beside its model.
struct AdapterInfo {
  std::string name;
  std::string identity;
  int32_t rank = 0;
};
std::vector<AdapterInfo> AdapterInfos(absl::Span<const LoraAdapter> adapters);

// Of an engine.
inline constexpr size_t kMaxAdapters = 256;

// Higher ranks than any that is in use.
inline constexpr int32_t kMaxLoraRank = 512;

// Rows and columns of a target's matrix; nothing where a layer does not have
// it, as it has experts.
struct LoraShape {
  int64_t outputs = 0;
  int64_t inputs = 0;
};
std::optional<LoraShape> LoraShapeOf(const ModelConfig& config, int32_t layer,
                                     LoraTarget target);

// Reads DIR/adapter_config.json and DIR/adapter_model.safetensors. Errors name
// the file and the field or tensor: NotFound (no directory or file),
// InvalidArgument (a broken file, another model's shapes, one of a pair
// alone), Unimplemented (what PEFT has besides: other methods, biases, DoRA,
// embeddings, experts, whole modules, alpha_pattern).
absl::StatusOr<LoraAdapter> LoadLoraAdapter(const std::string& dir,
                                            const ModelConfig& config);

// Each of them; errors also name the adapter.
absl::StatusOr<std::vector<LoraAdapter>> LoadLoraAdapters(
    absl::Span<const AdapterSource> sources, const ModelConfig& config);

}  // namespace baton::engine
