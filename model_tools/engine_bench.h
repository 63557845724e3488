// Measures an engine by itself: prompts (prefill) and tokens one after another
// (decode), alone and in batches, at several contexts and numbers of threads.
//
//   pp512         one prompt of 512 tokens from position 0 on, in chunks
//   tg128         128 steps of one token, from position 0 on
//   tg128@b4      the same for 4 sequences at a time, each with its own KV
//   tg128@d1024   the same with 1,024 tokens before the first of the steps
//
// Every repetition starts from the same state: positions begin anew, and the
// KV of the context is what it was. Each test runs once before it is measured.
// Sampling is greedy. Tokens are random, and other ones in each sequence: what
// a step of a mixture of experts costs depends on them.
//
// Blocks; one call at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/cpu/ceilings.h"
#include "engine/engine.h"

namespace baton::model_tools {

struct BenchTest {
  enum class Kind { kPrefill, kDecode };
  Kind kind = Kind::kPrefill;
  // Of the prompt, or steps of each sequence.
  int32_t tokens = 0;
  int32_t batch = 1;
  int32_t context = 0;

  // "pp512", "tg128@b4@d1024".
  std::string Name() const;
  // Positions of one sequence, and KV tokens of all.
  int64_t Positions() const { return int64_t{context} + tokens; }
};

struct EngineBenchOptions {
  std::string model_dir;
  std::string weights = "auto";
  std::string kv_dtype = "bf16";
  // LoRA adapters that sequences have in turns; none: they have none.
  std::vector<std::string> adapters;
  std::string cpu_isa;
  std::vector<int32_t> threads = {1};
  // Tests: each prompt; each number of steps with each batch and context.
  std::vector<int32_t> prompts = {128, 512, 2048};
  std::vector<int32_t> steps = {128};
  std::vector<int32_t> batches = {1, 4, 16};
  std::vector<int32_t> contexts = {0};
  int32_t repetitions = 5;
  // Most tokens of one step of a prompt.
  int32_t chunk = 2048;
  // At most; a test that needs more is skipped.
  int64_t max_kv_bytes = int64_t{4} << 30;
  int32_t block_size = 16;
  // Whether the machine is measured, too.
  bool ceilings = true;
};

// All tests of the options, prompts first.
std::vector<BenchTest> ListTests(const EngineBenchOptions& options);

struct BenchRow {
  BenchTest test;
  int32_t threads = 0;
  // Why the test did not run; empty when it did. Then nothing below is set.
  std::string skipped;
  // Of each repetition.
  std::vector<double> seconds;
  // The median, and the standard deviation of the repetitions: tokens of the
  // prompt, or made by all sequences, per second.
  double tokens_per_second = 0;
  double spread = 0;
  // The median time of one step (of a chunk).
  double step_ms = 0;
  // By the formulas of model_costs.h.
  double gflops = 0;
  double gbs = 0;
  // Of the ceilings with as many threads: of bf16 arithmetic where the weights
  // are bf16, else of int8; of memory reads.
  std::optional<double> compute_share;
  std::optional<double> memory_share;
};

struct EngineBenchReport {
  std::string model;         // the directory's name
  std::string architecture;  // "LlamaForCausalLM"
  std::string identity;
  std::string backend;  // "cpu-avx512bf16-int8"
  std::string weights;  // "bf16", "int8", "int4", "mxfp4"
  std::string kv_dtype;
  int64_t parameters = 0;
  // Bytes of the matrices that every token is multiplied with.
  double matrix_bytes = 0;
  // One per number of threads, in the order of the options; empty when they
  // were not asked for.
  std::vector<engine::cpu::Ceilings> ceilings;
  std::vector<BenchRow> rows;
};

// Called on the caller's thread.
struct BenchEvents {
  // Something is about to be done that takes a while: "loading ...".
  absl::FunctionRef<void(const std::string& what)> note;
  // A row is there. Only its own fields may be read, and the report's above
  // `rows`.
  absl::FunctionRef<void(const EngineBenchReport& report, const BenchRow& row)>
      row;
};

// Errors as CreateEngine; InvalidArgument for options that make no test.
absl::StatusOr<EngineBenchReport> RunEngineBench(
    const EngineBenchOptions& options, const BenchEvents& events);

// Fills in what follows from `seconds`: the row's tokens per second, spread,
// times, rates and shares. Pure; for tests.
void SummarizeRow(const EngineBenchReport& report,
                  const engine::ModelConfig& config,
                  const engine::KvLayout& layout, int32_t chunk,
                  const engine::cpu::Ceilings* ceilings, BenchRow* row);

// The middle value, or the mean of the two. REQUIRES: not empty.
double Median(std::vector<double> values);
// Of a sample; 0 for one value.
double StandardDeviation(const std::vector<double>& values);

}  // namespace baton::model_tools
