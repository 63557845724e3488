// What each kernel of a layer with experts takes on a GPU, for Qwen3-30B-A3B's
// shapes: many of one kind in a graph, each with weights of its own, so that no
// cache has them. Products are told by the share of a large copy's bytes per
// second that they read, of the experts that rows chose, or, for prompts, of
// cuBLASLt's operations that their rows need; prompts' also without the kernels
// of groups of warps ("tiles"). Ends with 1 where there is no GPU.
//
//   engine_cuda_gpu_expert_times [--tiny]
//
// --tiny: small sizes, to see that it runs.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "engine/cuda/device_kernels.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/expert_matmul.h"
#include "engine/cuda/experts.h"
#include "engine/cuda/weight_format.h"
#include "tests/engine/cuda/gpu_arrays.h"
#include "tests/engine/cuda/gpu_ceilings.h"
#include "tests/engine/cuda/random_model.h"

namespace baton::engine::cuda {
namespace {

struct Sizes {
  ModelConfig model = Qwen30bA3b(8);
  std::vector<int32_t> rows = {1, 8, 16, 32, 64, 256, 1024, 2048, 4096};
  int repeats = 5;
  int64_t copy_bytes = int64_t{2} << 30;
  int64_t product_size = 8192;
};

Sizes Tiny() {
  Sizes sizes;
  sizes.model.num_layers = 2;
  sizes.model.hidden_size = 128;
  sizes.model.num_heads = 4;
  sizes.model.num_kv_heads = 2;
  sizes.model.head_dim = 64;
  sizes.model.experts.count = 4;
  sizes.model.experts.per_token = 2;
  sizes.model.experts.intermediate_size = 64;
  sizes.model.vocab_size = 300;
  sizes.rows = {1, 120};
  sizes.repeats = 1;
  sizes.copy_bytes = 1 << 20;
  sizes.product_size = 64;
  return sizes;
}

class ExpertTimes final : private GpuArrays {
 public:
  ExpertTimes(const Sizes& sizes, WeightFormat format,
              const DeviceKernels& kernels)
      : sizes_(sizes),
        model_(sizes.model),
        experts_(sizes.model.experts),
        format_(format),
        kernels_(kernels),
        random_(model_, format, stream_) {
    stream_.SetEarlyKernels(kernels.wide);
    copy_ = CopyBytesPerSecond(stream_, sizes.copy_bytes);
    product_ = MatmulOpsPerSecond(stream_, sizes.product_size);
    const int32_t most =
        *std::max_element(sizes.rows.begin(), sizes.rows.end());
    const int64_t turns = int64_t{most} * experts_.per_token;
    const int64_t places =
        MostPlaces(most, experts_.per_token, experts_.count, kernels.group);
    residual_ = Zeros(4 * int64_t{most} * model_.hidden_size);
    // Rows that are not alike: those of the embedding.
    normed_ = random_.weights.embedding;
    logits_ = Zeros(4 * int64_t{most} * experts_.count);
    choices_ = Zeros(turns * int64_t{sizeof(ExpertChoice)});
    place_rows_ = Zeros(4 * places);
    tiles_ = Zeros(places * int64_t{sizeof(RowTile)});
    reads_ = Zeros(16);
    staged_ = Zeros(2 * places * model_.hidden_size);
    gated_ = Zeros(2 * places * experts_.intermediate_size);
    said_ = Zeros(4 * places * model_.hidden_size);
  }

  void Run() {
    std::printf("%s: copy %.2f TB/s, cuBLASLt %.0f TFLOP/s\n", Name().c_str(),
                copy_ / 1e12, product_ / 1e12);
    std::printf("%-6s %-16s %6s %8s %10s %8s\n", "format", "kernel", "rows",
                "experts", "us", "share");
    for (const int32_t rows : sizes_.rows) {
      Layer(rows, kernels_.group, "");
      if (kernels_.group && Tiling(rows, true).staged) {
        Layer(rows, false, " (tiles)");
      }
    }
  }

 private:
  std::string Name() const { return std::string(WeightFormatName(format_)); }

  DeviceBuffer Zeros(int64_t bytes) { return Take(bytes, 0); }

  ExpertTiling Tiling(int32_t rows, bool group) const {
    return TilingOf(rows * experts_.per_token, experts_.count, format_, group);
  }

  // Of one launch; `run` gives that of a layer to the stream.
  double Microseconds(const std::function<void(const DeviceLayer&)>& run) {
    const std::vector<DeviceLayer>& layers = random_.weights.layers;
    return MicrosecondsInGraph(stream_, sizes_.repeats, model_.num_layers,
                               [&](int32_t i) { run(layers[i]); });
  }

  // With `best` as the seconds that it takes at a ceiling; 0: none is meant.
  void Print(const std::string& kernel, int32_t rows, uint32_t experts,
             double us, double best) {
    std::printf("%-6s %-16s %6d %8u %10.2f ", Name().c_str(), kernel.c_str(),
                rows, experts, us);
    if (best > 0 && us > 0) std::printf("%8.2f", 1e6 * best / us);
    std::printf("\n");
    std::fflush(stdout);
  }

  void Layer(int32_t rows, bool group, const std::string& name) {
    const ExpertTiling tiling = Tiling(rows, group);
    const double hidden = model_.hidden_size;
    MatmulArgs router;
    router.x = normed_;
    router.x_stride = model_.hidden_size;
    router.rows = rows;
    router.out = logits_.as<float>();
    router.out_stride = experts_.count;
    const double router_us = Microseconds([&](const DeviceLayer& layer) {
      router.w = layer.expert_router;
      RunMatmul(router, MatmulOutput::kStore, kernels_, stream_.handle());
    });

    RouteArgs route;
    route.logits = router.out;
    route.stride = router.out_stride;
    route.rows = rows;
    route.experts = experts_.count;
    route.per_token = experts_.per_token;
    route.normalized = experts_.normalized;
    route.choices = choices_.as<ExpertChoice>();
    route.place_rows = place_rows_.as<int32_t>();
    route.tiles = tiles_.as<RowTile>();
    route.tiling = tiling;
    route.reads = reads_.as<uint32_t>();
    route.first = true;
    const double route_us = Microseconds(
        [&](const DeviceLayer&) { RunRoute(route, stream_.handle()); });
    uint32_t read = 0;
    stream_.CopyToHost(&read, reads_.data(), sizeof(read));
    stream_.Wait();
    const auto& first = random_.weights.layers[0];
    const bool first_time = name.empty();
    if (first_time) {
      Print("router", rows, 0, router_us,
            static_cast<double>(first.expert_router.bytes()) / copy_);
      Print("route", rows, read, route_us, 0);
    }

    const InputOrder order =
        tiling.staged ? InputOrder::kStaged : InputOrder::kNatural;
    ExpertMatmulArgs product;
    product.tiles = route.tiles;
    product.num_tiles = tiling.num_tiles;
    product.tile_rows = tiling.tile_rows;
    product.first.rows = tiling.places;
    product.first.x_order = product.first.gated_order = order;
    product.first.x = normed_;
    product.first.x_stride = model_.hidden_size;
    if (tiling.staged) {
      StageRowsArgs stage;
      stage.from = normed_;
      stage.inputs = model_.hidden_size;
      stage.place_rows = route.place_rows;
      stage.tiles = route.tiles;
      stage.tiling = tiling;
      stage.to = staged_.as<uint16_t>();
      product.first.x = stage.to;
      const double us = Microseconds(
          [&](const DeviceLayer&) { RunStageRows(stage, stream_.handle()); });
      Print("stage", rows, read, us,
            4.0 * rows * experts_.per_token * hidden / copy_);
    } else {
      product.x_rows = route.place_rows;
    }
    product.first.gated = gated_.as<uint16_t>();
    product.first.out_stride = experts_.intermediate_size;
    const double gate_up_us = Microseconds([&](const DeviceLayer& layer) {
      product.first.w = layer.gate_up;
      RunExpertMatmul(tiling, product, MatmulOutput::kSwiglu, stream_.handle());
    });
    Print("gate_up" + name, rows, read, gate_up_us,
          Best(first.gate_up, rows, read));

    product.first.x = product.first.gated;
    product.first.x_stride = experts_.intermediate_size;
    product.x_rows = nullptr;
    product.first.gated = nullptr;
    product.first.gated_order = InputOrder::kNatural;
    product.first.out = said_.as<float>();
    product.first.out_stride = model_.hidden_size;
    const double down_us = Microseconds([&](const DeviceLayer& layer) {
      product.first.w = layer.down;
      RunExpertMatmul(tiling, product, MatmulOutput::kStore, stream_.handle());
    });
    Print("down" + name, rows, read, down_us, Best(first.down, rows, read));

    if (!first_time) return;
    MixArgs mix;
    mix.choices = route.choices;
    mix.rows = rows;
    mix.per_token = experts_.per_token;
    mix.said = said_.as<float>();
    mix.size = model_.hidden_size;
    mix.out = residual_.as<float>();
    mix.add = true;
    const double mix_us = Microseconds(
        [&](const DeviceLayer&) { RunMix(mix, stream_.handle()); });
    Print("mix", rows, read, mix_us,
          4.0 * rows * (experts_.per_token + 2) * hidden / copy_);
  }

  // Seconds of a product, whichever of its two ceilings is the lower one.
  double Best(const DeviceMatrix& w, int32_t rows, uint32_t read) const {
    const double bytes =
        static_cast<double>(read) * static_cast<double>(w.bytes());
    const double ops = 2.0 * rows * experts_.per_token * w.outputs * w.inputs;
    return std::max(bytes / copy_, product_ > 0 ? ops / product_ : 0.0);
  }

  const Sizes sizes_;
  const ModelConfig model_;
  const ExpertsConfig experts_;
  const WeightFormat format_;
  const DeviceKernels kernels_;
  RandomWeights random_;
  double copy_ = 0;
  double product_ = 0;
  const uint16_t* normed_ = nullptr;
  DeviceBuffer residual_, logits_, choices_, place_rows_, tiles_, reads_;
  DeviceBuffer staged_, gated_, said_;
};

int ExpertTimesMain(int argc, char** argv) {
  const absl::StatusOr<DeviceProperties> device = OpenDevice(0);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().ToString().c_str());
    return 1;
  }
  const bool tiny = argc > 1 && std::strcmp(argv[1], "--tiny") == 0;
  for (const WeightFormat format :
       {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kInt4}) {
    ExpertTimes(tiny ? Tiny() : Sizes(), format, KernelsOf(*device)).Run();
    if (tiny) break;
  }
  return 0;
}

}  // namespace
}  // namespace baton::engine::cuda

int main(int argc, char** argv) {
  return baton::engine::cuda::ExpertTimesMain(argc, argv);
}
