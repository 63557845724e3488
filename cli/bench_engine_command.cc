// `baton bench engine`: the engine by itself, against what the machine can do.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command.h"
#include "common/output_file.h"
#include "common/status_macros.h"
#include "model_tools/engine_bench.h"
#include "model_tools/engine_bench_json.h"

namespace baton::cli {
namespace {

using model_tools::BenchRow;
using model_tools::EngineBenchReport;

struct BenchEngineFlags {
  model_tools::EngineBenchOptions options;
  std::string json;
  std::string plot;
  bool no_ceilings = false;
  bool quiet = false;
};

std::string Percent(const std::optional<double>& share) {
  return share.has_value() ? absl::StrFormat("%.0f%%", 100.0 * *share) : "-";
}

// Writes the table as it grows; notes go to stderr.
class Table final {
 public:
  Table(const BenchEngineFlags& flags, std::FILE* out)
      : flags_(flags), out_(out) {}

  void Note(const std::string& what) const {
    if (!flags_.quiet) std::fprintf(stderr, "%s ...\n", what.c_str());
  }

  void Row(const EngineBenchReport& report, const BenchRow& row) {
    if (!head_written_) WriteHead(report);
    head_written_ = true;
    std::fprintf(out_, "%-18s %7d ", row.test.Name().c_str(), row.threads);
    if (!row.skipped.empty()) {
      std::fprintf(out_, "  skipped: %s\n", row.skipped.c_str());
    } else {
      std::fprintf(out_, "%10.2f %8.2f %9.3f %9.1f %7s %8.1f %8s\n",
                   row.tokens_per_second, row.spread, row.step_ms, row.gflops,
                   Percent(row.compute_share).c_str(), row.gbs,
                   Percent(row.memory_share).c_str());
    }
    std::fflush(out_);
  }

 private:
  void WriteHead(const EngineBenchReport& report) {
    std::fprintf(out_, "%s: %s, %.1f M parameters, weights %s, KV %s, %s\n",
                 report.model.c_str(), report.architecture.c_str(),
                 report.parameters / 1e6, report.weights.c_str(),
                 report.kv_dtype.c_str(), report.backend.c_str());
    for (size_t i = 0; i < report.ceilings.size(); ++i) {
      const int32_t threads = flags_.options.threads[i];
      std::fprintf(
          out_,
          "machine, %d thread%s: %.0f bf16 GFLOP/s, %.0f int8 GOP/s, reads "
          "%.1f GB/s\n",
          threads, threads == 1 ? "" : "s", report.ceilings[i].bf16_gflops,
          report.ceilings[i].int8_gops, report.ceilings[i].memory_gbs);
    }
    std::fprintf(out_, "\n%-18s %7s %10s %8s %9s %9s %7s %8s %8s\n", "test",
                 "threads", "tokens/s", "+-", "ms/step", "GFLOP/s", "of peak",
                 "GB/s", "of reads");
  }

  const BenchEngineFlags& flags_;
  std::FILE* const out_;
  bool head_written_ = false;
};

absl::Status Bench(const BenchEngineFlags& flags) {
  model_tools::EngineBenchOptions options = flags.options;
  options.ceilings = !flags.no_ceilings;
  // JSON on standard output leaves no room for a table there.
  const bool json_to_stdout = flags.json == "-";
  Table table(flags, json_to_stdout ? stderr : stdout);
  BATON_ASSIGN_OR_RETURN(
      const EngineBenchReport report,
      model_tools::RunEngineBench(
          options, {[&](const std::string& what) { table.Note(what); },
                    [&](const EngineBenchReport& head, const BenchRow& row) {
                      table.Row(head, row);
                    }}));
  const std::string json = absl::StrCat(
      model_tools::EngineBenchJson(report, options.threads).dump(1), "\n");
  if (json_to_stdout) {
    std::fputs(json.c_str(), stdout);
  } else if (!flags.json.empty()) {
    BATON_RETURN_IF_ERROR(WriteTextFile(flags.json, json));
  }
  if (!flags.plot.empty()) {
    BATON_RETURN_IF_ERROR(
        WriteTextFile(flags.plot, model_tools::EngineBenchSvg(report)));
  }
  return absl::OkStatus();
}

int RunBenchEngine(const BenchEngineFlags& flags) {
  const absl::Status status = Bench(flags);
  if (status.ok()) return kExitOk;
  std::fprintf(stderr, "baton bench engine: %s\n",
               std::string(status.message()).c_str());
  return kExitFailed;
}

}  // namespace

void AddBenchEngineCommand(CLI::App* bench, const std::string& program,
                           Command* chosen) {
  auto flags = std::make_shared<BenchEngineFlags>();
  model_tools::EngineBenchOptions* o = &flags->options;
  CLI::App* engine = bench->add_subcommand(
      "engine", "Measure the engine by itself: prompts and decoding");
  engine
      ->add_option("--model", o->model_dir,
                   "Model directory, or GGUF file; see also `baton synth`")
      ->required();
  engine->add_option("--weights", o->weights, "How matrices are held")
      ->check(CLI::IsMember({"auto", "bf16", "int8", "int4", "mxfp4"}))
      ->capture_default_str();
  engine->add_option("--kv-dtype", o->kv_dtype, "How keys and values are held")
      ->check(CLI::IsMember({"bf16", "int8"}))
      ->capture_default_str();
  engine
      ->add_option("--adapter", o->adapters,
                   "Directory of a LoRA adapter, may be given several times: "
                   "sequences have them in turns")
      ->allow_extra_args(false);
  const auto list = [&](const char* name, std::vector<int32_t>* values,
                        const char* text, int min) {
    engine->add_option(name, *values, text)
        ->delimiter(',')
        ->expected(1, 64)
        ->check(CLI::Range(min, 1 << 24))
        ->capture_default_str();
  };
  list("-t,--threads", &o->threads, "Engine threads; one table of tests each",
       1);
  list("--pp", &o->prompts, "Lengths of prompts; 0 for none", 0);
  list("--tg", &o->steps, "Steps of decoding; 0 for none", 0);
  list("--batch", &o->batches, "Sequences that decode at a time", 1);
  list("--context", &o->contexts, "Tokens that are there before decoding", 0);
  engine->add_option("--reps", o->repetitions, "Repetitions of each test")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  engine->add_option("--chunk", o->chunk, "Most tokens of a prompt in one step")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  engine
      ->add_option("--kv-memory", o->max_kv_bytes,
                   "Most KV memory, such as 2GiB; tests that need more are "
                   "skipped")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->default_str("4GiB");
  engine->add_option("--block-size", o->block_size, "Tokens per KV block")
      ->check(CLI::IsMember({16, 32, 64, 128}))
      ->capture_default_str();
  engine->add_option("--isa", o->cpu_isa,
                     "Instruction set: portable, avx2 or avx512bf16; the best "
                     "one when not given");
  engine->add_flag("--no-ceilings", flags->no_ceilings,
                   "Do not measure what the machine can do");
  engine->add_option("--json", flags->json,
                     "File for the numbers; - for standard output");
  engine->add_option("--plot", flags->plot, "File for an SVG picture");
  engine->add_flag("-q,--quiet", flags->quiet, "Do not say what is being done");
  engine->footer(absl::StrCat(
      "Examples:\n  ", program, " bench engine --model models/stories\n  ",
      program,
      " bench engine --model DIR -t 1,2 --pp 512 --tg 64 --batch 1,4,16 "
      "--context 128\n"));
  engine->callback([flags, chosen] {
    // 0 stands for no test of the kind.
    std::erase(flags->options.prompts, 0);
    std::erase(flags->options.steps, 0);
    *chosen = [flags] { return RunBenchEngine(*flags); };
  });
}

}  // namespace baton::cli
