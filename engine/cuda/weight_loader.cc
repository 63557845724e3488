#include "engine/cuda/weight_loader.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/types/span.h"
#include "common/status_macros.h"
#include "engine/cuda/pack_tiles.h"
#include "engine/dtype.h"
#include "engine/float_convert.h"
#include "engine/int4_grid.h"

namespace baton::engine::cuda {
namespace {

// At most, of each of the pinned buffers that weights pass through, and of
// those on the device.
constexpr int64_t kStagingBytes = int64_t{32} << 20;

}  // namespace

WeightLoader::WeightLoader(std::optional<WeightFormat> format,
                           cpu::ThreadTeam& team, Stream& stream,
                           int64_t total_elements,
                           absl::FunctionRef<void(double)> progress,
                           DeviceWeights* weights)
    : format_(format),
      team_(team),
      stream_(stream),
      total_elements_(total_elements),
      progress_(progress),
      weights_(*weights) {}

WeightLoader::~WeightLoader() { stream_.Wait(); }

absl::StatusOr<DeviceMatrix> WeightLoader::Matrix(
    const std::vector<OutputRows>& rows, int32_t inputs,
    const std::vector<float>& bias, std::optional<WeightFormat> own_format) {
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
  const int64_t grid_bytes = HasSliceGrids(format) ? TileGridBytes(inputs) : 0;
  BATON_RETURN_IF_ERROR(Copy(
      m.output_tiles, row_bytes + grid_bytes, tile_elements,
      [&](const Piece& piece) {
        const int64_t output = piece.first * kTileOutputs;
        const int64_t outputs = piece.count * kTileOutputs;
        CopyOutputs(padded, pack.type, output, outputs, inputs,
                    piece.buffer + piece.at * row_bytes);
        if (grid_bytes == 0) return;
        // Behind all rows of the buffer.
        CopyGrids(
            padded, output, outputs, inputs,
            reinterpret_cast<Int4Grid*>(piece.buffer + piece.total * row_bytes +
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

absl::StatusOr<const uint16_t*> WeightLoader::Rows(const WeightMatrix& matrix) {
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

absl::StatusOr<float*> WeightLoader::Vector(const std::vector<float>& values) {
  if (values.empty()) return nullptr;
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  BATON_ASSIGN_OR_RETURN(std::byte* const to, Take(bytes));
  // Not pinned: the copy is over when the call returns, or a moment later.
  stream_.CopyToDevice(to, values.data(), bytes);
  stream_.Wait();
  return reinterpret_cast<float*>(to);
}

void WeightLoader::NoteFormat(WeightFormat format) {
  std::vector<WeightFormat>& formats = weights_.formats;
  // The narrowest have the greatest numbers.
  const auto at = std::lower_bound(formats.begin(), formats.end(), format,
                                   std::greater<>());
  if (at == formats.end() || *at != format) formats.insert(at, format);
}

absl::StatusOr<std::byte*> WeightLoader::Take(int64_t bytes) {
  BATON_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                         DeviceBuffer::Allocate(bytes, "weights"));
  weights_.memory.push_back(std::move(buffer));
  return weights_.memory.back().data();
}

absl::Status WeightLoader::Grow(int64_t bytes, Staging& staging) {
  if (staging.bytes >= bytes) return absl::OkStatus();
  constexpr char kPurpose[] = "staging of weights";
  BATON_ASSIGN_OR_RETURN(staging.host, PinnedBuffer::Allocate(bytes, kPurpose));
  BATON_ASSIGN_OR_RETURN(staging.device,
                         DeviceBuffer::Allocate(bytes, kPurpose));
  staging.bytes = bytes;
  return absl::OkStatus();
}

absl::Status WeightLoader::Copy(
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

}  // namespace baton::engine::cuda
