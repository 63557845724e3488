#include "engine/cuda/device_kernels.h"

#include <algorithm>
#include <cmath>
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
#include "engine/cuda/expert_matmul.h"
#include "engine/cuda/matmul_group.h"
#include "engine/cuda/matmul_wide.h"
#include "engine/cuda/weight_tiles.h"
#include "engine/float_convert.h"
#include "engine/kv_layout.h"

namespace baton::engine::cuda {
namespace {

// Two chunks; of groups, one block.
constexpr int32_t kOutputs = 128;
constexpr int32_t kInputs = 576;
// Of the two shapes that groups have.
constexpr int32_t kManyRows[] = {kLargeTileRows, kGroupFewRows + 1};
constexpr int32_t kMostRows = kManyRows[1];
constexpr int32_t kMostTiles = StagedRows(kMostRows) / kStagedRows;
// Of each of the shapes that wide blocks have: more rows or fewer, and inputs
// that are shared out among blocks with two tiles a warp, or with one.
constexpr int32_t kSomeRows[] = {17, kWideFewRows + 1};
static_assert(kSomeRows[1] <= kFlowRows);
constexpr int32_t kSomeInputs[] = {2304, 4096};
constexpr int32_t kMostInputs = kSomeInputs[1];
// Of those that copy slices: one block, and several that share inputs out.
constexpr int32_t kFlowInputs[] = {kInputs, kMostInputs};

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
  static absl::StatusOr<ProductTrial> Create(WeightFormat format,
                                             Stream& stream) {
    ProductTrial trial(format, stream);
    // In whatever order, and whatever they stand for: any numbers do. Of bytes,
    // not all are read.
    BATON_ASSIGN_OR_RETURN(
        trial.weights_,
        PutOnDevice(RandomValues(int64_t{kOutputs} * kMostInputs, 1), stream));
    BATON_ASSIGN_OR_RETURN(
        trial.scales_, PutOnDevice(std::vector<float>(kOutputs, 0.1f), stream));
    const std::vector<uint16_t> x =
        RandomValues(std::max(int64_t{kMostRows} * kInputs,
                              int64_t{kFlowRows} * kMostInputs),
                     2);
    BATON_ASSIGN_OR_RETURN(trial.x_, PutOnDevice(x, stream));
    BATON_ASSIGN_OR_RETURN(trial.many_staged_,
                           Stage(x, kMostRows, kInputs, stream));
    BATON_ASSIGN_OR_RETURN(trial.wide_staged_,
                           Stage(x, kFlowRows, kMostInputs, stream));
    BATON_ASSIGN_OR_RETURN(trial.out_,
                           DeviceBuffer::Allocate(kOutBytes, kTrial));
    BATON_ASSIGN_OR_RETURN(
        trial.tiles_,
        DeviceBuffer::Allocate(kMostTiles * int64_t{sizeof(RowTile)}, kTrial));
    return trial;
  }

  // By groups of warps, with one expert.
  std::vector<float> RunExpert(int32_t rows) {
    const ExpertTiling tiling =
        TilingOf(rows, 1, MatmulKernel::kGroup, GroupRows(format_, rows));
    std::vector<RowTile> tiles;
    for (int32_t first = 0; first < rows; first += tiling.tile_rows) {
      tiles.push_back({0, first, std::min(tiling.tile_rows, rows - first)});
    }
    CHECK_LE(static_cast<int32_t>(tiles.size()), kMostTiles);
    stream_->CopyToDevice(tiles_.data(), tiles.data(),
                          static_cast<int64_t>(tiles.size() * sizeof(RowTile)));
    ExpertMatmulArgs args;
    args.first = ArgsOf(MatmulKernel::kGroup, rows, kInputs);
    args.tiles = tiles_.as<RowTile>();
    args.num_tiles = tiling.num_tiles;
    args.tile_rows = tiling.tile_rows;
    ClearOutputs();
    RunExpertMatmul(tiling, args, MatmulOutput::kStore, stream_->handle());
    return Outputs(rows);
  }

  std::vector<float> Run(MatmulKernel kernel, int32_t rows, int32_t inputs) {
    const MatmulArgs args = ArgsOf(kernel, rows, inputs);
    ClearOutputs();
    RunMatmul(PlanMatmul(args, MatmulOutput::kStore, kernel), args,
              MatmulOutput::kStore, stream_->handle());
    return Outputs(rows);
  }

 private:
  static constexpr int64_t kOutBytes =
      int64_t{kMostRows} * kOutputs * int64_t{sizeof(float)};

  MatmulArgs ArgsOf(MatmulKernel kernel, int32_t rows, int32_t inputs) const {
    const bool staged =
        kernel == MatmulKernel::kGroup || kernel == MatmulKernel::kFlow;
    const DeviceBuffer& x_staged =
        inputs == kInputs ? many_staged_ : wide_staged_;
    MatmulArgs args;
    args.w.tiles = weights_.data();
    if (HasOutputScales(format_)) args.w.scales = scales_.as<float>();
    args.w.format = format_;
    args.w.outputs = kOutputs;
    args.w.inputs = inputs;
    args.w.output_tiles = OutputTiles(kOutputs);
    args.w.padded_inputs = PaddedInputs(inputs);
    args.x = (staged ? x_staged : x_).as<uint16_t>();
    args.x_stride = inputs;
    args.x_order = staged ? InputOrder::kStaged : InputOrder::kNatural;
    args.rows = rows;
    args.out = out_.as<float>();
    args.out_stride = kOutputs;
    return args;
  }

  void ClearOutputs() { stream_->Fill(out_.data(), 0xff, out_.bytes()); }
  std::vector<float> Outputs(int32_t rows) {
    std::vector<float> y(int64_t{rows} * kOutputs);
    stream_->CopyToHost(y.data(), out_.data(),
                        static_cast<int64_t>(y.size() * sizeof(float)));
    stream_->Wait();
    return y;
  }

  ProductTrial(WeightFormat format, Stream& stream)
      : format_(format), stream_(&stream) {}

  static absl::StatusOr<DeviceBuffer> Stage(const std::vector<uint16_t>& x,
                                            int32_t rows, int32_t inputs,
                                            Stream& stream) {
    std::vector<uint16_t> staged(StagedRows(rows) * inputs);
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t i = 0; i < inputs; ++i) {
        staged[PlaceOfInput(InputOrder::kStaged, row, i, inputs)] =
            x[row * inputs + i];
      }
    }
    return PutOnDevice(staged, stream);
  }

  WeightFormat format_;
  Stream* stream_;
  DeviceBuffer weights_;
  DeviceBuffer scales_;
  DeviceBuffer x_;
  DeviceBuffer many_staged_;  // kMostRows x kInputs
  DeviceBuffer wide_staged_;  // kFlowRows x kMostInputs
  DeviceBuffer tiles_;
  DeviceBuffer out_;
};

// A prompt's attention: two KV heads, more than a span of positions, and a tile
// that is not full.
class AttentionTrial final {
 public:
  static absl::StatusOr<AttentionTrial> Create(int32_t head_dim, KvDtype dtype,
                                               Stream& stream) {
    AttentionTrial trial(stream);
    KvLayout& layout = trial.layout_;
    layout.num_layers = 1;
    layout.block_size = 64;
    layout.num_kv_heads = kKvHeads;
    layout.head_dim = head_dim;
    layout.dtype = dtype;
    layout.num_blocks = (kPositions + 63) / 64;
    // In whatever order: any numbers do.
    BATON_ASSIGN_OR_RETURN(
        trial.pages_,
        PutOnDevice(RandomValues(layout.total_bytes() / 2, 3), stream));
    BATON_ASSIGN_OR_RETURN(
        trial.queries_,
        PutOnDevice(RandomValues(trial.out_elements(), 4), stream));
    std::vector<BlockId> blocks(layout.num_blocks);
    std::iota(blocks.begin(), blocks.end(), 0);
    BATON_ASSIGN_OR_RETURN(trial.blocks_, PutOnDevice(blocks, stream));
    BATON_ASSIGN_OR_RETURN(
        trial.out_, DeviceBuffer::Allocate(trial.out_elements() * 2, kTrial));
    BATON_ASSIGN_OR_RETURN(
        trial.tiles_,
        DeviceBuffer::Allocate(kRows * int64_t{sizeof(QueryTile)}, kTrial));
    return trial;
  }

  std::vector<float> Run(int32_t tile_queries) {
    std::vector<QueryTile> tiles;
    const int32_t tile_rows = MaxTileRows(kHeads / kKvHeads, tile_queries);
    for (int32_t row = 0; row < kRows; row += tile_rows) {
      tiles.push_back({row, row, std::min(tile_rows, kRows - row),
                       kPositions - kRows + row, /*block_table=*/0});
    }
    stream_->CopyToDevice(
        tiles_.data(), tiles.data(),
        static_cast<int64_t>(tiles.size() * sizeof(QueryTile)));
    AttentionArgs args;
    args.queries = queries_.as<uint16_t>();
    args.pages = pages_.data();
    args.page_bytes = layout_.page_bytes();
    args.head_bytes = layout_.head_bytes();
    args.values_offset = layout_.ValuesOffset();
    args.scales_offset = layout_.KeyScalesOffset();
    args.block_size = layout_.block_size;
    args.block_tables = blocks_.as<BlockId>();
    args.tiles = tiles_.as<QueryTile>();
    args.num_tiles = static_cast<int32_t>(tiles.size());
    args.tile_queries = tile_queries;
    args.num_heads = kHeads;
    args.num_kv_heads = kKvHeads;
    args.kv_dtype = layout_.dtype;
    args.head_dim = args.stored_head_dim = layout_.head_dim;
    args.score_factor = ScoreFactor(1.0 / std::sqrt(layout_.head_dim));
    args.out = out_.as<uint16_t>();
    args.out_stride = kHeads * layout_.head_dim;
    stream_->Fill(out_.data(), 0xff, out_.bytes());
    RunAttention(args, stream_->handle());
    std::vector<uint16_t> y(out_elements());
    stream_->CopyToHost(y.data(), out_.data(), out_elements() * 2);
    stream_->Wait();
    std::vector<float> values(out_elements());
    std::transform(y.begin(), y.end(), values.begin(), Bf16ToFloat);
    return values;
  }

 private:
  static constexpr int32_t kHeads = 4;
  static constexpr int32_t kKvHeads = 2;
  static constexpr int32_t kPositions = 270;
  static constexpr int32_t kRows = 40;

  int64_t out_elements() const {
    return int64_t{kRows} * kHeads * layout_.head_dim;
  }

  explicit AttentionTrial(Stream& stream) : stream_(&stream) {}

  Stream* stream_;
  KvLayout layout_;
  DeviceBuffer pages_;
  DeviceBuffer queries_;
  DeviceBuffer blocks_;
  DeviceBuffer tiles_;
  DeviceBuffer out_;
};

// How a kernel's results are beside those of the one that all devices have.
enum class Agreement { kSameBits, kRoundedOtherwise, kWrong };

Agreement Compare(const std::vector<float>& results,
                  const std::vector<float>& expected) {
  float largest = 0;
  for (const float value : expected) {
    largest = std::max(largest, std::abs(value));
  }
  // bfloat16 at worst. NaN is wrong.
  const float rounding = largest / 64;
  auto worst = Agreement::kSameBits;
  for (size_t i = 0; i < results.size(); ++i) {
    if (std::memcmp(&results[i], &expected[i], sizeof(float)) == 0) continue;
    if (!(std::abs(results[i] - expected[i]) <= rounding)) {
      return Agreement::kWrong;
    }
    worst = Agreement::kRoundedOtherwise;
  }
  return worst;
}

// Whether all of `repeats` results, which `run` gives, are the expected ones: a
// kernel that does not wait for what it reads may be lucky once. Says what is
// `lost` if not.
template <typename Run>
bool Agrees(const std::vector<float>& expected, int32_t repeats, const Run& run,
            const char* kernel, const char* lost) {
  for (int32_t i = 0; i < repeats; ++i) {
    switch (Compare(run(), expected)) {
      case Agreement::kSameBits:
        continue;
      case Agreement::kRoundedOtherwise:
        LOG(WARNING) << kernel << " rounds otherwise than mma.sync on this "
                     << "device: " << lost;
        return false;
      case Agreement::kWrong:
        LOG(ERROR) << kernel << " computes wrong results on this device (as "
                   << "compiled by this toolkit, please report it): " << lost;
        return false;
    }
  }
  return true;
}

}  // namespace

DeviceKernels KernelsOf(const DeviceProperties& device) {
  DeviceKernels kernels;
  kernels.group = device.group_products;
  kernels.wide = device.clusters;
  kernels.flow = device.group_products && device.clusters;
  kernels.group_attention = device.group_products;
  return kernels;
}

KernelTrials TrialsFor(const DeviceWeights& weights, const KvLayout& layout) {
  KernelTrials trials;
  trials.formats = weights.ProductFormats();
  trials.stored_head_dim = layout.stored_head_dim();
  trials.kv_dtype = layout.dtype;
  trials.experts = weights.has_experts();
  return trials;
}

absl::StatusOr<DeviceKernels> KernelsThatAgree(const DeviceKernels& kernels,
                                               const KernelTrials& trials,
                                               Stream& stream) {
  constexpr char kPromptsGoWithout[] = "prompts go without it, and take longer";
  DeviceKernels usable;
  if (kernels.group_attention &&
      IsGroupAttentionHeadDim(trials.stored_head_dim)) {
    BATON_ASSIGN_OR_RETURN(AttentionTrial trial,
                           AttentionTrial::Create(trials.stored_head_dim,
                                                  trials.kv_dtype, stream));
    usable.group_attention = Agrees(
        trial.Run(kTileQueries), trials.repeats,
        [&] { return trial.Run(kGroupTileQueries); }, "attention by wgmma",
        kPromptsGoWithout);
  }
  usable.group = kernels.group;
  usable.wide = kernels.wide;
  usable.flow = kernels.flow;
  for (const WeightFormat format : trials.formats) {
    if (!usable.group && !usable.wide && !usable.flow) break;
    BATON_ASSIGN_OR_RETURN(ProductTrial trial,
                           ProductTrial::Create(format, stream));
    const auto agrees = [&](MatmulKernel common, MatmulKernel kernel,
                            int32_t rows, int32_t inputs, const char* name,
                            const char* lost) {
      return Agrees(
          trial.Run(common, rows, inputs), trials.repeats,
          [&] { return trial.Run(kernel, rows, inputs); }, name, lost);
    };
    for (const int32_t rows : kManyRows) {
      usable.group = usable.group &&
                     agrees(MatmulKernel::kTile128, MatmulKernel::kGroup, rows,
                            kInputs, "a product by wgmma", kPromptsGoWithout);
      usable.group =
          usable.group &&
          (!trials.experts ||
           Agrees(
               trial.Run(MatmulKernel::kTile128, rows, kInputs), trials.repeats,
               [&] { return trial.RunExpert(rows); },
               "a product with an expert by wgmma", kPromptsGoWithout));
    }
    for (const int32_t inputs : kFlowInputs) {
      usable.flow = usable.flow &&
                    agrees(MatmulKernel::kTile64, MatmulKernel::kFlow,
                           kFlowRows, inputs, "a product by wgmma and copies",
                           "batches of 17 to 64 go without it");
    }
    for (const int32_t rows : kSomeRows) {
      for (const int32_t inputs : kSomeInputs) {
        usable.wide = usable.wide &&
                      agrees(MatmulKernel::kTile64, MatmulKernel::kWide, rows,
                             inputs, "a product by clusters of blocks",
                             "batches of 17 to 64 go without it");
      }
    }
  }
  return usable;
}

}  // namespace baton::engine::cuda
