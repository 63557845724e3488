// `baton perplexity`: how well a model predicts a text, and what narrower
// weights cost of that.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cli/command.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "model_tools/perplexity.h"
#include "router/text/tokenizer.h"

namespace baton::cli {
namespace {

using model_tools::Perplexity;

struct PerplexityFlags {
  engine::EngineOptions engine;
  std::string file;
  std::string tokenizer;
  std::vector<std::string> compare;
  int32_t window = 512;
  int32_t stride = 0;
  bool json = false;
  bool quiet = false;
};

struct Measured {
  std::string weights;
  std::string backend;
  Perplexity perplexity;
};

absl::StatusOr<std::vector<TokenId>> ReadTokens(const PerplexityFlags& flags) {
  std::ifstream in(flags.file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) {
    return absl::NotFoundError(absl::StrCat("cannot read ", flags.file));
  }
  BATON_ASSIGN_OR_RETURN(
      const auto tokenizer,
      router::Tokenizer::Load(flags.tokenizer.empty() ? flags.engine.model_dir
                                                      : flags.tokenizer));
  return tokenizer->Encode(text);
}

absl::StatusOr<Measured> Measure(const PerplexityFlags& flags,
                                 const std::string& weights,
                                 const std::vector<TokenId>& tokens) {
  engine::EngineOptions engine_options = flags.engine;
  engine_options.weights = weights;
  model_tools::PerplexityOptions options;
  options.window = flags.window;
  options.stride = flags.stride > 0 ? flags.stride : flags.window / 2;
  BATON_ASSIGN_OR_RETURN(const auto engine, model_tools::CreateScoringEngine(
                                                engine_options, &options));
  Measured measured;
  measured.weights = weights;
  measured.backend = engine->backend_name();
  const auto progress = [&](const Perplexity& so_far) {
    if (flags.quiet) return;
    std::fprintf(stderr, "%s: %lld of %zu tokens, perplexity %.4f so far\n",
                 weights.c_str(), static_cast<long long>(so_far.scored),
                 tokens.size() - 1, so_far.value);
  };
  BATON_ASSIGN_OR_RETURN(
      measured.perplexity,
      model_tools::MeasurePerplexity(engine.get(), tokens, options, progress));
  return measured;
}

double TokensPerSecond(const Perplexity& perplexity) {
  return perplexity.run / std::max(perplexity.seconds, 1e-9);
}

void PrintTable(const std::vector<Measured>& all) {
  std::printf("%-8s %12s %8s %12s %10s  %s\n", "weights", "perplexity", "+-",
              "to first", "tokens/s", "backend");
  for (const Measured& measured : all) {
    const Perplexity& p = measured.perplexity;
    const double change = p.value / all.front().perplexity.value - 1;
    std::printf("%-8s %12.4f %8.4f %+11.3f%% %10.1f  %s\n",
                measured.weights.c_str(), p.value, p.error, 100 * change,
                TokensPerSecond(p), measured.backend.c_str());
  }
}

void PrintJson(const PerplexityFlags& flags, const std::vector<Measured>& all) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Measured& measured : all) {
    const Perplexity& p = measured.perplexity;
    rows.push_back({{"weights", measured.weights},
                    {"backend", measured.backend},
                    {"perplexity", p.value},
                    {"perplexity_error", p.error},
                    {"mean_negative_logprob", p.mean},
                    {"mean_error", p.mean_error},
                    {"tokens_scored", p.scored},
                    {"tokens_run", p.run},
                    {"seconds", p.seconds},
                    {"tokens_per_second", TokensPerSecond(p)}});
  }
  const nlohmann::ordered_json json = {{"kind", "baton perplexity"},
                                       {"version", 1},
                                       {"model", flags.engine.model_dir},
                                       {"file", flags.file},
                                       {"rows", rows}};
  std::printf("%s\n",
              json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace)
                  .c_str());
}

absl::StatusOr<std::vector<Measured>> MeasureAll(const PerplexityFlags& flags) {
  BATON_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, ReadTokens(flags));
  std::vector<std::string> kinds = flags.compare;
  if (kinds.empty()) kinds.push_back(flags.engine.weights);
  std::vector<Measured> all;
  for (const std::string& weights : kinds) {
    BATON_ASSIGN_OR_RETURN(Measured measured, Measure(flags, weights, tokens));
    all.push_back(std::move(measured));
  }
  return all;
}

int RunPerplexity(const PerplexityFlags& flags) {
  const auto all = MeasureAll(flags);
  if (!all.ok()) {
    std::fprintf(stderr, "baton perplexity: %s\n",
                 std::string(all.status().message()).c_str());
    return kExitFailed;
  }
  if (flags.json) {
    PrintJson(flags, *all);
  } else if (!flags.compare.empty()) {
    PrintTable(*all);
  } else {
    const Measured& measured = all->front();
    const Perplexity& p = measured.perplexity;
    std::printf(
        "perplexity %.4f +- %.4f over %lld tokens (%s, %.1f tokens/s)\n",
        p.value, p.error, static_cast<long long>(p.scored),
        measured.backend.c_str(), TokensPerSecond(p));
  }
  return kExitOk;
}

}  // namespace

void AddPerplexityCommand(CLI::App* app, const std::string& program,
                          Command* chosen) {
  auto flags = std::make_shared<PerplexityFlags>();
  CLI::App* command = app->add_subcommand(
      "perplexity", "Measure how well a model predicts a text");
  command
      ->add_option("MODEL", flags->engine.model_dir,
                   "Model directory, or GGUF file")
      ->required();
  command->add_option("FILE", flags->file, "The text")->required();
  command
      ->add_option("--device", flags->engine.backend,
                   "What computes: cpu, or cuda where the build has it")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  const CLI::IsMember kinds({"auto", "bf16", "fp8", "int8", "int4", "mxfp4"});
  CLI::Option* weights =
      command
          ->add_option("--weights", flags->engine.weights,
                       "How matrices are held; fp8: cuda alone, mxfp4: cpu "
                       "alone")
          ->check(kinds)
          ->capture_default_str();
  command
      ->add_option("--compare", flags->compare,
                   "Several of them, and the difference to the first")
      ->delimiter(',')
      ->expected(1, 4)
      ->check(kinds)
      ->excludes(weights);
  command->add_option_function<std::string>(
      "--adapter",
      [flags](const std::string& dir) {
        flags->engine.adapters = {{"adapter", dir}};
      },
      "Directory of a LoRA adapter to score the text with");
  command
      ->add_option("--kv-dtype", flags->engine.kv_dtype,
                   "How keys and values are held; fp8: cuda alone")
      ->check(CLI::IsMember({"bf16", "int8", "fp8"}))
      ->capture_default_str();
  command
      ->add_option("--context", flags->window,
                   "Tokens of a window; at most what the model can have")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  command
      ->add_option("--stride", flags->stride,
                   "From one window to the next; default half a window")
      ->check(CLI::Range(1, 1 << 24));
  command
      ->add_option("-t,--threads", flags->engine.num_threads,
                   "Engine threads; default all CPUs")
      ->check(CLI::Range(0, 1024));
  command->add_option("--isa", flags->engine.cpu_isa,
                      "Instruction set: portable, avx2 or avx512bf16");
  command->add_option("--tokenizer", flags->tokenizer,
                      "Directory with tokenizer.json; default MODEL");
  command->add_flag("--json", flags->json, "As JSON");
  command->add_flag("-q,--quiet", flags->quiet, "No progress");
  command->footer(absl::StrCat("Example:\n  ", program,
                               " perplexity models/stories "
                               "tests/data/stories.txt --compare "
                               "bf16,int8,int4\n"));
  command->callback(
      [flags, chosen] { *chosen = [flags] { return RunPerplexity(*flags); }; });
}

}  // namespace baton::cli
