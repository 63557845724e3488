#include "engine/cuda/device_weights.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/log.h"
#include "common/status_macros.h"
#include "engine/cuda/pack_tiles.h"
#include "engine/float_convert.h"
#include "engine/weight_matrix.h"

namespace baton::engine::cuda {
namespace {

// Of each of the two pinned buffers that weights pass through.
constexpr int64_t kStagingBytes = int64_t{32} << 20;

// Loads into device memory through two pinned buffers in turns.
class Loader final {
 public:
  Loader(WeightFormat format, cpu::ThreadTeam& team, Stream& stream,
         int64_t total_elements, absl::FunctionRef<void(double)> progress,
         DeviceWeights* weights)
      : format_(format),
        team_(team),
        stream_(stream),
        total_elements_(total_elements),
        progress_(progress),
        weights_(*weights) {}

  // Copies from the staging buffers may still run when loading fails.
  ~Loader() { stream_.Wait(); }

  absl::Status Open() {
    for (PinnedBuffer& buffer : staging_) {
      BATON_ASSIGN_OR_RETURN(
          buffer, PinnedBuffer::Allocate(kStagingBytes, "staging of weights"));
    }
    return absl::OkStatus();
  }

  // A matrix of these outputs; with `bias`, one float per output.
  absl::StatusOr<DeviceMatrix> Matrix(const std::vector<OutputRows>& rows,
                                      int32_t inputs,
                                      const std::vector<float>& bias) {
    DeviceMatrix m;
    int64_t outputs = 0;
    for (const OutputRows& part : rows) outputs += part.count;
    m.outputs = static_cast<int32_t>(outputs);
    m.inputs = inputs;
    m.output_tiles = OutputTiles(m.outputs);
    m.padded_inputs = PaddedInputs(inputs);
    m.format = format_;
    BATON_ASSIGN_OR_RETURN(std::byte* const tiles, Take(m.tile_bytes()));
    m.tiles = tiles;
    const int64_t padded_outputs = int64_t{m.output_tiles} * kTileOutputs;
    std::vector<float> scales(HasOutputScales(format_) ? padded_outputs : 0);
    BATON_RETURN_IF_ERROR(
        Copy(tiles, m.output_tiles, TileBytes(format_, m.padded_inputs),
             int64_t{kTileOutputs} * inputs,
             [&](int64_t first, int64_t count, std::byte* out) {
               PackTiles(format_, rows, inputs, first, count, out,
                         scales.empty() ? nullptr
                                        : scales.data() + first * kTileOutputs);
             }));
    BATON_ASSIGN_OR_RETURN(m.scales, Vector(scales));
    weights_.matrix_bytes += m.bytes();
    if (!bias.empty()) {
      std::vector<float> padded = bias;
      padded.resize(padded_outputs, 0.0f);
      BATON_ASSIGN_OR_RETURN(m.bias, Vector(padded));
    }
    return m;
  }

  // The rows of a matrix one after another.
  absl::StatusOr<const uint16_t*> Rows(const WeightMatrix& matrix) {
    const int64_t row_bytes = matrix.columns * 2;
    BATON_ASSIGN_OR_RETURN(std::byte* const to, Take(matrix.rows * row_bytes));
    BATON_RETURN_IF_ERROR(
        Copy(to, matrix.rows, row_bytes, matrix.columns,
             [&](int64_t first, int64_t count, std::byte* out) {
               std::vector<float> values(count * matrix.columns);
               ReadRows(matrix, first, count, absl::MakeSpan(values));
               auto* const bits = reinterpret_cast<uint16_t*>(out);
               for (size_t i = 0; i < values.size(); ++i) {
                 bits[i] = FloatToBf16(values[i]);
               }
             }));
    weights_.matrix_bytes += matrix.rows * row_bytes;
    return reinterpret_cast<const uint16_t*>(to);
  }

  absl::StatusOr<const float*> Vector(const std::vector<float>& values) {
    if (values.empty()) return nullptr;
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
    BATON_ASSIGN_OR_RETURN(std::byte* const to, Take(bytes));
    // Not pinned: the copy is over when the call returns, or a moment later.
    stream_.CopyToDevice(to, values.data(), bytes);
    stream_.Wait();
    return reinterpret_cast<const float*>(to);
  }

 private:
  absl::StatusOr<std::byte*> Take(int64_t bytes) {
    BATON_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                           DeviceBuffer::Allocate(bytes, "weights"));
    weights_.memory.push_back(std::move(buffer));
    return weights_.memory.back().data();
  }

  // Fills `count` items of `item_bytes` each at `to` with what `make(first,
  // count, out)` writes; it runs on several threads at the same time. An item
  // is made of `item_elements` weights, for progress.
  absl::Status Copy(
      std::byte* to, int64_t count, int64_t item_bytes, int64_t item_elements,
      absl::FunctionRef<void(int64_t, int64_t, std::byte*)> make) {
    if (item_bytes > kStagingBytes) {
      return absl::ResourceExhaustedError("a row of weights is too large");
    }
    const int64_t per_buffer = kStagingBytes / item_bytes;
    // Enough for a thread to be worth its call, few enough to share them out.
    const int64_t per_call =
        std::clamp<int64_t>(per_buffer / (4 * team_.num_threads()), 1, 64);
    for (int64_t first = 0; first < count; first += per_buffer) {
      const int64_t here = std::min(per_buffer, count - first);
      PinnedBuffer& buffer = staging_[next_];
      if (used_[next_]) copied_[next_].Wait();
      team_.ParallelFor((here + per_call - 1) / per_call,
                        [&](int64_t item, int32_t) {
                          const int64_t begin = item * per_call;
                          make(first + begin, std::min(per_call, here - begin),
                               buffer.data() + begin * item_bytes);
                        });
      stream_.CopyToDevice(to + first * item_bytes, buffer.data(),
                           here * item_bytes);
      stream_.Record(copied_[next_]);
      used_[next_] = true;
      next_ = 1 - next_;
      done_elements_ += here * item_elements;
      progress_(static_cast<double>(done_elements_) /
                static_cast<double>(total_elements_));
    }
    return absl::OkStatus();
  }

  const WeightFormat format_;
  cpu::ThreadTeam& team_;
  Stream& stream_;
  const int64_t total_elements_;
  const absl::FunctionRef<void(double)> progress_;
  DeviceWeights& weights_;
  PinnedBuffer staging_[2];
  Event copied_[2];
  bool used_[2] = {false, false};
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

std::vector<OutputRows> AllRows(const WeightMatrix& m) {
  return {{&m, 0, m.rows}};
}

// Tiles of gate and of up in turns, the last ones padded.
std::vector<OutputRows> GateUpRows(const LayerWeights& in) {
  std::vector<OutputRows> rows;
  for (int64_t first = 0; first < in.gate_proj.rows; first += kTileOutputs) {
    const int64_t count =
        std::min<int64_t>(kTileOutputs, in.gate_proj.rows - first);
    for (const WeightMatrix* matrix : {&in.gate_proj, &in.up_proj}) {
      rows.push_back({matrix, first, count});
      if (count < kTileOutputs) {
        rows.push_back({nullptr, 0, kTileOutputs - count});
      }
    }
  }
  return rows;
}

// The same for their biases.
std::vector<float> GateUpBias(const LayerWeights& in) {
  std::vector<float> bias;
  const std::vector<float> gate = FloatsOf(in.gate_bias);
  const std::vector<float> up = FloatsOf(in.up_bias);
  for (size_t first = 0; first < gate.size(); first += kTileOutputs) {
    for (const std::vector<float>* part : {&gate, &up}) {
      for (size_t i = first; i < first + kTileOutputs; ++i) {
        bias.push_back(i < part->size() ? (*part)[i] : 0.0f);
      }
    }
  }
  return bias;
}

absl::StatusOr<DeviceLayer> LoadLayer(const ModelConfig& config,
                                      const LayerWeights& in, Loader& loader) {
  DeviceLayer layer;
  BATON_ASSIGN_OR_RETURN(layer.input_norm,
                         loader.Vector(FloatsOf(in.input_norm)));
  std::vector<float> qkv_bias;
  for (const auto* part : {&in.q_bias, &in.k_bias, &in.v_bias}) {
    const std::vector<float> values = FloatsOf(*part);
    qkv_bias.insert(qkv_bias.end(), values.begin(), values.end());
  }
  BATON_ASSIGN_OR_RETURN(layer.qkv,
                         loader.Matrix({{&in.q_proj, 0, in.q_proj.rows},
                                        {&in.k_proj, 0, in.k_proj.rows},
                                        {&in.v_proj, 0, in.v_proj.rows}},
                                       config.hidden_size, qkv_bias));
  BATON_ASSIGN_OR_RETURN(layer.q_norm, loader.Vector(FloatsOf(in.q_norm)));
  BATON_ASSIGN_OR_RETURN(layer.k_norm, loader.Vector(FloatsOf(in.k_norm)));
  BATON_ASSIGN_OR_RETURN(
      layer.o,
      loader.Matrix(AllRows(in.o_proj), config.num_heads * config.head_dim,
                    FloatsOf(in.o_bias)));
  BATON_ASSIGN_OR_RETURN(layer.post_attention_norm,
                         loader.Vector(FloatsOf(in.post_attention_norm)));
  BATON_ASSIGN_OR_RETURN(
      layer.gate_up,
      loader.Matrix(GateUpRows(in), config.hidden_size, GateUpBias(in)));
  // Padding counts as outputs so far; half of the rest is what SwiGLU gives.
  layer.gate_up.outputs = 2 * config.intermediate_size;
  BATON_ASSIGN_OR_RETURN(
      layer.down, loader.Matrix(AllRows(in.down_proj), config.intermediate_size,
                                FloatsOf(in.down_bias)));
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

absl::StatusOr<DeviceWeights> LoadDeviceWeights(
    const ModelConfig& config, const ModelWeights& weights, WeightFormat format,
    cpu::ThreadTeam& team, Stream& stream,
    absl::FunctionRef<void(double)> progress) {
  DeviceWeights result;
  Loader loader(format, team, stream, ElementsOf(weights), progress, &result);
  BATON_RETURN_IF_ERROR(loader.Open());
  const bool tied = !weights.lm_head.has_value();
  for (const LayerWeights& layer : weights.layers) {
    BATON_ASSIGN_OR_RETURN(DeviceLayer loaded,
                           LoadLayer(config, layer, loader));
    result.layers.push_back(loaded);
    for (const WeightMatrix* matrix :
         {&layer.q_proj, &layer.k_proj, &layer.v_proj, &layer.o_proj,
          &layer.gate_proj, &layer.up_proj, &layer.down_proj}) {
      ReleasePages(*matrix);
    }
  }
  BATON_ASSIGN_OR_RETURN(result.final_norm,
                         loader.Vector(FloatsOf(weights.final_norm)));
  const WeightMatrix& head = tied ? weights.embedding : *weights.lm_head;
  BATON_ASSIGN_OR_RETURN(result.lm_head,
                         loader.Matrix(AllRows(head), config.hidden_size, {}));
  ReleasePages(head);
  if (!tied) {
    BATON_ASSIGN_OR_RETURN(result.embedding, loader.Rows(weights.embedding));
    ReleasePages(weights.embedding);
  }
  return result;
}

}  // namespace baton::engine::cuda
