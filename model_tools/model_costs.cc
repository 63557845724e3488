#include "model_tools/model_costs.h"

#include <algorithm>
#include <cmath>

namespace baton::model_tools {
namespace {

using engine::KvLayout;
using engine::ModelConfig;

// Those of latent attention, but for the one behind it.
template <typename Matrix>
void ForEachLatentMatrix(const ModelConfig& c, Matrix matrix) {
  const engine::LatentConfig& latent = c.latent;
  const int64_t hidden = c.hidden_size;
  const int64_t heads = c.num_heads;
  const bool low_rank = latent.query_rank > 0;
  if (low_rank) matrix(latent.query_rank, hidden, 1.0, false);
  matrix(heads * latent.query_dim(), low_rank ? latent.query_rank : hidden, 1.0,
         false);
  matrix(latent.rank + latent.rope_dim, hidden, 1.0, false);
  matrix(heads * latent.rank, latent.nope_dim, 1.0, false);
  matrix(heads * latent.value_dim, latent.rank, 1.0, false);
}

// Calls matrix(outputs, inputs, copies, of_experts) for each matrix of a layer,
// where `experts` says of how many experts, shared ones included.
template <typename Matrix>
void ForEachLayerMatrix(const ModelConfig& c, int32_t layer, double experts,
                        Matrix matrix) {
  const int64_t q_size = int64_t{c.num_heads} * c.head_dim;
  const int64_t kv_size = int64_t{c.num_kv_heads} * c.head_dim;
  const int64_t hidden = c.hidden_size;
  const bool mixes = c.LayerHasExperts(layer);
  const int64_t inner =
      mixes ? c.experts.intermediate_size : c.intermediate_size;
  const double copies = mixes ? experts : 1;
  if (c.IsLatent()) {
    ForEachLatentMatrix(c, matrix);
  } else {
    matrix(q_size, hidden, 1.0, false);
    matrix(kv_size, hidden, 2.0, false);
  }
  matrix(hidden, c.AttentionSize(), 1.0, false);
  matrix(inner, hidden, 2 * copies, mixes);
  matrix(hidden, inner, copies, mixes);
}

// Of the layer's expert router, which is in bf16 beside any weights.
int64_t RouterParameters(const ModelConfig& c, int32_t layer) {
  return c.LayerHasExperts(layer) ? int64_t{c.experts.count} * c.hidden_size
                                  : 0;
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
    case WeightKind::kMxfp4:
      return 0.5 * weights + 1.0 * outputs * (inputs / 32);
  }
  return 0;
}

// The kind of what is not of experts.
WeightKind KindOfOthers(WeightKind kind) {
  return kind == WeightKind::kMxfp4 ? WeightKind::kBf16 : kind;
}

// Of all layers, where those that have experts have so many.
double BytesOfExperts(const ModelConfig& config, WeightKind kind,
                      double experts) {
  double bytes = 0;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    ForEachLayerMatrix(
        config, layer, experts,
        [&](int64_t outputs, int64_t inputs, double copies, bool of_experts) {
          bytes += copies * MatrixBytes(outputs, inputs,
                                        of_experts ? kind : KindOfOthers(kind));
        });
    bytes += 2.0 * RouterParameters(config, layer);
  }
  return bytes;
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

// Of all heads, the mean of what keys and values have.
double ScoredSize(const ModelConfig& config) {
  const double of_values =
      config.IsLatent() ? config.latent.rank : config.head_dim;
  return config.num_heads * (config.head_dim + of_values) / 2;
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
    case WeightKind::kMxfp4:
      return "mxfp4";
  }
  return "";
}

std::optional<WeightKind> ParseWeightKind(absl::string_view name) {
  for (const WeightKind kind :
       {WeightKind::kBf16, WeightKind::kFp8, WeightKind::kInt8,
        WeightKind::kInt4, WeightKind::kMxfp4}) {
    if (name == WeightKindName(kind)) return kind;
  }
  return std::nullopt;
}

WeightKind WeightKindOf(const engine::WeightsInfo& weights) {
  const absl::string_view dtype = weights.dtype;
  return ParseWeightKind(dtype.substr(0, dtype.find('-')))
      .value_or(WeightKind::kBf16);
}

int64_t LayerMatrixParameters(const ModelConfig& config) {
  int64_t n = 0;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    ForEachLayerMatrix(config, layer, config.experts.passed(),
                       [&](int64_t outputs, int64_t inputs, double copies,
                           bool /*of_experts*/) {
                         n += outputs * inputs * static_cast<int64_t>(copies);
                       });
    n += RouterParameters(config, layer);
  }
  return n;
}

int64_t HeadParameters(const ModelConfig& config) {
  return int64_t{config.hidden_size} * config.vocab_size;
}

double LayerMatrixBytes(const ModelConfig& config, WeightKind kind) {
  return BytesOfExperts(config, kind, config.experts.all());
}

double LayerBytesRead(const ModelConfig& config, WeightKind kind,
                      int64_t tokens) {
  const double all = config.experts.count;
  if (all == 0) return LayerMatrixBytes(config, kind);
  const double missed = 1.0 - config.experts.per_token / all;
  return BytesOfExperts(
      config, kind,
      config.experts.shared +
          all * (1.0 - std::pow(missed, static_cast<double>(tokens))));
}

double HeadBytes(const ModelConfig& config, WeightKind kind) {
  return MatrixBytes(config.vocab_size, config.hidden_size, KindOfOthers(kind));
}

double SequenceOperations(const ModelConfig& config, const SequenceStep& step) {
  double visible = 0;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    visible += VisiblePositions(config, layer, step);
  }
  return 2.0 * LayerMatrixParameters(config) * step.tokens +
         2.0 * HeadParameters(config) * step.sampled +
         4.0 * ScoredSize(config) * visible;
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
  layout.shared_value_dim = config.latent.rank;
  layout.dtype = dtype;
  return layout;
}

}  // namespace baton::model_tools
