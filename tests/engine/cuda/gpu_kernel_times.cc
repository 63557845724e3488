// What each kernel of a step takes on a GPU, as it stands in docs/gpu.md: many
// of one kind in a graph, each with weights or keys and values of its own, so
// that no cache has them. For products of few rows and attention of single
// tokens, how much of a large copy's bytes per second they read; for prompts',
// how much of cuBLASLt's operations. Ends with 1 where there is no GPU.
//
//   engine_cuda_gpu_kernel_times [--tiny | --once]
//
// --tiny: small sizes, to see that it runs. --once: each kernel once and by
// itself, in bfloat16 and int4, for a profiler to look at; prints no times.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/cuda/attention.h"
#include "engine/cuda/attention_group.h"
#include "engine/cuda/device_kernels.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/forward_pass.h"
#include "engine/cuda/graph_buckets.h"
#include "engine/cuda/lora.h"
#include "engine/cuda/matmul.h"
#include "engine/cuda/row_kernels.h"
#include "engine/cuda/sample.h"
#include "engine/cuda/step_layout.h"
#include "engine/cuda/weight_format.h"
#include "engine/kv_layout.h"
#include "tests/engine/cuda/gpu_arrays.h"
#include "tests/engine/cuda/gpu_ceilings.h"
#include "tests/engine/cuda/gpu_kernel_sizes.h"
#include "tests/engine/cuda/random_model.h"

namespace baton::engine::cuda {
namespace {

class KernelTimes final : private GpuArrays {
 public:
  KernelTimes(const KernelSizes& sizes, WeightFormat format,
              const DeviceKernels& kernels)
      : sizes_(sizes),
        model_(sizes.model),
        format_(format),
        kernels_(kernels),
        random_(model_, format, stream_) {
    stream_.SetEarlyKernels(kernels.wide);
    if (!sizes.once) {
      copy_ = CopyBytesPerSecond(stream_, sizes.copy_bytes);
      product_ = MatmulOpsPerSecond(stream_, sizes.product_size);
    }
    most_rows_ =
        *std::max_element(sizes.many_rows.begin(), sizes.many_rows.end());
    const int64_t staged = StagedRows(most_rows_);
    const int32_t q = model_.num_heads * model_.head_dim;
    residual_ = Take(4 * staged * model_.hidden_size);
    normed_ = Take(2 * staged * model_.hidden_size);
    qkv_ = Take(4 * staged * QkvSize());
    queries_ = Take(2 * staged * q);
    attended_ = Take(2 * staged * q);
    gated_ = Take(2 * staged * model_.intermediate_size);
    // No two alike, mostly: of those the likeliest could not be told.
    std::vector<float> logits(int64_t{64} * model_.vocab_size);
    std::minstd_rand random(1);
    for (float& logit : logits) logit = static_cast<float>(random() % 65536);
    logits_ = Put(logits);
    edited_ = Take(logits_.bytes());
    SampleRow greedy;
    how_ = Put(std::vector<SampleRow>(64, greedy));
    greedy.top = kTopPlaces;
    how_top_ = Put(std::vector<SampleRow>(64, greedy));
    tops_ = Take(64 * kTopPlaces * int64_t{sizeof(TopLogit)}, 0);
    outcomes_ = Take(64 * int64_t{sizeof(SampleOutcome)}, 0);
    rope_ = Take(4 * int64_t{model_.max_position} * model_.head_dim);
    MakeKv();
  }

  void Run() {
    std::printf("%s: copy %.2f TB/s, cuBLASLt %.0f TFLOP/s\n", Name(),
                copy_ / 1e12, product_ / 1e12);
    std::printf("%-6s %-16s %6s %8s %10s %8s\n", "format", "kernel", "rows",
                "context", "us", "share");
    for (const int32_t rows : sizes_.few_rows) Products(rows);
    for (const int32_t rows : sizes_.many_rows) Products(rows);
    if (format_ != WeightFormat::kBf16) return;  // the rest is the same
    for (const int32_t rows : sizes_.few_rows) {
      Small(rows);
      Lora(rows);
      for (const int32_t context : sizes_.contexts) Spans(rows, context);
    }
    for (const int32_t rows : sizes_.many_rows) {
      Small(rows);
      Lora(rows);
      Prompt(rows);
    }
  }

 private:
  const char* Name() {
    name_ = std::string(WeightFormatName(format_));
    return name_.c_str();
  }
  int32_t QkvSize() const {
    return (model_.num_heads + 2 * model_.num_kv_heads) * model_.head_dim;
  }
  InputOrder OrderOf(int32_t rows) const {
    return OrderOfInputs(kernels_, format_, rows);
  }

  void MakeKv() {
    layout_.num_layers = sizes_.kv_layers;
    layout_.num_kv_heads = model_.num_kv_heads;
    layout_.head_dim = model_.head_dim;
    const int32_t longest =
        *std::max_element(sizes_.contexts.begin(), sizes_.contexts.end());
    const int32_t most =
        *std::max_element(sizes_.few_rows.begin(), sizes_.few_rows.end());
    layout_.num_blocks = std::max(most * layout_.BlocksFor(longest),
                                  layout_.BlocksFor(most_rows_));
    const int64_t room = FreeDeviceBytes() * 9 / 10 / layout_.block_bytes();
    layout_.num_blocks =
        static_cast<int32_t>(std::min<int64_t>(layout_.num_blocks, room));
    kv_ = Take(layout_.total_bytes());
    std::vector<BlockId> tables(layout_.num_blocks);
    std::iota(tables.begin(), tables.end(), 0);
    tables_ = Put(tables);
  }

  // Of one launch; `run` gives the i-th of so many to the stream.
  double Microseconds(int32_t count, const std::function<void(int32_t)>& run) {
    if (sizes_.once) {
      run(0);
      stream_.Wait();
      return 0;
    }
    return MicrosecondsInGraph(stream_, sizes_.repeats, count, run);
  }

  // With `best_us` as what it takes at a ceiling; 0: none is meant.
  void Print(const char* kernel, int32_t rows, int32_t context, double us,
             double best_us) {
    std::printf("%-6s %-16s %6d %8d %10.2f ", Name(), kernel, rows, context,
                us);
    if (best_us > 0 && us > 0) std::printf("%8.2f", best_us / us);
    std::printf("\n");
    std::fflush(stdout);
  }

  void Products(int32_t rows) {
    struct Kind {
      const char* name;
      DeviceMatrix DeviceLayer::*matrix;
      MatmulOutput output;
      DeviceBuffer* x;
      DeviceBuffer* out;
    };
    const Kind kinds[] = {
        {"qkv", &DeviceLayer::qkv, MatmulOutput::kStore, &normed_, &qkv_},
        {"o", &DeviceLayer::o, MatmulOutput::kAdd, &attended_, &residual_},
        {"gate_up", &DeviceLayer::gate_up, MatmulOutput::kSwiglu, &normed_,
         &gated_},
        {"down", &DeviceLayer::down, MatmulOutput::kAdd, &gated_, &residual_},
    };
    for (const Kind& kind : kinds) {
      const auto run = [&](int32_t i) {
        Multiply(random_.weights.layers[i].*kind.matrix, rows, kind.output,
                 *kind.x, kind.out, OrderOf(rows));
      };
      PrintProduct(kind.name, random_.weights.layers[0].*kind.matrix, rows,
                   Microseconds(model_.num_layers, run));
    }
    if (rows > 64) return;
    const auto head = [&](int32_t) {
      Multiply(random_.weights.lm_head, rows, MatmulOutput::kStore, normed_,
               &logits_, InputOrder::kNatural);
    };
    PrintProduct("head", random_.weights.lm_head, rows, Microseconds(4, head));
  }

  void Multiply(const DeviceMatrix& w, int32_t rows, MatmulOutput output,
                const DeviceBuffer& x, DeviceBuffer* out, InputOrder order) {
    MatmulArgs args;
    args.w = w;
    args.x = x.as<uint16_t>();
    args.x_stride = w.padded_inputs;
    args.x_order = order;
    args.rows = rows;
    args.out_stride = w.outputs;
    if (output == MatmulOutput::kSwiglu) {
      args.gated = out->as<uint16_t>();
      args.gated_order = order;
      args.out_stride = w.outputs / 2;
    } else {
      args.out = out->as<float>();
    }
    RunMatmul(args, output, kernels_, stream_.handle());
  }

  void PrintProduct(const char* name, const DeviceMatrix& w, int32_t rows,
                    double us) {
    const double ops = 2.0 * rows * w.outputs * w.inputs;
    const double best = rows > 64 ? (product_ > 0 ? ops / product_ : 0)
                                  : static_cast<double>(w.bytes()) / copy_;
    Print(name, rows, 0, us, 1e6 * best);
  }

  // What is between them.
  void Small(int32_t rows) {
    const auto norm = [&](int32_t i) {
      NormArgs args;
      args.residual = residual_.as<float>();
      args.rows = rows;
      args.hidden = model_.hidden_size;
      args.weight = random_.weights.layers[i].input_norm;
      args.eps = 1e-5f;
      args.out = normed_.as<uint16_t>();
      args.out_stride = model_.hidden_size;
      args.out_order = OrderOf(rows);
      RunNorm(args, stream_.handle());
    };
    // Read once, and written once as bfloat16.
    const double norm_bytes = 6.0 * rows * model_.hidden_size;
    Print("norm", rows, 0, Microseconds(model_.num_layers, norm),
          rows > 64 ? 1e6 * norm_bytes / copy_ : 0);
    std::vector<RowPlace> where;
    for (int32_t i = 0; i < rows; ++i) where.push_back({i, 0});
    const DeviceBuffer places = Put(where);
    const auto heads = [&](int32_t i) {
      FinishHeadsArgs args = Heads(i);
      args.places = places.as<RowPlace>();
      args.rows = rows;
      RunFinishHeads(args, stream_.handle());
    };
    const double head_bytes = 6.0 * rows * QkvSize();
    Print("heads", rows, 0, Microseconds(model_.num_layers, heads),
          rows > 64 ? 1e6 * head_bytes / copy_ : 0);
    if (rows > 64) return;
    const auto sample = [&](const DeviceBuffer& how) {
      SampleArgs args;
      args.logits = logits_.as<float>();
      args.edited = edited_.as<float>();
      args.stride = model_.vocab_size;
      args.vocab_size = model_.vocab_size;
      args.rows = rows;
      args.how = how.as<SampleRow>();
      args.outcomes = outcomes_.as<SampleOutcome>();
      args.tops = tops_.as<TopLogit>();
      RunSample(args, stream_.handle());
    };
    const auto plain = [&](int32_t) { sample(how_); };
    const auto ranked = [&](int32_t) { sample(how_top_); };
    Print("sample", rows, 0, Microseconds(4, plain), 0);
    Print("sample, top 20", rows, 0, Microseconds(4, ranked), 0);
  }

  // What an adapter of rank 16, which all rows have, adds to Q, K and V; and
  // SwiGLU by itself, as of 512 rows at most.
  void Lora(int32_t rows) {
    constexpr int32_t kRank = 16;
    const int32_t inputs = model_.hidden_size;
    const int32_t outputs[] = {model_.num_heads * model_.head_dim,
                               model_.num_kv_heads * model_.head_dim,
                               model_.num_kv_heads * model_.head_dim};
    const DeviceBuffer a = Take(2 * int64_t{kLoraParts} * kRank * inputs);
    const DeviceBuffer b = Take(2 * int64_t{QkvSize()} * kRank);
    const DeviceBuffer narrow = Take(2 * int64_t{rows} * kLoraParts * kRank);
    LoraEntry entry;
    LoraWideArgs wide;
    for (int32_t part = 0, column = 0; part < kLoraParts; ++part) {
      entry.parts[part] = {a.as<uint16_t>() + int64_t{part} * kRank * inputs,
                           b.as<uint16_t>() + int64_t{column} * kRank, 1.0f};
      wide.outputs[part] = outputs[part];
      wide.columns[part] = column;
      column += outputs[part];
    }
    const DeviceBuffer entries = Put(std::vector<LoraEntry>{entry});
    const LoraGroups groups = GroupByAdapter(std::vector<int32_t>(rows, 0));
    const DeviceBuffer tiles = Put(groups.tiles);
    const DeviceBuffer list = Put(groups.list);
    const LoraRows adapted = {tiles.as<LoraTile>(),
                              static_cast<int32_t>(groups.tiles.size()),
                              list.as<int32_t>()};
    LoraNarrowArgs small;
    small.rows = wide.rows = adapted;
    small.entries = wide.entries = entries.as<LoraEntry>();
    small.parts = wide.parts = kLoraParts;
    small.rank = wide.rank = kRank;
    small.padded_inputs = inputs;
    small.x = normed_.as<uint16_t>();
    small.x_stride = inputs;
    small.x_order = OrderOf(rows);
    small.narrow = narrow.as<uint16_t>();
    wide.narrow = narrow.as<uint16_t>();
    wide.end_row = rows;
    wide.out = qkv_.as<float>();
    wide.out_stride = QkvSize();
    SwigluArgs swiglu;
    swiglu.rows = std::min(rows, ForwardPassOptions().stored_rows);
    swiglu.elements = model_.intermediate_size;
    swiglu.from_stride = 2 * int64_t{model_.intermediate_size};
    const DeviceBuffer stored = Take(4 * swiglu.rows * swiglu.from_stride);
    swiglu.from = stored.as<float>();
    swiglu.to = gated_.as<uint16_t>();
    swiglu.to_stride = model_.intermediate_size;
    swiglu.to_order = OrderOf(rows);
    const auto print = [&](const char* name, int32_t of, const auto& run) {
      Print(name, of, 0, Microseconds(model_.num_layers, run), 0);
    };
    StreamHandle* const to = stream_.handle();
    print("lora narrow", rows, [&](int32_t) { RunLoraNarrow(small, to); });
    print("lora wide", rows, [&](int32_t) { RunLoraWide(wide, to); });
    print("swiglu", swiglu.rows, [&](int32_t) { RunSwiglu(swiglu, to); });
  }

  // What both have of the model and of a layer's KV.
  template <typename Args>
  Args WithKv(int32_t layer) {
    Args args;
    args.num_heads = model_.num_heads;
    args.num_kv_heads = model_.num_kv_heads;
    args.head_dim = model_.head_dim;
    args.stored_head_dim = layout_.stored_head_dim();
    args.queries = queries_.as<uint16_t>();
    args.pages = kv_.data() + layout_.PageOffset(layer % layout_.num_layers, 0);
    args.page_bytes = layout_.page_bytes();
    args.head_bytes = layout_.head_bytes();
    args.values_offset = layout_.ValuesOffset();
    args.scales_offset = layout_.KeyScalesOffset();
    args.block_size = layout_.block_size;
    args.block_tables = tables_.as<BlockId>();
    return args;
  }
  FinishHeadsArgs Heads(int32_t layer) {
    auto args = WithKv<FinishHeadsArgs>(layer);
    args.turning_pairs = model_.head_dim / 2;
    args.qkv = qkv_.as<float>();
    args.rope = rope_.as<float>();
    return args;
  }
  AttentionArgs Attention(int32_t layer) {
    auto args = WithKv<AttentionArgs>(layer);
    args.score_factor = ScoreFactor(model_.ScoreScale());
    args.out = attended_.as<uint16_t>();
    args.out_stride = model_.num_heads * model_.head_dim;
    return args;
  }

  // Single tokens that have `context` positions each; then as many of a few
  // sequences, which share blocks as guesses do.
  void Spans(int32_t rows, int32_t context) {
    const int32_t blocks = layout_.BlocksFor(context);
    if (rows * blocks > layout_.num_blocks) {
      std::printf("attention of %d x %d: KV memory is too small\n", rows,
                  context);
      return;
    }
    const int32_t spans = SpansOf(context - 1, /*window=*/0);
    const int64_t pieces = int64_t{rows} * model_.num_heads * spans;
    const DeviceBuffer sums = Take(4 * pieces * layout_.stored_head_dim());
    const DeviceBuffer states = Take(8 * pieces);
    const DeviceBuffer counts =
        Take(4 * int64_t{rows} * model_.num_kv_heads, 0);
    const auto print = [&](const char* kernel, int32_t together, bool heads) {
      std::vector<QueryTile> tiles;
      for (int32_t i = 0; i < rows; i += together) {
        const int32_t count = std::min(together, rows - i);
        tiles.push_back({i, i, count, context - count, i * blocks});
      }
      const DeviceBuffer there = Put(tiles);
      const auto run = [&](int32_t i) {
        AttentionArgs args = Attention(i);
        if (heads) args.heads = Heads(i);
        args.tiles = there.as<QueryTile>();
        args.num_tiles = static_cast<int32_t>(tiles.size());
        args.max_spans = spans;
        args.span_rows = together;
        args.span_sums = sums.as<float>();
        args.span_states = states.as<float>();
        args.span_counts = counts.as<uint32_t>();
        RunAttention(args, stream_.handle());
      };
      const double bytes = static_cast<double>(layout_.page_bytes()) /
                           layout_.block_size * context *
                           static_cast<double>(tiles.size());
      Print(kernel, rows, context, Microseconds(model_.num_layers, run),
            1e6 * bytes / copy_);
    };
    print("attention", 1, false);
    print("attention, heads", 1, true);
    const int32_t most = MaxSpanRows(model_.num_heads / model_.num_kv_heads);
    if (rows > 1 && most > 1) print("guesses", most, false);
  }

  // All tokens of a prompt.
  void Prompt(int32_t length) {
    const bool groups = kernels_.group_attention &&
                        IsGroupAttentionHeadDim(layout_.stored_head_dim());
    const int32_t queries = groups ? kGroupTileQueries : kTileQueries;
    const int32_t rows =
        MaxTileRows(model_.num_heads / model_.num_kv_heads, queries);
    std::vector<QueryTile> tiles;
    for (int32_t i = 0; i < length; i += rows) {
      tiles.push_back({i, i, std::min(rows, length - i), i, 0});
    }
    const DeviceBuffer there = Put(tiles);
    const auto run = [&](int32_t i) {
      AttentionArgs args = Attention(i);
      args.tiles = there.as<QueryTile>();
      args.num_tiles = static_cast<int32_t>(tiles.size());
      args.tile_queries = queries;
      args.out_order = OrderOf(length);
      RunAttention(args, stream_.handle());
    };
    // Both products, of which half is masked.
    const double ops = 2.0 * model_.num_heads * model_.head_dim *
                       static_cast<double>(length) * length;
    Print(groups ? "prompt (groups)" : "prompt", length, length,
          Microseconds(model_.num_layers, run),
          product_ > 0 ? 1e6 * ops / product_ : 0);
  }

  const KernelSizes sizes_;
  const ModelConfig model_;
  const WeightFormat format_;
  const DeviceKernels kernels_;
  std::string name_;
  RandomWeights random_;
  KvLayout layout_;
  int32_t most_rows_ = 0;
  double copy_ = 0;
  double product_ = 0;
  DeviceBuffer residual_, normed_, qkv_, queries_, attended_, gated_, logits_;
  DeviceBuffer edited_, how_, how_top_, tops_, outcomes_, rope_, kv_, tables_;
};

int KernelTimesMain(int argc, char** argv) {
  const absl::StatusOr<DeviceProperties> device = OpenDevice(0);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().ToString().c_str());
    return 1;
  }
  const bool tiny = argc > 1 && std::strcmp(argv[1], "--tiny") == 0;
  const bool once = argc > 1 && std::strcmp(argv[1], "--once") == 0;
  for (const WeightFormat format :
       {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kInt4}) {
    if (once && format == WeightFormat::kFp8) continue;
    KernelTimes(tiny   ? TinyKernelSizes()
                : once ? OnceKernelSizes()
                       : KernelSizes(),
                format, KernelsOf(*device))
        .Run();
    if (tiny) break;
  }
  return 0;
}

}  // namespace
}  // namespace baton::engine::cuda

int main(int argc, char** argv) {
  return baton::engine::cuda::KernelTimesMain(argc, argv);
}
