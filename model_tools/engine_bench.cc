#include "model_tools/engine_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "engine/engine_factory.h"
#include "model_tools/bench_sequences.h"
#include "model_tools/model_costs.h"
#include "model_tools/model_tensors.h"

namespace baton::model_tools {
namespace {

using engine::Engine;
using engine::EngineOptions;
using engine::KvLayout;
using engine::ModelConfig;
using Clock = std::chrono::steady_clock;

// Steps that are run before a decode test is measured.
constexpr int32_t kWarmUpSteps = 4;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

absl::Status CheckOptions(const EngineBenchOptions& options) {
  const auto check = [](const char* name, const std::vector<int32_t>& values,
                        int32_t min) {
    for (const int32_t value : values) {
      if (value < min) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, " ", value, ": at least ", min));
      }
    }
    return absl::OkStatus();
  };
  BATON_RETURN_IF_ERROR(check("--threads", options.threads, 1));
  BATON_RETURN_IF_ERROR(check("--pp", options.prompts, 1));
  BATON_RETURN_IF_ERROR(check("--tg", options.steps, 1));
  BATON_RETURN_IF_ERROR(check("--batch", options.batches, 1));
  BATON_RETURN_IF_ERROR(check("--context", options.contexts, 0));
  BATON_RETURN_IF_ERROR(check("--reps", {options.repetitions}, 1));
  BATON_RETURN_IF_ERROR(check("--chunk", {options.chunk}, 1));
  if (options.threads.empty() || ListTests(options).empty()) {
    return absl::InvalidArgumentError("there is nothing to measure");
  }
  return absl::OkStatus();
}

// Blocks that a test needs.
int64_t BlocksOf(const BenchTest& test, const KvLayout& layout) {
  return int64_t{test.batch} * layout.BlocksFor(test.Positions());
}

// Why the test cannot run; empty when it can.
std::string ReasonToSkip(const BenchTest& test, const ModelConfig& config,
                         const KvLayout& layout, int64_t max_kv_bytes) {
  if (test.Positions() > config.max_position) {
    return absl::StrFormat("%d positions; the model has %d", test.Positions(),
                           config.max_position);
  }
  const int64_t bytes = BlocksOf(test, layout) * layout.block_bytes();
  if (bytes > max_kv_bytes) {
    return absl::StrFormat("%.1f GiB of KV; --kv-memory allows %.1f",
                           bytes / 0x1p30, max_kv_bytes / 0x1p30);
  }
  return "";
}

// KV memory for the largest of the tests that run.
int64_t KvBytes(const std::vector<BenchTest>& tests, const ModelConfig& config,
                const KvLayout& layout, int64_t max_kv_bytes) {
  int64_t blocks = 1;
  for (const BenchTest& test : tests) {
    if (ReasonToSkip(test, config, layout, max_kv_bytes).empty()) {
      blocks = std::max(blocks, BlocksOf(test, layout));
    }
  }
  return blocks * layout.block_bytes();
}

std::vector<double> MeasurePrefill(Engine* engine, const BenchTest& test,
                                   int32_t chunk, int32_t repetitions) {
  BenchSequences sequences(engine, 1, test.tokens);
  std::vector<double> seconds;
  for (int32_t i = -1; i < repetitions; ++i) {
    const Clock::time_point begin = Clock::now();
    sequences.Prefill(test.tokens, chunk);
    if (i >= 0) seconds.push_back(SecondsSince(begin));
    sequences.Rewind(0);
  }
  return seconds;
}

std::vector<double> MeasureDecode(Engine* engine, const BenchTest& test,
                                  int32_t chunk, int32_t repetitions) {
  BenchSequences sequences(engine, test.batch, test.Positions());
  if (test.context > 0) {
    sequences.Prefill(test.context, chunk);
    sequences.CopyFirstToAll();
  }
  for (int32_t i = 0; i < std::min(kWarmUpSteps, test.tokens); ++i) {
    sequences.DecodeStep();
  }
  std::vector<double> seconds;
  for (int32_t i = 0; i < repetitions; ++i) {
    sequences.Rewind(test.context);
    const Clock::time_point begin = Clock::now();
    for (int32_t step = 0; step < test.tokens; ++step) sequences.DecodeStep();
    seconds.push_back(SecondsSince(begin));
  }
  return seconds;
}

// Operations and bytes of a whole repetition.
struct TestCosts {
  double operations = 0;
  double bytes = 0;
  int64_t steps = 0;
  int64_t tokens = 0;
};

TestCosts CostsOf(const BenchTest& test, const ModelConfig& config,
                  const KvLayout& layout, int32_t chunk, WeightKind kind) {
  TestCosts costs;
  const auto add_step = [&](const SequenceStep& step) {
    costs.operations += test.batch * SequenceOperations(config, step);
    costs.bytes += test.batch * SequenceKvBytes(config, layout, step) +
                   LayerBytesRead(config, kind, test.batch * step.tokens) +
                   (step.sampled > 0 ? HeadBytes(config, kind) : 0.0);
    costs.tokens += int64_t{test.batch} * step.tokens;
    ++costs.steps;
  };
  const bool prefill = test.kind == BenchTest::Kind::kPrefill;
  const int64_t end = test.Positions();
  for (int64_t done = test.context; done < end;) {
    SequenceStep step;
    step.before = done;
    step.tokens = prefill ? std::min<int64_t>(chunk, end - done) : 1;
    done += step.tokens;
    step.sampled = prefill && done < end ? 0 : 1;
    add_step(step);
  }
  return costs;
}

std::string ModelName(const std::string& model_dir) {
  const std::filesystem::path path =
      std::filesystem::path(model_dir).lexically_normal();
  return path.has_filename() ? path.filename().string()
                             : path.parent_path().filename().string();
}

// The engine of one number of threads.
absl::StatusOr<std::unique_ptr<Engine>> Load(const EngineBenchOptions& options,
                                             int32_t threads,
                                             int64_t kv_bytes) {
  EngineOptions engine_options;
  engine_options.model_dir = options.model_dir;
  engine_options.num_threads = threads;
  engine_options.kv_memory_bytes = kv_bytes;
  engine_options.block_size = options.block_size;
  engine_options.weights = options.weights;
  engine_options.kv_dtype = options.kv_dtype;
  engine_options.cpu_isa = options.cpu_isa;
  for (const std::string& dir : options.adapters) {
    engine_options.adapters.push_back(
        {absl::StrCat(engine_options.adapters.size()), dir});
  }
  return engine::CreateEngine(engine_options);
}

void Describe(const EngineBenchOptions& options, const Engine& engine,
              EngineBenchReport* report) {
  const ModelConfig& config = engine.model();
  const WeightKind kind = WeightKindOf(engine.weights_info());
  report->model = ModelName(options.model_dir);
  report->architecture = engine::ArchitectureName(config.architecture);
  report->identity = engine.model_identity();
  report->backend = engine.backend_name();
  report->weights = WeightKindName(kind);
  report->kv_dtype = engine::KvDtypeName(engine.kv_layout().dtype);
  report->parameters = CountParameters(config);
  report->matrix_bytes =
      LayerMatrixBytes(config, kind) + HeadBytes(config, kind);
}

}  // namespace

std::string BenchTest::Name() const {
  if (kind == Kind::kPrefill) return absl::StrCat("pp", tokens);
  std::string name = absl::StrCat("tg", tokens);
  if (batch != 1) absl::StrAppend(&name, "@b", batch);
  if (context != 0) absl::StrAppend(&name, "@d", context);
  return name;
}

std::vector<BenchTest> ListTests(const EngineBenchOptions& options) {
  std::vector<BenchTest> tests;
  for (const int32_t prompt : options.prompts) {
    tests.push_back({BenchTest::Kind::kPrefill, prompt, 1, 0});
  }
  for (const int32_t steps : options.steps) {
    for (const int32_t context : options.contexts) {
      for (const int32_t batch : options.batches) {
        tests.push_back({BenchTest::Kind::kDecode, steps, batch, context});
      }
    }
  }
  return tests;
}

double Median(std::vector<double> values) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle]
                                : (values[middle - 1] + values[middle]) / 2;
}

double StandardDeviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0.0;
  const auto n = static_cast<double>(values.size());
  double mean = 0, squares = 0;
  for (const double value : values) mean += value / n;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / (n - 1));
}

void SummarizeRow(const EngineBenchReport& report, const ModelConfig& config,
                  const KvLayout& layout, int32_t chunk,
                  const engine::cpu::Ceilings* ceilings, BenchRow* row) {
  const WeightKind kind =
      ParseWeightKind(report.weights).value_or(WeightKind::kBf16);
  const TestCosts costs = CostsOf(row->test, config, layout, chunk, kind);
  const double seconds = std::max(Median(row->seconds), 1e-9);
  std::vector<double> rates;
  for (const double each : row->seconds) {
    rates.push_back(costs.tokens / std::max(each, 1e-9));
  }
  row->tokens_per_second = costs.tokens / seconds;
  row->spread = StandardDeviation(rates);
  row->step_ms = seconds / costs.steps * 1e3;
  row->gflops = costs.operations / seconds / 1e9;
  row->gbs = costs.bytes / seconds / 1e9;
  if (ceilings == nullptr) return;
  const double compute = kind == WeightKind::kInt8 || kind == WeightKind::kInt4
                             ? ceilings->int8_gops
                             : ceilings->bf16_gflops;
  row->compute_share = row->gflops / compute;
  row->memory_share = row->gbs / ceilings->memory_gbs;
}

absl::StatusOr<EngineBenchReport> RunEngineBench(
    const EngineBenchOptions& options, const BenchEvents& events) {
  BATON_RETURN_IF_ERROR(CheckOptions(options));
  const std::vector<BenchTest> tests = ListTests(options);
  BATON_ASSIGN_OR_RETURN(const ModelConfig config,
                         engine::LoadModelConfig(options.model_dir));
  // Engines refuse names that are none.
  const engine::KvDtype kv_dtype =
      engine::ParseKvDtype(options.kv_dtype).value_or(engine::KvDtype::kBf16);
  const KvLayout one_block =
      MakeKvLayout(config, kv_dtype, options.block_size, /*num_blocks=*/1);
  const int64_t kv_bytes =
      KvBytes(tests, config, one_block, options.max_kv_bytes);
  EngineBenchReport report;
  if (options.ceilings) {
    for (const int32_t threads : options.threads) {
      events.note(absl::StrCat("measuring the machine with ", threads,
                               " thread", threads == 1 ? "" : "s"));
      engine::cpu::CeilingOptions ceilings;
      ceilings.num_threads = threads;
      ceilings.isa = options.cpu_isa;
      BATON_ASSIGN_OR_RETURN(engine::cpu::Ceilings measured,
                             engine::cpu::MeasureCeilings(ceilings));
      report.ceilings.push_back(measured);
    }
  }
  for (size_t t = 0; t < options.threads.size(); ++t) {
    const int32_t threads = options.threads[t];
    events.note(absl::StrCat("loading ", options.model_dir));
    BATON_ASSIGN_OR_RETURN(const auto engine, Load(options, threads, kv_bytes));
    Describe(options, *engine, &report);
    for (const BenchTest& test : tests) {
      BenchRow row;
      row.test = test;
      row.threads = threads;
      row.skipped = ReasonToSkip(test, engine->model(), engine->kv_layout(),
                                 options.max_kv_bytes);
      if (row.skipped.empty()) {
        events.note(absl::StrCat(test.Name(), ", ", threads, " thread",
                                 threads == 1 ? "" : "s"));
        row.seconds = test.kind == BenchTest::Kind::kPrefill
                          ? MeasurePrefill(engine.get(), test, options.chunk,
                                           options.repetitions)
                          : MeasureDecode(engine.get(), test, options.chunk,
                                          options.repetitions);
        SummarizeRow(report, engine->model(), engine->kv_layout(),
                     options.chunk,
                     options.ceilings ? &report.ceilings[t] : nullptr, &row);
      }
      report.rows.push_back(row);
      events.row(report, report.rows.back());
    }
  }
  return report;
}

}  // namespace baton::model_tools
