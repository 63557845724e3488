// How fast the CPU backend's parts are. Run by hand, on an otherwise idle
// machine:
//
//   engine_benchmark --benchmark_filter=Matmul
//
// Matmul reports floating-point operations per second ("flops") and, for few
// rows, the rate at which weights and scales are read ("bytes"). EngineStep
// runs the demo model of the repository, or the one that BATON_BENCH_MODEL
// names.
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "common/log.h"
#include "engine/cpu/activations.h"
#include "engine/cpu/attention.h"
#include "engine/cpu/cpu_weights.h"
#include "engine/cpu/kernel_choice.h"
#include "engine/cpu/kv_pages.h"
#include "engine/cpu/matmul.h"
#include "engine/cpu/memory_arena.h"
#include "engine/engine_factory.h"
#include "engine/float_convert.h"
#include "engine/mxfp4.h"
#include "engine/sampling.h"

namespace baton::engine {
namespace {

using benchmark::Counter;
using scheduling::SamplingParams;

std::vector<uint16_t> RandomBf16(int64_t n) {
  std::minstd_rand bits(1);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<uint16_t> values(n);
  for (uint16_t& v : values) v = FloatToBf16(uniform(bits));
  return values;
}

// Arguments: rows, outputs, inputs, threads. The weights of the products run
// after each other are in turn several matrices of together 256 MiB, as in a
// model, so that they come from memory.
void BM_Matmul(benchmark::State& state, const cpu::Kernels* kernels,
               cpu::WeightDtype dtype) {
  const int32_t rows = static_cast<int32_t>(state.range(0));
  const int64_t outputs = state.range(1), inputs = state.range(2);
  cpu::ThreadTeam team(static_cast<int32_t>(state.range(3)));
  const std::vector<uint16_t> weights = RandomBf16(outputs * inputs);
  // What the bits of random numbers are in MXFP4 is as good as others.
  const std::vector<uint8_t> exponents(outputs * inputs / kMxfp4Group, 120);
  WeightMatrix view;
  view.name = "w";
  view.rows = outputs;
  view.columns = inputs;
  view.run = {0, outputs, outputs};
  view.values.dtype = DType::kBf16;
  view.values.shape = {outputs, inputs};
  view.values.bytes = absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(weights.data()), weights.size() * 2);
  if (dtype == cpu::WeightDtype::kMxfp4) {
    view.encoding = WeightEncoding::kMxfp4;
    view.values.bytes = view.values.bytes.subspan(0, outputs * inputs / 2);
    view.scales.bytes = absl::MakeConstSpan(
        reinterpret_cast<const std::byte*>(exponents.data()), exponents.size());
  }
  std::vector<cpu::PanelSource> panels;
  cpu::AppendPanels(view, 0, outputs, cpu::kWideUnit, &panels);
  const cpu::PackedShape shape = {dtype, cpu::kWideUnit,
                                  static_cast<int32_t>(inputs),
                                  static_cast<int32_t>(panels.size())};
  const cpu::PackedSize size = shape.size();
  const int64_t bytes = size.data + (size.scales + 63) / 64 * 64;
  const int64_t count = (int64_t{256} << 20) / bytes;
  auto arena = cpu::MemoryArena::Allocate(count * bytes, "weights");
  if (!arena.ok()) {
    state.SkipWithError(arena.status().ToString().c_str());
    return;
  }
  std::vector<cpu::PackedMatrix> matrices;
  for (int64_t i = 0; i < count; ++i) {
    const auto memory = arena->memory().subspan(i * bytes, bytes);
    matrices.push_back(
        cpu::PackedMatrix::Pack(shape, panels, memory.subspan(0, size.data),
                                memory.subspan(size.data, size.scales), team));
  }
  const std::vector<uint16_t> random = RandomBf16(inputs);
  std::vector<float> row;
  for (const uint16_t bits : random) row.push_back(Bf16ToFloat(bits));
  cpu::Activations a(shape.dtype, shape.inputs);
  a.Reserve(rows);
  for (int32_t r = 0; r < rows; ++r) {
    a.Write(*kernels, r, 0, row.data(), shape.inputs);
  }
  cpu::Matmul matmul(*kernels, team);
  size_t next = 0;
  for (auto _ : state) {
    matmul.Run(a, 0, rows, matrices[next], cpu::kWideUnit,
               [](const cpu::Strip& strip) {
                 benchmark::DoNotOptimize(strip.values);
               });
    next = (next + 1) % matrices.size();
  }
  const double products = static_cast<double>(rows) * outputs * inputs;
  state.counters["flops"] =
      Counter(2.0 * products, Counter::kIsIterationInvariantRate);
  state.counters["bytes"] =
      Counter(static_cast<double>(size.data + size.scales),
              Counter::kIsIterationInvariantRate);
}

// Arguments: sequences, new tokens of each, positions before, threads. A layer
// of Llama 3.2 1B: 32 heads of 64, 8 KV heads.
void BM_Attention(benchmark::State& state, const cpu::Kernels* kernels) {
  const int32_t sequences = static_cast<int32_t>(state.range(0));
  const int32_t rows = static_cast<int32_t>(state.range(1));
  const int32_t before = static_cast<int32_t>(state.range(2));
  constexpr int32_t kHeads = 32;
  KvLayout layout;
  layout.num_layers = 1;
  layout.num_kv_heads = 8;
  layout.head_dim = 64;
  const int32_t blocks_each = layout.BlocksFor(before + rows);
  layout.num_blocks = sequences * blocks_each;
  std::vector<uint16_t> memory = RandomBf16(layout.total_bytes() / 2);
  const cpu::KvPages pages(*kernels, layout,
                           reinterpret_cast<std::byte*>(memory.data()));
  const int64_t query_size = kHeads * layout.head_dim;
  const std::vector<uint16_t> queries =
      RandomBf16(sequences * rows * query_size);
  std::vector<uint16_t> output(queries.size());
  std::vector<BlockId> blocks(layout.num_blocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  cpu::ThreadTeam team(static_cast<int32_t>(state.range(3)));
  cpu::Attention attention(*kernels, pages, kHeads, /*score_factor=*/0.125f,
                           team.num_threads());
  std::vector<cpu::QueryTile> tiles;
  for (int32_t s = 0; s < sequences; ++s) {
    for (int32_t i = 0; i < rows; i += attention.MaxTileRows()) {
      const int32_t row = s * rows + i;
      tiles.push_back(
          {row, row, std::min(attention.MaxTileRows(), rows - i), before + i,
           absl::MakeSpan(blocks).subspan(s * blocks_each, blocks_each)});
    }
  }
  for (auto _ : state) {
    attention.Run(team, tiles, /*layer=*/0, /*window=*/std::nullopt,
                  /*sinks=*/{}, queries.data(), query_size, output.data(),
                  query_size, layout.head_dim);
  }
  // Two products of head_dim per query, head and visible position.
  const double visible = rows * (before + (rows + 1) / 2.0);
  state.counters["flops"] = Counter(4.0 * sequences * visible * query_size,
                                    Counter::kIsIterationInvariantRate);
  state.counters["bytes"] = Counter(static_cast<double>(layout.total_bytes()),
                                    Counter::kIsIterationInvariantRate);
}

std::vector<float> RandomLogits(int64_t vocab_size) {
  std::minstd_rand bits(2);
  std::normal_distribution<float> normal(0.0f, 2.5f);
  std::vector<float> logits(vocab_size);
  for (float& x : logits) x = normal(bits);
  return logits;
}

void BM_Sample(benchmark::State& state, const SamplingParams& params) {
  const std::vector<float> logits = RandomLogits(128256);
  std::vector<float> scratch(logits.size());
  std::vector<TokenId> history(1000);
  for (size_t i = 0; i < history.size(); ++i) {
    history[i] = static_cast<TokenId>(i * 37 % logits.size());
  }
  uint64_t index = 0;
  for (auto _ : state) {
    scratch = logits;
    benchmark::DoNotOptimize(
        Sample(absl::MakeSpan(scratch), params, history, 500, index++));
  }
}

// Arguments: sequences, new tokens of each, positions before, threads.
void BM_EngineStep(benchmark::State& state) {
  const char* const model = std::getenv("BATON_BENCH_MODEL");
  EngineOptions options;
  options.model_dir =
      model != nullptr ? model : BATON_SOURCE_DIR "/models/stories";
  options.num_threads = static_cast<int32_t>(state.range(3));
  options.kv_memory_bytes = int64_t{1} << 30;
  auto engine = CreateEngine(options);
  if (!engine.ok()) {
    state.SkipWithError(engine.status().ToString().c_str());
    return;
  }
  const int32_t sequences = static_cast<int32_t>(state.range(0));
  const int32_t rows = static_cast<int32_t>(state.range(1));
  const int32_t before = static_cast<int32_t>(state.range(2));
  const int32_t blocks_each = (*engine)->kv_layout().BlocksFor(before + rows);
  std::vector<BlockId> blocks(sequences * blocks_each);
  std::iota(blocks.begin(), blocks.end(), 0);
  const std::vector<TokenId> history(before + rows, 1);
  SamplingParams greedy;
  greedy.temperature = 0.0f;
  scheduling::StepPlan plan;
  for (int32_t s = 0; s < sequences; ++s) {
    scheduling::PlannedSequence planned;
    planned.sequence = SequenceId{static_cast<uint64_t>(s)};
    planned.history = history;
    planned.tokens = planned.history.subspan(before);
    planned.first_position = before;
    planned.blocks =
        absl::MakeSpan(blocks).subspan(s * blocks_each, blocks_each);
    planned.sample = true;
    planned.sampling = &greedy;
    planned.prompt_length = 1;
    plan.sequences.push_back(planned);
  }
  for (auto _ : state) (*engine)->Execute(plan, [](int32_t) {});
  state.counters["tokens"] = Counter(static_cast<double>(sequences) * rows,
                                     Counter::kIsIterationInvariantRate);
}

void RegisterMatmul(const cpu::Kernels* kernels, cpu::WeightDtype dtype) {
  std::string name = std::string("Matmul/") + kernels->name;
  if (dtype != cpu::WeightDtype::kBf16) {
    name += "-" + std::string(cpu::WeightDtypeName(dtype));
  }
  auto* const matmul = benchmark::RegisterBenchmark(
      name.c_str(),
      [kernels, dtype](benchmark::State& s) { BM_Matmul(s, kernels, dtype); });
  matmul->UseRealTime()->Unit(benchmark::kMicrosecond);
  for (const int64_t threads : {1, 2}) {
    matmul->Args({512, 2048, 2048, threads})
        ->Args({512, 8192, 2048, threads})
        ->Args({512, 2048, 8192, threads})
        ->Args({128, 2048, 2048, threads})
        ->Args({32, 8192, 2048, threads})
        ->Args({16, 8192, 2048, threads})
        ->Args({8, 8192, 2048, threads})
        ->Args({4, 8192, 2048, threads})
        ->Args({1, 8192, 2048, threads});
  }
}

void RegisterAll() {
  for (const cpu::Kernels* kernels : cpu::AvailableKernels()) {
    const std::string isa = kernels->name;
    for (const cpu::WeightDtype dtype :
         {cpu::WeightDtype::kBf16, cpu::WeightDtype::kMxfp4,
          cpu::WeightDtype::kInt8, cpu::WeightDtype::kInt4}) {
      RegisterMatmul(kernels, dtype);
    }
    auto* const attention = benchmark::RegisterBenchmark(
        ("Attention/" + isa).c_str(),
        [kernels](benchmark::State& s) { BM_Attention(s, kernels); });
    attention->UseRealTime()->Unit(benchmark::kMicrosecond);
    attention->Args({1, 1, 4096, 1})
        ->Args({32, 1, 2048, 2})
        ->Args({1, 512, 0, 2})
        ->Args({1, 512, 4096, 2});
  }
  SamplingParams params;
  const auto add = [](const char* name, const SamplingParams& p) {
    benchmark::RegisterBenchmark(name, [p](benchmark::State& s) {
      BM_Sample(s, p);
    })->Unit(benchmark::kMicrosecond);
  };
  add("Sample/all", params);
  params.top_k = 50;
  add("Sample/top_k_50", params);
  params.top_k = 0;
  params.top_p = 0.95f;
  add("Sample/top_p_0.95", params);
  params.repetition_penalty = 1.1f;
  add("Sample/top_p_0.95_penalty", params);
  params = SamplingParams();
  params.min_p = 0.05f;
  add("Sample/min_p_0.05", params);
  params = SamplingParams();
  params.temperature = 0.0f;
  add("Sample/greedy", params);
  benchmark::RegisterBenchmark("EngineStep", BM_EngineStep)
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond)
      ->Args({1, 400, 0, 2})
      ->Args({1, 1, 200, 2})
      ->Args({8, 1, 200, 2})
      ->Args({32, 1, 200, 2});
}

}  // namespace
}  // namespace baton::engine

int main(int argc, char** argv) {
  baton::InitLogging("engine_benchmark");
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  baton::engine::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
