// `baton quantize`: a model as a directory that workers map at once.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/command.h"
#include "cli/generate_summary.h"
#include "common/clock.h"
#include "common/gguf/gguf_file.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "model_tools/quantize.h"
#include "router/text/gguf_tokenizer.h"

namespace baton::cli {
namespace {

using model_tools::ExtraFile;

struct QuantizeFlags {
  std::string model;
  std::string dir;
  std::string to;
  int32_t threads = 0;
  bool replace = false;
  bool quiet = false;
};

// A line on a terminal that is written over; elsewhere, one per quarter.
class StepLine final {
 public:
  explicit StepLine(bool quiet)
      : quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1) {}

  void Show(const char* step, double share) {
    if (quiet_) return;
    const int parts = terminal_ ? 100 : 4;
    const int done = static_cast<int>(share * parts);
    if (step == last_step_ && done == last_done_) return;
    last_step_ = step;
    last_done_ = done;
    std::fprintf(stderr, "%s%s %3d%%%s", terminal_ ? "\r" : "", step,
                 done * 100 / parts, terminal_ && done < parts ? "  " : "\n");
    std::fflush(stderr);
  }

 private:
  const bool quiet_;
  const bool terminal_;
  absl::string_view last_step_;
  int last_done_ = -1;
};

// The token that `key` of the file names is the `field` of the config.
absl::Status AddNamedToken(const gguf::GgufFile& file, absl::string_view key,
                           const char* field, nlohmann::json* config) {
  if (!file.Has(key)) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const auto tokens,
                         file.Strings("tokenizer.ggml.tokens"));
  BATON_ASSIGN_OR_RETURN(
      const int64_t id,
      file.Integer(key, 0, static_cast<int64_t>(tokens.size()) - 1));
  if (!tokens[id].empty()) (*config)[field] = std::string(tokens[id]);
  return absl::OkStatus();
}

// The tokenizer of a GGUF file as the files of a directory; none when the file
// has no tokenizer.
absl::StatusOr<std::vector<ExtraFile>> TokenizerFiles(
    const std::string& model) {
  std::vector<ExtraFile> files;
  if (!gguf::IsGgufFile(model)) return files;
  BATON_ASSIGN_OR_RETURN(const auto file, gguf::GgufFile::Open(model));
  if (!file->Has("tokenizer.ggml.model")) return files;
  BATON_ASSIGN_OR_RETURN(const nlohmann::json tokenizer,
                         router::GgufTokenizerJson(*file));
  nlohmann::json config = nlohmann::json::object();
  BATON_RETURN_IF_ERROR(AddNamedToken(*file, "tokenizer.ggml.bos_token_id",
                                      "bos_token", &config));
  BATON_RETURN_IF_ERROR(AddNamedToken(*file, "tokenizer.ggml.eos_token_id",
                                      "eos_token", &config));
  constexpr absl::string_view kTemplate = "tokenizer.chat_template";
  if (file->Has(kTemplate)) {
    BATON_ASSIGN_OR_RETURN(const absl::string_view text,
                           file->String(kTemplate));
    config["chat_template"] = std::string(text);
  }
  // A template need not be UTF-8.
  const auto dump = [](const nlohmann::json& json) {
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  files.push_back({"tokenizer.json", dump(tokenizer)});
  files.push_back({"tokenizer_config.json", dump(config)});
  return files;
}

absl::StatusOr<model_tools::QuantizeResult> Run(const QuantizeFlags& flags) {
  model_tools::QuantizeOptions options;
  options.model = flags.model;
  options.to = flags.to;
  options.num_threads = flags.threads;
  options.replace = flags.replace;
  BATON_ASSIGN_OR_RETURN(options.files, TokenizerFiles(flags.model));
  StepLine line(flags.quiet);
  return model_tools::Quantize(
      flags.dir, options,
      [&](const char* step, double share) { line.Show(step, share); });
}

int RunQuantize(const QuantizeFlags& flags) {
  const absl::Time start = Clock::Monotonic()->Now();
  const auto result = Run(flags);
  if (!result.ok()) {
    std::fprintf(stderr, "baton quantize: %s\n",
                 std::string(result.status().message()).c_str());
    return kExitFailed;
  }
  std::printf("%s: %s, %.1f M parameters, %s, %.1f s\n", flags.dir.c_str(),
              flags.to.c_str(), result->parameters / 1e6,
              FormatBytes(static_cast<uint64_t>(result->bytes)).c_str(),
              absl::ToDoubleSeconds(Clock::Monotonic()->Now() - start));
  if (!result->has_tokenizer) {
    std::fprintf(stderr,
                 "note: the model has no tokenizer.json; without one, workers "
                 "load it and a router does not\n");
  }
  return kExitOk;
}

}  // namespace

void AddQuantizeCommand(CLI::App* app, const std::string& program,
                        Command* chosen) {
  auto flags = std::make_shared<QuantizeFlags>();
  CLI::App* quantize = app->add_subcommand(
      "quantize",
      "Write a model as workers hold it, for starts that need no packing");
  quantize
      ->add_option("MODEL", flags->model,
                   "Hugging Face model folder (GPTQ and AWQ too) or GGUF file")
      ->required();
  quantize->add_option("DIR", flags->dir, "The directory to make")->required();
  quantize
      ->add_option("--to", flags->to,
                   "bf16, int8, int4, or mxfp4: experts that MODEL has so as "
                   "they are, all else in bf16")
      ->required()
      ->check(CLI::IsMember({"bf16", "int8", "int4", "mxfp4"}));
  quantize
      ->add_option("-t,--threads", flags->threads,
                   "Threads that pack; default all CPUs")
      ->check(CLI::Range(0, 1024));
  quantize->add_flag("--replace", flags->replace,
                     "Replace a directory that `baton quantize` made before");
  quantize->add_flag("-q,--quiet", flags->quiet, "No progress");
  quantize->footer(absl::StrCat(
      "Example:\n  ", program,
      " quantize ~/models/SmolLM2-135M --to int4 /tmp/135m-int4\n  ", program,
      " up --model /tmp/135m-int4 --kv-dtype int8\n"));
  quantize->callback(
      [flags, chosen] { *chosen = [flags] { return RunQuantize(*flags); }; });
}

}  // namespace baton::cli
