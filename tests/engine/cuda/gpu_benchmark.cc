// What the CUDA backend does on a GPU, beside what the GPU can do: decode steps
// and prompts of Llama-3-8B's shapes with random weights in bf16, then decode
// steps with weights in fp8 and int4. Prompts come again with the products of
// groups of warps where the GPU has them ("groups"), in steps of so many tokens
// ("by512", ...: what --token-budget costs), and decode steps as a decode
// worker runs them, each given before the one before it is done ("ahead"), with
// guesses at each sequence's next tokens ("drafts1", ...: so many each), with
// kernels that do not begin before others end ("waits"), with as much memory of
// blocks as there is and little of the first cache ("split"), or on the kernels
// that all devices have ("tiles"). Prints a table, and ends with 1 where there
// is no GPU.
//
//   engine_cuda_gpu_benchmark [LAYERS] [bf16 | fp8 | int4] [decode]
//                             [mixture | latent]
//
// LAYERS (default 32, 48 or 27) shortens the model for a small GPU; times are
// of what ran. With a format, that one alone; with decode, decode steps alone;
// with mixture, Qwen3-30B-A3B's shapes; with latent, DeepSeek-V2-Lite's, whose
// attention is latent. The bound of steps of such mixtures is of the
// experts that they read, which the steps say, and that of its prompts of those
// that a token passes through.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "engine/cuda/device_kernels.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/device_weights.h"
#include "engine/cuda/forward_pass.h"
#include "engine/cuda/weight_format.h"
#include "engine/kv_layout.h"
#include "engine/model_config.h"
#include "scheduling/step_plan.h"
#include "tests/engine/cuda/gpu_ceilings.h"
#include "tests/engine/cuda/random_model.h"

namespace baton::engine::cuda {
namespace {

double SecondsOf(const std::chrono::steady_clock::time_point& begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

class Benchmark final {
 public:
  Benchmark(const ModelConfig& config, WeightFormat format,
            const DeviceKernels& kernels)
      : config_(config),
        format_(format),
        kernels_(kernels),
        random_(config_, format, stream_) {
    stream_.SetEarlyKernels(kernels.wide);
    layout_.num_layers = config.num_layers;
    layout_.num_kv_heads = config_.num_kv_heads;
    layout_.head_dim = config_.head_dim;
    layout_.shared_value_dim = config_.latent.rank;
    // 64 sequences of 8,192 tokens and a block more each.
    layout_.num_blocks = 64 * 513;
    // What a pass takes, and the two sides of the large copy, stay free.
    const int64_t room = FreeDeviceBytes() - (int64_t{6} << 30);
    layout_.num_blocks = static_cast<int32_t>(
        std::min<int64_t>(layout_.num_blocks, room / layout_.block_bytes()));
    auto kv = DeviceBuffer::Allocate(layout_.total_bytes(), "KV memory");
    CHECK(kv.ok()) << kv.status();
    kv_ = *std::move(kv);
    stream_.Fill(kv_.data(), 0, kv_.bytes());
    MakePass(Without());
    copy_ = CopyBytesPerSecond(stream_, int64_t{2} << 30);
    product_ = MatmulOpsPerSecond(stream_, 8192);
    std::printf(
        "ceilings: copy %.2f TB/s (read and written), cuBLASLt "
        "8192^3 bf16 %.0f TFLOP/s\n",
        copy_ / 1e12, product_ / 1e12);
    greedy_.temperature = 0;
  }

  void Run(bool decode_alone) {
    std::printf("%-8s %-8s %6s %8s %10s %10s %8s\n", "weights", "what", "batch",
                "tokens", "ms", "bound ms", "share");
    MakePass(kernels_);
    for (const int32_t context : {1024, 8192}) {
      if (context > 1024 && format_ != WeightFormat::kBf16) break;
      for (const int32_t batch : {1, 8, 64}) {
        Decode("decode", batch, context);
        Decode("ahead", batch, context);
      }
      for (const int32_t drafts : {1, 3, 7, 15}) {
        Decode("drafts" + std::to_string(drafts), 1, context, drafts);
        if (drafts < 7) {
          Decode("drafts" + std::to_string(drafts), 8, context, drafts);
        }
      }
    }
    if (kernels_.wide) {
      DeviceKernels tiles = kernels_;
      tiles.wide = tiles.flow = false;
      MakePass(tiles);
      for (const int32_t batch : {32, 64}) Decode("tiles", batch, 1024);
      MakePass(kernels_);
      for (const int32_t batch : {17, 32}) Decode("decode", batch, 1024);
      stream_.SetEarlyKernels(false);
      MakePass(kernels_);  // with graphs of its own
      for (const int32_t batch : {1, 8, 64}) Decode("waits", batch, 1024);
      stream_.SetEarlyKernels(true);
      stream_.SetMostBlockMemory(true);
      MakePass(kernels_);
      for (const int32_t batch : {1, 8, 64}) Decode("split", batch, 1024);
      stream_.SetMostBlockMemory(false);
    }
    if (decode_alone) return;
    MakePass(Without());
    Prefill("prefill", 2048);
    if (format_ == WeightFormat::kBf16) Prefill("prefill", 8192);
    if (!kernels_.group) {
      PrefillInSteps();
      return;
    }
    // Products, and then attention, too.
    DeviceKernels products = kernels_;
    products.group_attention = false;
    MakePass(products);
    Prefill("products", 2048);
    if (format_ == WeightFormat::kBf16) Prefill("products", 8192);
    MakePass(kernels_);
    Prefill("groups", 2048);
    if (format_ == WeightFormat::kBf16) Prefill("groups", 8192);
    PrefillInSteps();
  }

 private:
  DeviceKernels Without() const {
    DeviceKernels kernels = kernels_;
    kernels.group = false;
    kernels.group_attention = false;
    return kernels;
  }
  void MakePass(const DeviceKernels& kernels) {
    pass_.reset();
    ForwardPassOptions options;
    options.kernels = kernels;
    auto pass = ForwardPass::Create(config_, {}, random_.weights, layout_,
                                    kv_.data(), stream_, options);
    CHECK(pass.ok()) << pass.status();
    pass_ = *std::move(pass);
  }
  // Parameters that a token is multiplied with.
  double ActiveWeights() const { return static_cast<double>(random_.elements); }
  double KvBytesPerToken() const {
    return static_cast<double>(layout_.block_bytes()) / layout_.block_size;
  }

  // Of `context` tokens, the last `drafts` are guesses.
  void Decode(const std::string& what, int32_t batch, int32_t context,
              int32_t drafts = 0) {
    const int32_t blocks = layout_.BlocksFor(context + 1);
    if (batch * blocks > layout_.num_blocks) {
      std::printf("%-8s %6d %8d  KV memory is too small\n", what.c_str(), batch,
                  context);
      return;
    }
    std::vector<std::vector<BlockId>> tables(batch);
    std::vector<std::vector<TokenId>> histories(batch);
    scheduling::StepPlan plan;
    for (int32_t i = 0; i < batch; ++i) {
      tables[i].resize(blocks);
      std::iota(tables[i].begin(), tables[i].end(), i * blocks);
      histories[i].assign(context, 100 + i);
      scheduling::PlannedSequence s;
      s.sequence = SequenceId{static_cast<uint64_t>(i)};
      s.tokens = absl::MakeSpan(histories[i]).last(1 + drafts);
      s.first_position = context - 1 - drafts;
      s.num_drafts = drafts;
      s.blocks = tables[i];
      s.sample = true;
      s.sampling = &greedy_;
      s.history = absl::MakeSpan(histories[i]).first(context - drafts);
      s.prompt_length = 1;
      plan.sequences.push_back(s);
    }
    const double seconds =
        what == "ahead" ? MedianAhead(plan, 5, 30) : MedianOf({plan}, 5, 30);
    const double bytes =
        static_cast<double>(random_.weights.matrix_bytes -
                            random_.all_expert_bytes +
                            expert_reads_ * random_.expert_bytes) +
        KvBytesPerToken() * context * batch;
    Print(what, batch, context, seconds, bytes / copy_);
  }

  void PrefillInSteps() {
    Prefill("by512", 8192, 512);
    Prefill("by1024", 8192, 1024);
    Prefill("by2048", 8192, 2048);
  }

  // In steps of `most` tokens; 0: in one.
  void Prefill(const char* what, int32_t length, int32_t most = 0) {
    const int32_t blocks = layout_.BlocksFor(length);
    std::vector<BlockId> table(blocks);
    std::iota(table.begin(), table.end(), 0);
    std::vector<TokenId> tokens(length);
    for (int32_t i = 0; i < length; ++i) tokens[i] = (i * 7919) % 100000;
    const int32_t each = most > 0 ? most : length;
    std::vector<scheduling::StepPlan> steps;
    for (int32_t first = 0; first < length; first += each) {
      const int32_t count = std::min(each, length - first);
      scheduling::PlannedSequence s;
      s.tokens = absl::MakeSpan(tokens).subspan(first, count);
      s.first_position = first;
      s.blocks = table;
      s.sample = first + count == length;
      s.sampling = &greedy_;
      s.history = absl::MakeSpan(tokens).first(first + count);
      s.prompt_length = length;
      steps.emplace_back().sequences = {s};
    }
    const double seconds = MedianOf(steps, 2, 7);
    // Without the head, which runs for one token; with both products of
    // attention, of which half is masked.
    const double head =
        static_cast<double>(config_.vocab_size) * config_.hidden_size;
    const double attention = 1.0 * config_.num_layers * config_.num_heads *
                             (config_.head_dim + layout_.value_dim()) *
                             static_cast<double>(length) * length;
    const double ops = 2.0 * (ActiveWeights() - head) * length + attention;
    Print(what, 1, length, seconds, product_ > 0 ? ops / product_ : 0);
  }

  // Of all steps, one after another.
  double MedianOf(const std::vector<scheduling::StepPlan>& steps, int warm,
                  int runs) {
    std::vector<double> seconds;
    for (int i = 0; i < warm + runs; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      for (const scheduling::StepPlan& step : steps) {
        expert_reads_ = pass_
                            ->Run(
                                step, [](int32_t) {}, [] {})
                            .expert_reads;
      }
      if (i >= warm) seconds.push_back(SecondsOf(begin));
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

  // Of decode steps, each given while the one before it runs; at the same
  // positions, so that all take the same.
  double MedianAhead(const scheduling::StepPlan& plan, int warm, int runs) {
    scheduling::StepPlan next = plan;
    for (scheduling::PlannedSequence& s : next.sequences) {
      s.follows = true;
      s.history.remove_suffix(1);
    }
    bool given = false;
    const auto give = [&] { given = pass_->RunAhead(next); };
    std::vector<double> seconds;
    const auto begin_chain = [&] {
      pass_->Run(
          plan, [](int32_t) {}, give);
    };
    begin_chain();
    if (!given) begin_chain();  // the graph was not there
    auto last = std::chrono::steady_clock::now();
    for (int i = 0; i < warm + runs; ++i) {
      CHECK(given);
      if (i + 1 == warm + runs) {
        expert_reads_ = pass_->Await([] {}).expert_reads;
      } else {
        pass_->Await(give);
      }
      if (i >= warm) seconds.push_back(SecondsOf(last));
      last = std::chrono::steady_clock::now();
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

  void Print(const std::string& what, int32_t batch, int32_t tokens,
             double seconds, double bound) const {
    std::printf("%-8s %-8s %6d %8d %10.3f %10.3f %8.2f\n",
                std::string(WeightFormatName(format_)).c_str(), what.c_str(),
                batch, tokens, seconds * 1e3, bound * 1e3, bound / seconds);
    std::fflush(stdout);
  }

  Stream stream_;
  const ModelConfig config_;
  const WeightFormat format_;
  const DeviceKernels kernels_;
  RandomWeights random_;
  KvLayout layout_;
  DeviceBuffer kv_;
  std::unique_ptr<ForwardPass> pass_;
  scheduling::SamplingParams greedy_;
  double copy_ = 0;
  double product_ = 0;
  int64_t expert_reads_ = 0;  // of the last step
};

int BenchmarkMain(int argc, char** argv) {
  const absl::StatusOr<DeviceProperties> device = OpenDevice(0);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().ToString().c_str());
    return 1;
  }
  std::printf("%s, sm_%d, %d multiprocessors, %.0f GiB\n", device->name.c_str(),
              device->architecture, device->multiprocessors,
              static_cast<double>(device->total_bytes) / (1 << 30));
  int layers = 0;
  std::string shapes;
  bool decode_alone = false;
  std::vector<WeightFormat> formats;
  const WeightFormat all[] = {WeightFormat::kBf16, WeightFormat::kFp8,
                              WeightFormat::kInt4};
  for (int i = 1; i < argc; ++i) {
    const std::string given = argv[i];
    if (given == "decode") {
      decode_alone = true;
      continue;
    }
    if (given == "mixture" || given == "latent") {
      shapes = given;
      continue;
    }
    const auto format =
        std::find_if(std::begin(all), std::end(all), [&](WeightFormat f) {
          return std::string(WeightFormatName(f)) == given;
        });
    if (format != std::end(all)) {
      formats.push_back(*format);
      continue;
    }
    layers = std::atoi(argv[i]);
    CHECK(layers >= 1 && layers <= 128) << "LAYERS: 1 to 128";
  }
  if (formats.empty()) formats.assign(std::begin(all), std::end(all));
  // One after another: each gives its memory back.
  for (const WeightFormat format : formats) {
    const auto or_all = [&](int all) { return layers > 0 ? layers : all; };
    const ModelConfig config = shapes == "mixture"  ? Qwen30bA3b(or_all(48))
                               : shapes == "latent" ? DeepseekV2Lite(or_all(27))
                                                    : Llama8b(or_all(32));
    Benchmark(config, format, KernelsOf(*device)).Run(decode_alone);
  }
  return 0;
}

}  // namespace
}  // namespace baton::engine::cuda

int main(int argc, char** argv) {
  return baton::engine::cuda::BenchmarkMain(argc, argv);
}
