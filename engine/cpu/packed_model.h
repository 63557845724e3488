// The directory that `baton quantize` writes: weights as the kernels read them,
// so that loading is mapping. Beside config.json and the tokenizer's files of
// the model it was made from, it holds two files.
//
// baton_packed.json, at most 64 KiB, an object:
//   "format"    2: of what is said here and of the bytes of packed_layout.h.
//               Raised whenever they change.
//   "weights"   "bf16", "int8" or "int4".
//   "layout"    {"panel_columns": 16, "group_inputs": 64, "gate_panels": 4}:
//               kPanelColumns, kGroupInputs and kGatePanels.
//   "identity"  Engine::model_identity() of an engine that packs the same model
//               to the same dtype by itself: both may work together. Of int8
//               and int4 it says how the weights were rounded, too
//               (kQuantizationVersion).
//   "config"    ConfigIdentity() of config.json: weights go with one config.
//   "source"    the model's name, for people.
//
// baton.safetensors, a safetensors file (safetensors.h) whose header is padded
// with spaces until the data begin at a multiple of 64. Tensors lie in this
// order, without holes:
//   1. NAME of each matrix of MatrixPlaces: U8 [panels / unit, steps,
//      64 * unit], a multiple of 64 bytes each, so that every step is a cache
//      line.
//      Those of expert routers are in bf16, whatever "weights" says.
//   2. NAME.scales of each whose dtype has scales, U8 [bytes]: float32 for each
//      output; then, of int4, 16 bits (int4_grid.h) for each output and
//      group, [panels / unit, groups, 16 * unit].
//   3. Vectors, F32: for each layer i "layers.i." + input_norm [hidden],
//      post_attention_norm [hidden], and as the config has them qkv_bias,
//      o_bias, gate_up_bias, down_bias (padded as in CpuLayerWeights), q_norm
//      and k_norm [head_dim], attention_out_norm and feed_forward_out_norm
//      [hidden]; then final_norm [hidden].
//   4. embedding: BF16 [vocab, hidden], unless the head is the embedding.
//
// Nothing in the files is trusted: errors name the file and the tensor or field
// (NotFound: it is missing; InvalidArgument), and no content makes this code
// crash. All functions: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/cpu/cpu_weights.h"
#include "engine/cpu/weight_dtype.h"
#include "engine/model_config.h"

namespace baton::engine::cpu {

inline constexpr char kPackedManifestFile[] = "baton_packed.json";
inline constexpr char kPackedWeightsFile[] = "baton.safetensors";

// What baton_packed.json says.
struct PackedManifest {
  WeightDtype dtype = WeightDtype::kBf16;
  std::string identity;
  std::string config;
  std::string source;
};

// Whether `model` is a directory with a baton_packed.json.
bool IsPackedModel(const std::string& model);

// The content of baton_packed.json.
std::string PackedManifestText(const PackedManifest& manifest);

absl::StatusOr<PackedManifest> ReadPackedManifest(const std::string& dir);

// Appends to what is being written.
using AppendBytes =
    absl::FunctionRef<absl::Status(absl::Span<const std::byte>)>;

// Bytes of baton.safetensors, header and vectors not counted.
int64_t PackedWeightsBytes(const ModelConfig& config, WeightDtype dtype);

// Writes baton.safetensors, a tensor at a time; the error is `append`'s.
absl::Status WritePackedWeights(const ModelConfig& config,
                                const CpuWeights& weights, AppendBytes append);

// Maps baton.safetensors and asks the kernel to read it ahead. The matrices are
// views of the mapping, which the result keeps.
absl::StatusOr<CpuWeights> MapPackedWeights(const std::string& dir,
                                            const ModelConfig& config,
                                            WeightDtype dtype);

}  // namespace baton::engine::cpu
