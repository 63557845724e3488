#include "engine/cuda/device_kernels.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "engine/cuda/attention.h"
#include "engine/cuda/weight_tiles.h"
#include "engine/kv_layout.h"

namespace baton::engine::cuda {
namespace {

// Two chunks; of groups, one block.
constexpr int32_t kOutputs = 128;
constexpr int32_t kInputs = 576;
constexpr int32_t kManyRows = kLargeTileRows;
constexpr int32_t kSomeRows = 17;

// bfloat16 of either sign, of magnitudes from 2^-7 to 2, so that sums have to
// be rounded.
std::vector<uint16_t> RandomValues(int64_t count, uint32_t seed) {
  std::mt19937 bits(seed);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) {
    const uint32_t drawn = bits();
    const uint32_t exponent = 120 + drawn % 8;
    value = static_cast<uint16_t>((drawn >> 16 & 0x807f) | exponent << 7);
  }
  return values;
}

constexpr char kTrial[] = "a trial of kernels";

template <typename T>
absl::StatusOr<DeviceBuffer> PutOnDevice(const std::vector<T>& values,
                                         Stream& stream) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  BATON_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                         DeviceBuffer::Allocate(bytes, kTrial));
  stream.CopyToDevice(buffer.data(), values.data(), bytes);
  stream.Wait();
  return buffer;
}

// A product, and where its results go.
class ProductTrial final {
 public:
  static absl::StatusOr<ProductTrial> Create(Stream& stream) {
    ProductTrial trial(stream);
    // In whatever order: any numbers do.
    BATON_ASSIGN_OR_RETURN(
        trial.weights_,
        PutOnDevice(RandomValues(int64_t{kOutputs} * kInputs, 1), stream));
    const std::vector<uint16_t> x =
        RandomValues(int64_t{kManyRows} * kInputs, 2);
    std::vector<uint16_t> staged(StagedRows(kManyRows) * kInputs);
    for (int32_t row = 0; row < kManyRows; ++row) {
      for (int32_t i = 0; i < kInputs; ++i) {
        staged[PlaceOfInput(InputOrder::kStaged, row, i, kInputs)] =
            x[row * kInputs + i];
      }
    }
    BATON_ASSIGN_OR_RETURN(trial.x_, PutOnDevice(x, stream));
    BATON_ASSIGN_OR_RETURN(trial.x_staged_, PutOnDevice(staged, stream));
    BATON_ASSIGN_OR_RETURN(trial.out_,
                           DeviceBuffer::Allocate(kOutBytes, kTrial));
    return trial;
  }

  std::vector<float> Run(MatmulKernel kernel, int32_t rows) {
    const bool staged = kernel == MatmulKernel::kGroup;
    MatmulArgs args;
    args.w.tiles = weights_.data();
    args.w.outputs = kOutputs;
    args.w.inputs = kInputs;
    args.w.output_tiles = OutputTiles(kOutputs);
    args.w.padded_inputs = PaddedInputs(kInputs);
    args.x = (staged ? x_staged_ : x_).as<uint16_t>();
    args.x_stride = kInputs;
    args.x_order = staged ? InputOrder::kStaged : InputOrder::kNatural;
    args.rows = rows;
    args.out = out_.as<float>();
    args.out_stride = kOutputs;
    stream_->Fill(out_.data(), 0xff, out_.bytes());
    RunMatmul(PlanMatmul(args, MatmulOutput::kStore, kernel), args,
              MatmulOutput::kStore, stream_->handle());
    std::vector<float> y(int64_t{rows} * kOutputs);
    stream_->CopyToHost(y.data(), out_.data(),
                        static_cast<int64_t>(y.size() * sizeof(float)));
    stream_->Wait();
    return y;
  }

 private:
  static constexpr int64_t kOutBytes =
      int64_t{kManyRows} * kOutputs * int64_t{sizeof(float)};

  explicit ProductTrial(Stream& stream) : stream_(&stream) {}

  Stream* stream_;
  DeviceBuffer weights_;
  DeviceBuffer x_;
  DeviceBuffer x_staged_;
  DeviceBuffer out_;
};

// A prompt's attention: two KV heads, more than a span of positions, and a tile
// that is not full.
class AttentionTrial final {
 public:
  static absl::StatusOr<AttentionTrial> Create(Stream& stream) {
    AttentionTrial trial(stream);
    KvLayout& layout = trial.layout_;
    layout.num_layers = 1;
    layout.block_size = 64;
    layout.num_kv_heads = kKvHeads;
    layout.head_dim = kHeadDim;
    layout.num_blocks = (kPositions + 63) / 64;
    // In whatever order: any numbers do.
    BATON_ASSIGN_OR_RETURN(
        trial.pages_,
        PutOnDevice(RandomValues(layout.total_bytes() / 2, 3), stream));
    BATON_ASSIGN_OR_RETURN(
        trial.queries_,
        PutOnDevice(RandomValues(int64_t{kRows} * kHeads * kHeadDim, 4),
                    stream));
    std::vector<BlockId> blocks(layout.num_blocks);
    std::iota(blocks.begin(), blocks.end(), 0);
    BATON_ASSIGN_OR_RETURN(trial.blocks_, PutOnDevice(blocks, stream));
    BATON_ASSIGN_OR_RETURN(trial.out_,
                           DeviceBuffer::Allocate(kOutElements * 2, kTrial));
    return trial;
  }

  absl::StatusOr<std::vector<uint16_t>> Run(int32_t tile_queries) {
    std::vector<QueryTile> tiles;
    const int32_t tile_rows = MaxTileRows(kHeads / kKvHeads, tile_queries);
    for (int32_t row = 0; row < kRows; row += tile_rows) {
      tiles.push_back({row, row, std::min(tile_rows, kRows - row),
                       kPositions - kRows + row, /*block_table=*/0});
    }
    BATON_ASSIGN_OR_RETURN(const DeviceBuffer on_device,
                           PutOnDevice(tiles, *stream_));
    AttentionArgs args;
    args.queries = queries_.as<uint16_t>();
    args.pages = pages_.data();
    args.page_bytes = layout_.page_bytes();
    args.head_bytes = layout_.head_bytes();
    args.values_offset = layout_.ValuesOffset();
    args.scales_offset = layout_.KeyScalesOffset();
    args.block_size = layout_.block_size;
    args.block_tables = blocks_.as<BlockId>();
    args.tiles = on_device.as<QueryTile>();
    args.num_tiles = static_cast<int32_t>(tiles.size());
    args.tile_queries = tile_queries;
    args.num_heads = kHeads;
    args.num_kv_heads = kKvHeads;
    args.head_dim = args.stored_head_dim = kHeadDim;
    args.score_factor = ScoreFactor(kHeadDim);
    args.out = out_.as<uint16_t>();
    args.out_stride = kHeads * kHeadDim;
    stream_->Fill(out_.data(), 0xff, out_.bytes());
    RunAttention(args, stream_->handle());
    std::vector<uint16_t> y(kOutElements);
    stream_->CopyToHost(y.data(), out_.data(), kOutElements * 2);
    stream_->Wait();
    return y;
  }

 private:
  static constexpr int32_t kHeads = 4;
  static constexpr int32_t kKvHeads = 2;
  static constexpr int32_t kHeadDim = 128;
  static constexpr int32_t kPositions = 300;
  static constexpr int32_t kRows = 100;
  static constexpr int64_t kOutElements = int64_t{kRows} * kHeads * kHeadDim;

  explicit AttentionTrial(Stream& stream) : stream_(&stream) {}

  Stream* stream_;
  KvLayout layout_;
  DeviceBuffer pages_;
  DeviceBuffer queries_;
  DeviceBuffer blocks_;
  DeviceBuffer out_;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

DeviceKernels KernelsOf(const DeviceProperties& device) {
  DeviceKernels kernels;
  kernels.group = device.group_products;
  kernels.wide = device.clusters;
  kernels.group_attention = device.group_products;
  return kernels;
}

absl::StatusOr<DeviceKernels> KernelsThatAgree(const DeviceKernels& kernels,
                                               Stream& stream) {
  DeviceKernels usable;
  if (kernels.group_attention) {
    BATON_ASSIGN_OR_RETURN(AttentionTrial trial,
                           AttentionTrial::Create(stream));
    BATON_ASSIGN_OR_RETURN(const std::vector<uint16_t> tiles,
                           trial.Run(kTileQueries));
    BATON_ASSIGN_OR_RETURN(const std::vector<uint16_t> groups,
                           trial.Run(kGroupTileQueries));
    usable.group_attention = groups == tiles;
    LOG_IF(WARNING, !usable.group_attention)
        << "attention by wgmma has other bits than by mma.sync on this device: "
           "prompts go without it, and take longer";
  }
  if (!kernels.group && !kernels.wide) return usable;
  BATON_ASSIGN_OR_RETURN(ProductTrial trial, ProductTrial::Create(stream));
  if (kernels.group) {
    usable.group = SameBits(trial.Run(MatmulKernel::kTile128, kManyRows),
                            trial.Run(MatmulKernel::kGroup, kManyRows));
    LOG_IF(WARNING, !usable.group)
        << "wgmma adds with other bits than mma.sync on this device: prompts "
           "go without it, and take longer";
  }
  if (kernels.wide) {
    usable.wide = SameBits(trial.Run(MatmulKernel::kTile64, kSomeRows),
                           trial.Run(MatmulKernel::kWide, kSomeRows));
    LOG_IF(WARNING, !usable.wide)
        << "products by clusters of blocks have other bits than those of one "
           "on this device: batches of 17 to 64 go without them";
  }
  return usable;
}

}  // namespace baton::engine::cuda
