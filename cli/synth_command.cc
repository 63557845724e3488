// `baton synth`: a model of random weights with the geometry of a real one.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/command.h"
#include "cli/generate_summary.h"
#include "common/status_macros.h"
#include "model_tools/model_shapes.h"
#include "model_tools/synth_model.h"

namespace baton::cli {
namespace {

struct SynthFlags {
  std::string shape;
  std::string dir;
  std::string dtype = "bf16";
  bool mxfp4 = false;
  uint64_t seed = 1;
  int32_t threads = 0;
  bool replace = false;
  bool quiet = false;
  bool tie = false;
  bool no_tie = false;
  model_tools::ShapeChanges changes;
};

constexpr int64_t kWorthALine = int64_t{16} << 20;

// A line on a terminal that is written over; elsewhere, one per tenth.
class ProgressLine final {
 public:
  explicit ProgressLine(bool quiet)
      : quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1) {}

  void Show(int64_t done, int64_t total) {
    if (quiet_ || total < kWorthALine) return;
    const int64_t step = terminal_ ? done * 100 / total : done * 10 / total;
    if (step == last_step_) return;
    last_step_ = step;
    const double rate =
        done / std::max(1e-9, absl::ToDoubleSeconds(absl::Now() - start_));
    std::fprintf(
        stderr, "%s%s of %s, %3.0f%%, %.2f GB/s%s", terminal_ ? "\r" : "",
        FormatBytes(static_cast<uint64_t>(done)).c_str(),
        FormatBytes(static_cast<uint64_t>(total)).c_str(), 100.0 * done / total,
        rate / 1e9, terminal_ && done < total ? "  " : "\n");
    std::fflush(stderr);
  }

 private:
  const bool quiet_;
  const bool terminal_;
  const absl::Time start_ = absl::Now();
  int64_t last_step_ = -1;
};

absl::StatusOr<model_tools::SynthOptions> MakeOptions(const SynthFlags& flags) {
  BATON_ASSIGN_OR_RETURN(const model_tools::ModelShape shape,
                         model_tools::FindModelShape(flags.shape));
  model_tools::ShapeChanges changes = flags.changes;
  if (flags.tie || flags.no_tie) changes.tie_word_embeddings = flags.tie;
  model_tools::SynthOptions options;
  options.shape = shape.name;
  BATON_ASSIGN_OR_RETURN(options.config,
                         model_tools::ChangeShape(shape.config, changes));
  options.seed = flags.seed;
  options.num_threads = flags.threads;
  options.replace = flags.replace;
  options.mxfp4 = flags.mxfp4;
  if (flags.dtype == "f16") options.dtype = engine::DType::kF16;
  if (flags.dtype == "f32") options.dtype = engine::DType::kF32;
  return options;
}

int RunSynth(const SynthFlags& flags) {
  const auto options = MakeOptions(flags);
  if (!options.ok()) {
    std::fprintf(stderr, "baton synth: %s\n",
                 std::string(options.status().message()).c_str());
    return kExitBadFlags;
  }
  ProgressLine line(flags.quiet);
  const auto result = model_tools::WriteSynthModel(
      flags.dir, *options,
      [&](int64_t done, int64_t total) { line.Show(done, total); });
  if (!result.ok()) {
    std::fprintf(stderr, "baton synth: %s\n",
                 std::string(result.status().message()).c_str());
    return kExitFailed;
  }
  std::printf("%s: %s%s, %.1f M parameters, %s in %d file%s, seed %llu%s\n",
              flags.dir.c_str(), options->shape.c_str(),
              flags.changes.empty() ? "" : " (changed)",
              result->parameters / 1e6,
              FormatBytes(static_cast<uint64_t>(result->bytes)).c_str(),
              result->files, result->files == 1 ? "" : "s",
              static_cast<unsigned long long>(options->seed),
              result->existed ? "; was there already" : "");
  return kExitOk;
}

std::string ShapeNames() {
  std::string names;
  for (const model_tools::ModelShape& shape : model_tools::ModelShapes()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", shape.name);
  }
  return names;
}

}  // namespace

void AddSynthCommand(CLI::App* app, const std::string& program,
                     Command* chosen) {
  auto flags = std::make_shared<SynthFlags>();
  CLI::App* synth = app->add_subcommand(
      "synth", "Write a model of random weights, for benchmarks and tests");
  synth
      ->add_option("SHAPE", flags->shape,
                   absl::StrCat("Whose geometry: ", ShapeNames()))
      ->required();
  synth->add_option("DIR", flags->dir, "The directory to make")->required();
  synth->add_option("--seed", flags->seed, "Picks the weights; default 1");
  synth->add_option("--dtype", flags->dtype, "bf16 (default), f16 or f32")
      ->check(CLI::IsMember({"bf16", "f16", "f32"}));
  synth->add_flag("--mxfp4", flags->mxfp4,
                  "The experts of gpt-oss in MXFP4, as its files have them");
  synth
      ->add_option("-t,--threads", flags->threads,
                   "Threads that draw; default all CPUs")
      ->check(CLI::Range(0, 1024));
  synth->add_flag("--replace", flags->replace,
                  "Replace a directory that `baton synth` made otherwise");
  synth->add_flag("-q,--quiet", flags->quiet, "No progress");
  model_tools::ShapeChanges* changes = &flags->changes;
  const char* kChanges = "Changes of the shape";
  const auto change = [&](const char* name, std::optional<int32_t>* value,
                          const char* text) {
    synth->add_option(name, *value, text)->group(kChanges);
  };
  change("--layers", &changes->layers, "Layers");
  change("--hidden", &changes->hidden, "Width");
  change("--heads", &changes->heads, "Attention heads");
  change("--kv-heads", &changes->kv_heads, "KV heads");
  change("--head-dim", &changes->head_dim, "Width of a head");
  change("--intermediate", &changes->intermediate,
         "Width of the MLP, or of one expert");
  change("--vocab", &changes->vocab, "Tokens of the vocabulary");
  change("--max-position", &changes->max_position, "Longest context");
  CLI::Option* tie =
      synth->add_flag("--tie", flags->tie, "The output head is the embedding")
          ->group(kChanges);
  synth->add_flag("--no-tie", flags->no_tie, "It is a matrix of its own")
      ->group(kChanges)
      ->excludes(tie);
  synth->footer(
      absl::StrCat("Example:\n  ", program, " synth SmolLM2-135M /tmp/135m\n"));
  synth->callback(
      [flags, chosen] { *chosen = [flags] { return RunSynth(*flags); }; });
}

}  // namespace baton::cli
