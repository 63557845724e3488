#include "model_tools/model_costs.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace baton::model_tools {
namespace {

using engine::KvLayout;
using engine::ModelConfig;

// Calls matrix(outputs, inputs) for each matrix of a layer.
template <typename Matrix>
void ForEachLayerMatrix(const ModelConfig& c, Matrix matrix) {
  const int64_t q_size = int64_t{c.num_heads} * c.head_dim;
  const int64_t kv_size = int64_t{c.num_kv_heads} * c.head_dim;
  const int64_t hidden = c.hidden_size;
  matrix(q_size, hidden);
  matrix(kv_size, hidden);
  matrix(kv_size, hidden);
  matrix(hidden, q_size);
  matrix(int64_t{c.intermediate_size}, hidden);
  matrix(int64_t{c.intermediate_size}, hidden);
  matrix(hidden, int64_t{c.intermediate_size});
}

double MatrixBytes(int64_t outputs, int64_t inputs, WeightKind kind) {
  const auto weights = static_cast<double>(outputs * inputs);
  switch (kind) {
    case WeightKind::kBf16:
      return 2.0 * weights;
    case WeightKind::kFp8:
    case WeightKind::kInt8:
      return weights + 4.0 * outputs;
    case WeightKind::kInt4:
      return 0.5 * weights + outputs * (4.0 + 2.0 * ((inputs + 63) / 64));
  }
  return 0;
}

// 1 + 2 + ... + n.
double Triangle(int64_t n) { return 0.5 * n * (n + 1); }

// Positions that the step's tokens see in one layer, together.
double VisiblePositions(const ModelConfig& config, int32_t layer,
                        const SequenceStep& step) {
  const int64_t first = step.before + 1;
  const int64_t last = step.before + step.tokens;
  if (!config.LayerSlides(layer)) return Triangle(last) - Triangle(first - 1);
  const int64_t window = *config.sliding_window;
  const int64_t growing = std::clamp(window, first - 1, last);
  return Triangle(growing) - Triangle(first - 1) +
         static_cast<double>(last - growing) * window;
}

}  // namespace

const char* WeightKindName(WeightKind kind) {
  switch (kind) {
    case WeightKind::kBf16:
      return "bf16";
    case WeightKind::kFp8:
      return "fp8";
    case WeightKind::kInt8:
      return "int8";
    case WeightKind::kInt4:
      return "int4";
  }
  return "";
}

WeightKind WeightKindOfBackend(absl::string_view backend_name) {
  if (absl::StrContains(backend_name, "-fp8")) return WeightKind::kFp8;
  if (absl::StrContains(backend_name, "-int8")) return WeightKind::kInt8;
  if (absl::StrContains(backend_name, "-int4")) return WeightKind::kInt4;
  return WeightKind::kBf16;
}

int64_t LayerMatrixParameters(const ModelConfig& config) {
  int64_t n = 0;
  ForEachLayerMatrix(
      config, [&](int64_t outputs, int64_t inputs) { n += outputs * inputs; });
  return n * config.num_layers;
}

int64_t HeadParameters(const ModelConfig& config) {
  return int64_t{config.hidden_size} * config.vocab_size;
}

double LayerMatrixBytes(const ModelConfig& config, WeightKind kind) {
  double bytes = 0;
  ForEachLayerMatrix(config, [&](int64_t outputs, int64_t inputs) {
    bytes += MatrixBytes(outputs, inputs, kind);
  });
  return bytes * config.num_layers;
}

double HeadBytes(const ModelConfig& config, WeightKind kind) {
  return MatrixBytes(config.vocab_size, config.hidden_size, kind);
}

double SequenceOperations(const ModelConfig& config, const SequenceStep& step) {
  double visible = 0;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    visible += VisiblePositions(config, layer, step);
  }
  const double q_size = static_cast<double>(config.num_heads) * config.head_dim;
  return 2.0 * LayerMatrixParameters(config) * step.tokens +
         2.0 * HeadParameters(config) * step.sampled + 4.0 * q_size * visible;
}

double SequenceKvBytes(const ModelConfig& config, const KvLayout& layout,
                       const SequenceStep& step) {
  const double per_position =
      static_cast<double>(layout.page_bytes()) / layout.block_size;
  double bytes = 0;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    int64_t positions = step.before;
    if (config.LayerSlides(layer)) {
      // The first of the new tokens sees the furthest back.
      positions = std::min<int64_t>(positions, *config.sliding_window - 1);
    }
    bytes += per_position * positions;
  }
  return bytes;
}

KvLayout MakeKvLayout(const ModelConfig& config, engine::KvDtype dtype,
                      int32_t block_size, int32_t num_blocks) {
  KvLayout layout;
  layout.num_layers = config.num_layers;
  layout.num_blocks = num_blocks;
  layout.block_size = block_size;
  layout.num_kv_heads = config.num_kv_heads;
  layout.head_dim = config.head_dim;
  layout.dtype = dtype;
  return layout;
}

}  // namespace baton::model_tools
