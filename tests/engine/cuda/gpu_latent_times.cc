// What the kernels of latent attention take on a GPU, for the heads that
// DeepSeek-V2-Lite, GLM-4.7-Flash and DeepSeek-V3 have: many of one kind in a
// graph, each with keys or weights of its own, so that no cache has them.
// Attention of single tokens and products of few rows are told by the share of
// a large copy's bytes per second that they read; those of prompts by the share
// of cuBLASLt's operations. Ends with 1 where there is no GPU.
//
//   engine_cuda_gpu_latent_times [--tiny]
//
// --tiny: small sizes, to see that it runs.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "engine/cuda/device_kernels.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/latent.h"
#include "engine/cuda/latent_attention.h"
#include "engine/kv_layout.h"
#include "tests/engine/cuda/gpu_arrays.h"
#include "tests/engine/cuda/gpu_ceilings.h"
#include "tests/engine/cuda/random_model.h"

namespace baton::engine::cuda {
namespace {

struct Sizes {
  ModelConfig model = DeepseekV2Lite(8);  // what its heads' matrices are
  std::vector<int32_t> heads = {16, 20, 128};
  std::vector<int32_t> few_rows = {1, 8, 64};
  std::vector<int32_t> contexts = {1024, 8192};
  std::vector<int32_t> prompts = {2048, 4096};
  std::vector<int32_t> product_rows = {1, 8, 16, 64, 512};
  int32_t layers = 8;
  int repeats = 5;
  int64_t copy_bytes = int64_t{2} << 30;
  int64_t product_size = 8192;
};

Sizes Tiny() {
  Sizes sizes;
  sizes.model.num_layers = sizes.layers = 2;
  sizes.model.hidden_size = 128;
  sizes.model.num_heads = 4;
  sizes.model.latent.rank = 48;
  sizes.model.latent.rope_dim = 16;
  sizes.model.head_dim = 64;
  sizes.model.intermediate_size = 192;
  sizes.model.experts.count = 4;
  sizes.model.experts.per_token = 2;
  sizes.model.experts.intermediate_size = 64;
  sizes.model.layer_has_experts = {false, true};
  sizes.model.vocab_size = 300;
  sizes.heads = {4};
  sizes.few_rows = {1, 3};
  sizes.contexts = {300};
  sizes.prompts = {70};
  sizes.product_rows = {1, 20};
  sizes.repeats = 1;
  sizes.copy_bytes = 1 << 20;
  sizes.product_size = 64;
  return sizes;
}

class LatentTimes final : private GpuArrays {
 public:
  LatentTimes(const Sizes& sizes, KvDtype dtype, const DeviceKernels& kernels)
      : sizes_(sizes), random_(sizes.model, WeightFormat::kBf16, stream_) {
    stream_.SetEarlyKernels(kernels.wide);
    copy_ = CopyBytesPerSecond(stream_, sizes.copy_bytes);
    product_ = MatmulOpsPerSecond(stream_, sizes.product_size);
    layout_.num_layers = sizes.layers;
    layout_.num_kv_heads = 1;
    layout_.head_dim = sizes.model.head_dim;
    layout_.shared_value_dim = sizes.model.latent.rank;
    layout_.dtype = dtype;
    const int32_t tokens =
        std::max(Most(sizes.few_rows) * (Most(sizes.contexts) + 16),
                 Most(sizes.prompts));
    layout_.num_blocks = layout_.BlocksFor(tokens);
    kv_ = Take(layout_.total_bytes());
    std::vector<BlockId> tables(layout_.num_blocks);
    std::iota(tables.begin(), tables.end(), 0);
    tables_ = Put(tables);
    const int64_t heads = Most(sizes.heads);
    const int64_t rows = std::max(Most(sizes.few_rows), Most(sizes.prompts));
    queries_ = Take(2 * rows * heads * layout_.stored_head_dim());
    out_ = Take(2 * rows * heads * layout_.value_dim());
    const int64_t head_rows =
        int64_t{Most(sizes.product_rows)} * sizes.model.num_heads;
    const LatentConfig& latent = sizes.model.latent;
    x_ = Take(2 * head_rows *
              PaddedInputs(
                  std::max({latent.nope_dim, latent.rank, latent.value_dim})));
    made_ = Take(4 * head_rows * std::max(latent.rank, latent.value_dim));
    tiles_ = Take(head_rows * int64_t{sizeof(RowTile)});
    x_rows_ = Take(4 * head_rows);
  }

  void Run() {
    std::printf("KV %s: copy %.2f TB/s, cuBLASLt %.0f TFLOP/s\n",
                KvDtypeName(layout_.dtype), copy_ / 1e12, product_ / 1e12);
    std::printf("%-10s %6s %6s %8s %10s %8s\n", "kernel", "heads", "rows",
                "context", "us", "share");
    for (const int32_t heads : sizes_.heads) {
      for (const int32_t context : sizes_.contexts) {
        for (const int32_t rows : sizes_.few_rows) Spans(heads, rows, context);
      }
      for (const int32_t length : sizes_.prompts) Prompt(heads, length);
    }
    if (layout_.dtype != KvDtype::kBf16) return;  // the rest is the same
    for (const int32_t rows : sizes_.product_rows) {
      Product("key_up", &DeviceLatent::key_up, rows);
      Product("value_up", &DeviceLatent::value_up, rows);
    }
  }

 private:
  static int32_t Most(const std::vector<int32_t>& values) {
    return *std::max_element(values.begin(), values.end());
  }

  // Of one launch; `run` gives the i-th of so many to the stream.
  double Microseconds(const std::function<void(int32_t)>& run) {
    return MicrosecondsInGraph(stream_, sizes_.repeats, sizes_.layers, run);
  }
  // With `best` as the seconds that it takes at a ceiling.
  void Print(const char* kernel, int32_t heads, int32_t rows, int32_t context,
             double us, double best) {
    std::printf("%-10s %6d %6d %8d %10.2f %8.2f\n", kernel, heads, rows,
                context, us, us > 0 ? 1e6 * best / us : 0.0);
    std::fflush(stdout);
  }

  AttentionArgs Attention(int32_t heads, int32_t layer) {
    AttentionArgs args;
    args.queries = queries_.as<uint16_t>();
    args.pages = kv_.data() + layout_.PageOffset(layer, 0);
    args.page_bytes = layout_.page_bytes();
    args.head_bytes = layout_.head_bytes();
    args.scales_offset = layout_.KeyScalesOffset();
    args.block_size = layout_.block_size;
    args.kv_dtype = layout_.dtype;
    args.block_tables = tables_.as<BlockId>();
    args.num_heads = heads;
    args.num_kv_heads = 1;
    args.head_dim = layout_.head_dim;
    args.stored_head_dim = layout_.stored_head_dim();
    args.value_dim = args.out_step = layout_.value_dim();
    args.score_factor = ScoreFactor(1.0 / std::sqrt(layout_.head_dim));
    args.out = out_.as<uint16_t>();
    args.out_stride = int64_t{heads} * args.out_step;
    return args;
  }

  // Single tokens that have `context` positions each.
  void Spans(int32_t heads, int32_t rows, int32_t context) {
    const int32_t blocks = layout_.BlocksFor(context);
    std::vector<QueryTile> tiles;
    for (int32_t i = 0; i < rows; ++i) {
      tiles.push_back({i, i, 1, context - 1, i * blocks});
    }
    const DeviceBuffer there = Put(tiles);
    const int32_t spans = SpansOf(context - 1, /*window=*/0);
    const int64_t pieces = int64_t{rows} * heads * spans;
    const DeviceBuffer sums = Take(4 * pieces * layout_.value_dim());
    const DeviceBuffer states = Take(8 * pieces);
    const DeviceBuffer counts =
        Take(4 * int64_t{rows} * LatentBlocks(heads, 1), 0);
    const double us = Microseconds([&](int32_t layer) {
      AttentionArgs args = Attention(heads, layer);
      args.tiles = there.as<QueryTile>();
      args.num_tiles = rows;
      args.max_spans = spans;
      args.span_sums = sums.as<float>();
      args.span_states = states.as<float>();
      args.span_counts = counts.as<uint32_t>();
      RunAttention(args, stream_.handle());
    });
    const double bytes = static_cast<double>(layout_.page_bytes()) /
                         layout_.block_size * context * rows;
    Print("spans", heads, rows, context, us, bytes / copy_);
  }

  // All tokens of a prompt.
  void Prompt(int32_t heads, int32_t length) {
    const int32_t rows = LatentTileRows(heads);
    std::vector<QueryTile> tiles;
    for (int32_t i = 0; i < length; i += rows) {
      tiles.push_back({i, i, std::min(rows, length - i), i, 0});
    }
    const DeviceBuffer there = Put(tiles);
    const double us = Microseconds([&](int32_t layer) {
      AttentionArgs args = Attention(heads, layer);
      args.tiles = there.as<QueryTile>();
      args.num_tiles = static_cast<int32_t>(tiles.size());
      RunAttention(args, stream_.handle());
    });
    // Both products, of which half is masked.
    const double ops = 1.0 * heads * (layout_.head_dim + layout_.value_dim()) *
                       static_cast<double>(length) * length;
    Print("prompt", heads, length, length, us,
          product_ > 0 ? ops / product_ : 0);
  }

  void Product(const char* name, DeviceMatrix DeviceLatent::*matrix,
               int32_t rows) {
    const int32_t heads = sizes_.model.num_heads;
    const DeviceMatrix& first = random_.weights.layers[0].latent.*matrix;
    HeadTilesArgs table;
    table.rows = rows;
    table.heads = heads;
    table.tiling = HeadTilingOf(rows, heads, first.format);
    table.tiles = tiles_.as<RowTile>();
    table.x_rows = x_rows_.as<int32_t>();
    RunHeadTiles(table, stream_.handle());
    ExpertMatmulArgs product;
    product.tiles = table.tiles;
    product.num_tiles = table.tiling.num_tiles;
    product.tile_rows = table.tiling.tile_rows;
    product.x_rows = table.x_rows;
    product.first.x = x_.as<uint16_t>();
    product.first.x_stride = first.padded_inputs;
    product.first.rows = table.tiling.places;
    product.first.out = made_.as<float>();
    product.first.out_stride = first.outputs;
    const double us = Microseconds([&](int32_t layer) {
      product.first.w = random_.weights.layers[layer].latent.*matrix;
      RunExpertMatmul(table.tiling, product, MatmulOutput::kStore,
                      stream_.handle());
    });
    const double ops = 2.0 * rows * heads * first.outputs * first.inputs;
    const double bytes = static_cast<double>(heads * first.bytes());
    Print(name, heads, rows, 0, us,
          std::max(bytes / copy_, product_ > 0 ? ops / product_ : 0.0));
    const double round_us = Microseconds([&](int32_t) {
      RoundHeadsArgs round;
      round.from = product.first.out;
      round.rows = rows;
      round.heads = heads;
      round.size = first.outputs;
      round.to = x_.as<uint16_t>();
      round.head_step = first.outputs;
      round.row_stride = int64_t{heads} * first.outputs;
      RunRoundHeads(round, stream_.handle());
    });
    Print("round", heads, rows, 0, round_us,
          6.0 * rows * heads * first.outputs / copy_);
  }

  const Sizes sizes_;
  RandomWeights random_;
  KvLayout layout_;
  double copy_ = 0;
  double product_ = 0;
  DeviceBuffer kv_, tables_, queries_, out_, x_, made_, tiles_, x_rows_;
};

int LatentTimesMain(int argc, char** argv) {
  const absl::StatusOr<DeviceProperties> device = OpenDevice(0);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().ToString().c_str());
    return 1;
  }
  const bool tiny = argc > 1 && std::strcmp(argv[1], "--tiny") == 0;
  for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kFp8}) {
    LatentTimes(tiny ? Tiny() : Sizes(), dtype, KernelsOf(*device)).Run();
  }
  return 0;
}

}  // namespace
}  // namespace baton::engine::cuda

int main(int argc, char** argv) {
  return baton::engine::cuda::LatentTimesMain(argc, argv);
}
