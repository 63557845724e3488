#include "engine/cuda/device_weights.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "common/log.h"
#include "common/status_macros.h"
#include "engine/cuda/attention.h"
#include "engine/cuda/output_rows.h"
#include "engine/cuda/pack_tiles.h"
#include "engine/float_convert.h"
#include "engine/norm_weights.h"
#include "engine/weight_matrix.h"

namespace baton::engine::cuda {
namespace {

// At most, of each of the pinned buffers that weights pass through, and of
// those on the device.
constexpr int64_t kStagingBytes = int64_t{32} << 20;

// Loads into device memory: threads copy rows as files have them into one of
// two pinned buffers, while the other goes to the device, which makes tiles of
// them.
class Loader final {
 public:
  Loader(std::optional<WeightFormat> format, cpu::ThreadTeam& team,
         Stream& stream, int64_t total_elements,
         absl::FunctionRef<void(double)> progress, DeviceWeights* weights)
      : format_(format),
        team_(team),
        stream_(stream),
        total_elements_(total_elements),
        progress_(progress),
        weights_(*weights) {}

  // Copies from the staging buffers may still run when loading fails.
  ~Loader() { stream_.Wait(); }

  // A matrix of these outputs; with `bias`, one float per output. In
  // `own_format`, whatever others have, if that is there.
  absl::StatusOr<DeviceMatrix> Matrix(
      const std::vector<OutputRows>& rows, int32_t inputs,
      const std::vector<float>& bias,
      std::optional<WeightFormat> own_format = std::nullopt) {
    DeviceMatrix m;
    const WeightFormat format =
        own_format ? *own_format : format_.value_or(FormatOf(rows));
    if (!own_format) NoteFormat(format);
    int64_t outputs = 0;
    for (const OutputRows& part : rows) outputs += part.count;
    m.outputs = static_cast<int32_t>(outputs);
    m.inputs = inputs;
    m.output_tiles = OutputTiles(m.outputs);
    m.padded_inputs = PaddedInputs(inputs);
    m.format = format;
    BATON_ASSIGN_OR_RETURN(std::byte* const tiles, Take(m.tile_bytes()));
    m.tiles = tiles;
    const int64_t padded_outputs = int64_t{m.output_tiles} * kTileOutputs;
    std::vector<OutputRows> padded = rows;
    padded.push_back({nullptr, 0, padded_outputs - outputs});
    PackArgs pack;
    pack.type = CopiedType(rows, format);
    pack.inputs = inputs;
    pack.format = format;
    float* scales = nullptr;
    if (HasScalesAlready(pack.type)) {
      BATON_ASSIGN_OR_RETURN(scales, Vector(ScalesOf(padded)));
    } else if (HasOutputScales(format)) {
      BATON_ASSIGN_OR_RETURN(
          std::byte* const bytes,
          Take(padded_outputs * static_cast<int64_t>(sizeof(float))));
      scales = reinterpret_cast<float*>(bytes);
    }
    m.scales = scales;
    const int64_t tile_elements = int64_t{kTileOutputs} * inputs;
    const int64_t row_bytes = tile_elements * DTypeBytes(pack.type);
    const int64_t grid_bytes =
        HasSliceGrids(format) ? TileGridBytes(inputs) : 0;
    BATON_RETURN_IF_ERROR(Copy(
        m.output_tiles, row_bytes + grid_bytes, tile_elements,
        [&](const Piece& piece) {
          const int64_t output = piece.first * kTileOutputs;
          const int64_t outputs = piece.count * kTileOutputs;
          CopyOutputs(padded, pack.type, output, outputs, inputs,
                      piece.buffer + piece.at * row_bytes);
          if (grid_bytes == 0) return;
          // Behind all rows of the buffer.
          CopyGrids(padded, output, outputs, inputs,
                    reinterpret_cast<Int4Grid*>(piece.buffer +
                                                piece.total * row_bytes +
                                                piece.at * grid_bytes));
        },
        [&](int64_t first, int64_t count, const Staging& staging) {
          stream_.CopyToDevice(staging.device.data(), staging.host.data(),
                               count * (row_bytes + grid_bytes));
          pack.rows = staging.device.data();
          pack.grids =
              grid_bytes == 0
                  ? nullptr
                  : reinterpret_cast<Int4Grid*>(pack.rows + count * row_bytes);
          pack.tiles = static_cast<int32_t>(count);
          pack.out = tiles + first * TileBytes(format, m.padded_inputs);
          pack.scales =
              scales == nullptr ? nullptr : scales + first * kTileOutputs;
          RunPackTiles(pack, stream_.handle());
        }));
    weights_.matrix_bytes += m.bytes();
    if (!bias.empty()) {
      std::vector<float> padded_bias = bias;
      padded_bias.resize(padded_outputs, 0.0f);
      BATON_ASSIGN_OR_RETURN(m.bias, Vector(padded_bias));
    }
    return m;
  }

  // The rows of a matrix one after another.
  absl::StatusOr<const uint16_t*> Rows(const WeightMatrix& matrix) {
    const int64_t row_bytes = matrix.columns * 2;
    BATON_ASSIGN_OR_RETURN(std::byte* const to, Take(matrix.rows * row_bytes));
    const std::vector<OutputRows> rows = {{&matrix, 0, matrix.rows}};
    const DType type = CopiedType(rows, WeightFormat::kBf16);
    const auto inputs = static_cast<int32_t>(matrix.columns);
    BATON_RETURN_IF_ERROR(Copy(
        matrix.rows, row_bytes, matrix.columns,
        [&](const Piece& piece) {
          std::byte* const out = piece.buffer + piece.at * row_bytes;
          if (type == DType::kBf16) {
            CopyOutputs(rows, type, piece.first, piece.count, inputs, out);
            return;
          }
          const int64_t elements = piece.count * inputs;
          std::vector<std::byte> values(elements * DTypeBytes(type));
          CopyOutputs(rows, type, piece.first, piece.count, inputs,
                      values.data());
          ConvertToBf16(
              type, values,
              absl::MakeSpan(reinterpret_cast<uint16_t*>(out), elements));
        },
        [&](int64_t first, int64_t count, const Staging& staging) {
          stream_.CopyToDevice(to + first * row_bytes, staging.host.data(),
                               count * row_bytes);
        }));
    weights_.matrix_bytes += matrix.rows * row_bytes;
    return reinterpret_cast<const uint16_t*>(to);
  }

  absl::StatusOr<float*> Vector(const std::vector<float>& values) {
    if (values.empty()) return nullptr;
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
    BATON_ASSIGN_OR_RETURN(std::byte* const to, Take(bytes));
    // Not pinned: the copy is over when the call returns, or a moment later.
    stream_.CopyToDevice(to, values.data(), bytes);
    stream_.Wait();
    return reinterpret_cast<float*>(to);
  }

 private:
  void NoteFormat(WeightFormat format) {
    std::vector<WeightFormat>& formats = weights_.formats;
    // The narrowest have the greatest numbers.
    const auto at = std::lower_bound(formats.begin(), formats.end(), format,
                                     std::greater<>());
    if (at == formats.end() || *at != format) formats.insert(at, format);
  }

  absl::StatusOr<std::byte*> Take(int64_t bytes) {
    BATON_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                           DeviceBuffer::Allocate(bytes, "weights"));
    weights_.memory.push_back(std::move(buffer));
    return weights_.memory.back().data();
  }

  // Items [first, first + count): those from `at` on of the `total` that pass
  // through a buffer at a time.
  struct Piece {
    int64_t first = 0;
    int64_t count = 0;
    std::byte* buffer = nullptr;
    int64_t at = 0;
    int64_t total = 0;
  };

  struct Staging {
    PinnedBuffer host;
    DeviceBuffer device;
    int64_t bytes = 0;  // of each
    Event copied;       // what was given of it is on the device
    bool used = false;
  };

  // Small models take little. REQUIRES: nothing is copied from it.
  static absl::Status Grow(int64_t bytes, Staging& staging) {
    if (staging.bytes >= bytes) return absl::OkStatus();
    constexpr char kPurpose[] = "staging of weights";
    BATON_ASSIGN_OR_RETURN(staging.host,
                           PinnedBuffer::Allocate(bytes, kPurpose));
    BATON_ASSIGN_OR_RETURN(staging.device,
                           DeviceBuffer::Allocate(bytes, kPurpose));
    staging.bytes = bytes;
    return absl::OkStatus();
  }

  // For `count` items of `item_bytes` each, as many at a time as a buffer
  // holds: `make` writes pieces of them, on several threads at the
  // same time, then `give(first, count, staging)` gives the stream what copies
  // them. An item is made of `item_elements` weights, for progress.
  absl::Status Copy(
      int64_t count, int64_t item_bytes, int64_t item_elements,
      absl::FunctionRef<void(const Piece&)> make,
      absl::FunctionRef<void(int64_t, int64_t, const Staging&)> give) {
    if (item_bytes > kStagingBytes) {
      return absl::ResourceExhaustedError("a row of weights is too large");
    }
    const int64_t per_buffer = kStagingBytes / item_bytes;
    // Enough for a thread to be worth its call, few enough to share them out.
    const int64_t per_call =
        std::clamp<int64_t>(per_buffer / (4 * team_.num_threads()), 1, 64);
    for (int64_t first = 0; first < count; first += per_buffer) {
      const int64_t here = std::min(per_buffer, count - first);
      Staging& staging = staging_[next_];
      if (staging.used) staging.copied.Wait();
      BATON_RETURN_IF_ERROR(Grow(here * item_bytes, staging));
      team_.ParallelFor((here + per_call - 1) / per_call,
                        [&](int64_t item, int32_t) {
                          const int64_t begin = item * per_call;
                          make({first + begin, std::min(per_call, here - begin),
                                staging.host.data(), begin, here});
                        });
      give(first, here, staging);
      stream_.Record(staging.copied);
      staging.used = true;
      next_ = 1 - next_;
      done_elements_ += here * item_elements;
      progress_(static_cast<double>(done_elements_) /
                static_cast<double>(total_elements_));
    }
    return absl::OkStatus();
  }

  const std::optional<WeightFormat> format_;
  cpu::ThreadTeam& team_;
  Stream& stream_;
  const int64_t total_elements_;
  const absl::FunctionRef<void(double)> progress_;
  DeviceWeights& weights_;
  Staging staging_[2];
  int next_ = 0;
  int64_t done_elements_ = 0;
};

std::vector<float> FloatsOf(const TensorView& view) {
  std::vector<float> values(view.num_elements());
  ConvertToFloat(view.dtype, view.bytes, absl::MakeSpan(values));
  return values;
}
std::vector<float> FloatsOf(const std::optional<TensorView>& view) {
  return view ? FloatsOf(*view) : std::vector<float>();
}

// The share of a rank.
struct Part {
  int64_t first = 0;
  int64_t count = 0;
};
Part PartOf(const Shard& shard, int64_t count) {
  return {shard.rank * count / shard.ranks, count / shard.ranks};
}
OutputRows RowsOf(const WeightMatrix& matrix, const Shard& shard) {
  const Part part = PartOf(shard, matrix.rows);
  return {&matrix, part.first, part.count};
}
// Of a norm or a bias; nothing of one that is not there.
std::vector<float> FloatsOf(const std::optional<TensorView>& view,
                            const Shard& shard) {
  const std::vector<float> all = FloatsOf(view);
  const Part part = PartOf(shard, static_cast<int64_t>(all.size()));
  return {all.begin() + part.first, all.begin() + part.first + part.count};
}

// Outputs up to a whole tile that are not there.
void PadTile(int64_t count, std::vector<OutputRows>& rows) {
  const int64_t padding = (kTileOutputs - count % kTileOutputs) % kTileOutputs;
  if (padding > 0) rows.push_back({nullptr, 0, padding});
}

// Adds tiles of gate and of up in turns, the last ones padded.
void AddGateUpRows(const WeightMatrix& gate, const WeightMatrix& up,
                   const Shard& shard, std::vector<OutputRows>& rows) {
  const Part part = PartOf(shard, gate.rows);
  for (int64_t at = 0; at < part.count; at += kTileOutputs) {
    const int64_t count = std::min<int64_t>(kTileOutputs, part.count - at);
    for (const WeightMatrix* matrix : {&gate, &up}) {
      rows.push_back({matrix, part.first + at, count});
      PadTile(count, rows);
    }
  }
}

// The same for their biases.
std::vector<float> GateUpBias(const std::vector<float>& gate,
                              const std::vector<float>& up) {
  std::vector<float> bias;
  for (size_t first = 0; first < gate.size(); first += kTileOutputs) {
    for (const std::vector<float>* part : {&gate, &up}) {
      for (size_t i = first; i < first + kTileOutputs; ++i) {
        bias.push_back(i < part->size() ? (*part)[i] : 0.0f);
      }
    }
  }
  return bias;
}

// Adds those of an expert, padded as AddGateUpRows and PadTile do it.
void AddExpertBias(const ExpertWeights& expert, const Shard& shard,
                   std::vector<float>& gate_up, std::vector<float>& down) {
  if (!expert.gate_up_bias.has_value()) return;
  const std::vector<float> all = FloatsOf(expert.gate_up_bias);
  const Part part = PartOf(shard, static_cast<int64_t>(all.size()) / 2);
  std::vector<float> of_gate;
  std::vector<float> of_up;
  for (int64_t i = part.first; i < part.first + part.count; ++i) {
    of_gate.push_back(all[2 * i]);
    of_up.push_back(all[2 * i + 1]);
  }
  const std::vector<float> in_tiles = GateUpBias(of_gate, of_up);
  gate_up.insert(gate_up.end(), in_tiles.begin(), in_tiles.end());
  const std::vector<float> of_down = FloatsOf(expert.down_bias, shard);
  down.insert(down.end(), of_down.begin(), of_down.end());
  down.resize((down.size() + kTileOutputs - 1) / kTileOutputs * kTileOutputs);
}

// Tokens of the vocabulary; what a rank has beyond them is zero.
std::vector<OutputRows> HeadRows(const ModelConfig& config,
                                 const WeightMatrix& head, const Shard& shard) {
  const int64_t share = shard.Vocabulary(config);
  const int64_t first = std::min(shard.rank * share, head.rows);
  const int64_t count = std::min(share, head.rows - first);
  std::vector<OutputRows> rows;
  if (count > 0) rows.push_back({&head, first, count});
  if (count < share) rows.push_back({nullptr, 0, share - count});
  return rows;
}

// Each expert's outputs begin with a tile of their own.
absl::Status LoadExperts(const ModelConfig& config, const LayerWeights& in,
                         const Shard& shard, Loader& loader,
                         DeviceLayer& layer) {
  const WeightMatrix& router = *in.expert_router;
  BATON_ASSIGN_OR_RETURN(
      layer.expert_router,
      loader.Matrix({{&router, 0, router.rows}}, config.hidden_size,
                    FloatsOf(in.router_bias), WeightFormat::kBf16));
  BATON_ASSIGN_OR_RETURN(layer.choice_bias,
                         loader.Vector(FloatsOf(in.choice_bias)));
  std::vector<OutputRows> gate_up;
  std::vector<OutputRows> down;
  std::vector<float> gate_up_bias;
  std::vector<float> down_bias;
  for (const ExpertWeights& expert : in.experts) {
    AddExpertBias(expert, shard, gate_up_bias, down_bias);
    AddGateUpRows(expert.gate_proj, expert.up_proj, shard, gate_up);
    down.push_back(RowsOf(expert.down_proj, shard));
    PadTile(down.back().count, down);
  }
  const auto first_of_all = [&](DeviceMatrix& all, int32_t outputs) {
    all.outputs = outputs;
    all.output_tiles /= config.experts.all();
  };
  BATON_ASSIGN_OR_RETURN(
      layer.gate_up, loader.Matrix(gate_up, config.hidden_size, gate_up_bias));
  first_of_all(layer.gate_up, 2 * shard.ExpertIntermediate(config));
  BATON_ASSIGN_OR_RETURN(
      layer.down,
      loader.Matrix(down, config.experts.intermediate_size, down_bias));
  first_of_all(layer.down, shard.Hidden(config));
  return absl::OkStatus();
}

absl::StatusOr<DeviceLayer> LoadLayer(const ModelConfig& config,
                                      const LayerWeights& in,
                                      const Shard& shard, Loader& loader) {
  DeviceLayer layer;
  BATON_ASSIGN_OR_RETURN(layer.input_norm,
                         loader.Vector(NormWeights(config, in.input_norm)));
  std::vector<float> qkv_bias;
  for (const auto* part : {&in.q_bias, &in.k_bias, &in.v_bias}) {
    const std::vector<float> values = FloatsOf(*part, shard);
    qkv_bias.insert(qkv_bias.end(), values.begin(), values.end());
  }
  BATON_ASSIGN_OR_RETURN(
      layer.qkv,
      loader.Matrix({RowsOf(in.q_proj, shard), RowsOf(in.k_proj, shard),
                     RowsOf(in.v_proj, shard)},
                    config.hidden_size, qkv_bias));
  BATON_ASSIGN_OR_RETURN(layer.q_norm,
                         loader.Vector(NormWeights(config, in.q_norm)));
  BATON_ASSIGN_OR_RETURN(layer.k_norm,
                         loader.Vector(NormWeights(config, in.k_norm)));
  std::vector<float> sinks = FloatsOf(in.sinks, shard);
  for (float& sink : sinks) sink *= static_cast<float>(kLog2E);
  BATON_ASSIGN_OR_RETURN(layer.sinks, loader.Vector(sinks));
  BATON_ASSIGN_OR_RETURN(layer.o,
                         loader.Matrix({RowsOf(in.o_proj, shard)},
                                       config.num_heads * config.head_dim,
                                       FloatsOf(in.o_bias, shard)));
  BATON_ASSIGN_OR_RETURN(
      layer.attention_out_norm,
      loader.Vector(NormWeights(config, in.attention_out_norm)));
  BATON_ASSIGN_OR_RETURN(
      layer.feed_forward_out_norm,
      loader.Vector(NormWeights(config, in.feed_forward_out_norm)));
  BATON_ASSIGN_OR_RETURN(
      layer.post_attention_norm,
      loader.Vector(NormWeights(config, in.post_attention_norm)));
  if (in.expert_router) {
    BATON_RETURN_IF_ERROR(LoadExperts(config, in, shard, loader, layer));
    return layer;
  }
  std::vector<OutputRows> gate_up;
  AddGateUpRows(in.gate_proj, in.up_proj, shard, gate_up);
  BATON_ASSIGN_OR_RETURN(
      layer.gate_up, loader.Matrix(gate_up, config.hidden_size,
                                   GateUpBias(FloatsOf(in.gate_bias, shard),
                                              FloatsOf(in.up_bias, shard))));
  // Padding counts as outputs so far; half of the rest is what SwiGLU gives.
  layer.gate_up.outputs = 2 * shard.Intermediate(config);
  BATON_ASSIGN_OR_RETURN(
      layer.down,
      loader.Matrix({RowsOf(in.down_proj, shard)}, config.intermediate_size,
                    FloatsOf(in.down_bias, shard)));
  return layer;
}

int64_t ElementsOf(const ModelWeights& weights) {
  int64_t elements = 0;
  for (const WeightMatrix* matrix : weights.AllMatrices()) {
    elements += matrix->rows * matrix->columns;
  }
  return elements;
}

}  // namespace

std::vector<WeightFormat> DeviceWeights::ProductFormats() const {
  std::vector<WeightFormat> all = formats;
  if (has_experts() &&
      std::count(all.begin(), all.end(), WeightFormat::kBf16) == 0) {
    all.push_back(WeightFormat::kBf16);
  }
  return all;
}

bool DeviceWeights::has_experts() const {
  return std::any_of(layers.begin(), layers.end(), [](const DeviceLayer& l) {
    return l.expert_router.output_tiles > 0;
  });
}

absl::StatusOr<DeviceWeights> LoadDeviceWeights(
    const ModelConfig& config, const ModelWeights& weights,
    std::optional<WeightFormat> format, const Shard& shard,
    cpu::ThreadTeam& team, Stream& stream,
    absl::FunctionRef<void(double)> progress) {
  DeviceWeights result;
  Loader loader(format, team, stream, ElementsOf(weights) / shard.ranks,
                progress, &result);
  const bool tied = !weights.lm_head.has_value();
  for (const LayerWeights& layer : weights.layers) {
    BATON_ASSIGN_OR_RETURN(DeviceLayer loaded,
                           LoadLayer(config, layer, shard, loader));
    result.layers.push_back(loaded);
    for (const WeightMatrix* matrix : layer.Matrices()) ReleasePages(*matrix);
  }
  BATON_ASSIGN_OR_RETURN(result.final_norm, loader.Vector(NormWeights(
                                                config, weights.final_norm)));
  const WeightMatrix& head = tied ? weights.embedding : *weights.lm_head;
  BATON_ASSIGN_OR_RETURN(
      result.lm_head,
      loader.Matrix(HeadRows(config, head, shard), config.hidden_size, {}));
  if (!tied) {
    BATON_ASSIGN_OR_RETURN(result.embedding, loader.Rows(weights.embedding));
    ReleasePages(weights.embedding);
  } else if (shard.ranks == 1) {
    result.tied_embedding = result.lm_head;
  } else {
    BATON_ASSIGN_OR_RETURN(
        result.tied_embedding,
        loader.Matrix({{&head, 0, head.rows}}, config.hidden_size, {}));
  }
  ReleasePages(head);
  return result;
}

}  // namespace baton::engine::cuda
