#include "model_tools/quantize.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/gguf/gguf_file.h"
#include "common/json.h"
#include "common/model_name.h"
#include "common/output_file.h"
#include "common/status_macros.h"
#include "engine/cpu/packed_model.h"
#include "engine/cpu/thread_team.h"
#include "engine/cpu/weight_loading.h"
#include "engine/model_config.h"
#include "engine/model_identity.h"
#include "model_tools/model_tensors.h"
#include "model_tools/output_directory.h"
#include "model_tools/synth_config.h"

namespace baton::model_tools {
namespace {

namespace fs = std::filesystem;
using engine::ModelConfig;
using engine::cpu::PackedManifest;
using engine::cpu::WeightDtype;

// What a directory may hold beside its weights, and what a router or another
// program may want.
constexpr const char* kCopiedFiles[] = {
    "config.json",         "generation_config.json",
    "tokenizer.json",      "tokenizer_config.json",
    "chat_template.jinja", "special_tokens_map.json",
    "added_tokens.json",   "tokenizer.model",
    "vocab.json",          "merges.txt",
    "tiktoken.model"};

// Room for what is not weights, when we ask whether the disk has enough.
constexpr int64_t kOtherFilesBytes = int64_t{64} << 20;

constexpr size_t kWriteBytes = size_t{8} << 20;

absl::Status CopyFiles(const std::string& model,
                       const OutputDirectory& output) {
  for (const char* name : kCopiedFiles) {
    const std::string from = absl::StrCat(model, "/", name);
    std::error_code error;
    if (!fs::exists(from, error)) continue;
    fs::copy_file(from, output.File(name), error);
    if (error) {
      return FileError(error.value(), absl::StrCat("cannot copy ", from, " to"),
                       output.File(name));
    }
  }
  return absl::OkStatus();
}

// The files that a directory has where a GGUF file has metadata.
absl::Status WriteConfig(const std::string& model, const ModelConfig& config,
                         const OutputDirectory& output) {
  const auto write = [&](const char* name, const nlohmann::ordered_json& json) {
    return WriteTextFile(output.File(name), absl::StrCat(json.dump(1), "\n"));
  };
  BATON_RETURN_IF_ERROR(
      write("config.json", ConfigJson(config, engine::DType::kBf16)));
  BATON_RETURN_IF_ERROR(
      write("generation_config.json", GenerationConfigJson(config)));
  BATON_ASSIGN_OR_RETURN(const ModelConfig read,
                         engine::LoadModelConfig(output.path()));
  if (engine::ConfigIdentity(read) == engine::ConfigIdentity(config) &&
      read.bos_token_id == config.bos_token_id &&
      read.eos_token_ids == config.eos_token_ids) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      model,
      ": has biases where no config.json can say it; serve the GGUF "
      "file itself, with --weights"));
}

absl::Status WriteWeights(const std::string& path, const ModelConfig& config,
                          const engine::cpu::CpuWeights& weights,
                          QuantizeProgress progress) {
  const double total = static_cast<double>(
      engine::cpu::PackedWeightsBytes(config, weights.dtype));
  int64_t done = 0;
  BATON_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  BATON_RETURN_IF_ERROR(engine::cpu::WritePackedWeights(
      config, weights, [&](absl::Span<const std::byte> bytes) {
        for (size_t at = 0; at < bytes.size(); at += kWriteBytes) {
          const auto piece = bytes.subspan(at, kWriteBytes);
          BATON_RETURN_IF_ERROR(file.Write(piece));
          done += static_cast<int64_t>(piece.size());
          progress("writing", std::min(1.0, done / total));
        }
        return absl::OkStatus();
      }));
  BATON_RETURN_IF_ERROR(file.SyncAndDrop());
  return file.Close();
}

}  // namespace

absl::StatusOr<QuantizeResult> Quantize(const std::string& dir,
                                        const QuantizeOptions& options,
                                        QuantizeProgress progress) {
  const std::optional<WeightDtype> dtype =
      engine::cpu::ParseWeightDtype(options.to);
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", options.to, "\" is not bf16, int8, int4 or mxfp4"));
  }
  BATON_ASSIGN_OR_RETURN(const ModelConfig config,
                         engine::LoadModelConfig(options.model));
  BATON_ASSIGN_OR_RETURN(
      OutputDirectory output,
      OutputDirectory::Begin(dir, engine::cpu::kPackedManifestFile,
                             options.replace));
  // Before what takes long.
  BATON_RETURN_IF_ERROR(output.CheckSpace(
      engine::cpu::PackedWeightsBytes(config, *dtype) + kOtherFilesBytes));
  if (gguf::IsGgufFile(options.model)) {
    BATON_RETURN_IF_ERROR(WriteConfig(options.model, config, output));
  } else {
    BATON_RETURN_IF_ERROR(CopyFiles(options.model, output));
  }
  for (const ExtraFile& file : options.files) {
    BATON_RETURN_IF_ERROR(WriteTextFile(output.File(file.name), file.text));
  }

  engine::cpu::ThreadTeam team(options.num_threads);
  BATON_ASSIGN_OR_RETURN(engine::cpu::LoadedWeights loaded,
                         engine::cpu::PackModel(options.model, config, *dtype,
                                                team, [&](double share) {
                                                  progress("packing", share);
                                                }));
  BATON_RETURN_IF_ERROR(
      WriteWeights(output.File(engine::cpu::kPackedWeightsFile), config,
                   loaded.weights, progress));
  PackedManifest manifest;
  manifest.dtype = *dtype;
  manifest.identity = std::move(loaded.identity);
  manifest.config = engine::ConfigIdentity(config);
  manifest.source = ModelName(options.model);
  BATON_RETURN_IF_ERROR(
      WriteTextFile(output.File(engine::cpu::kPackedManifestFile),
                    engine::cpu::PackedManifestText(manifest)));

  QuantizeResult result;
  result.parameters = CountParameters(config);
  std::error_code ignored;
  result.has_tokenizer = fs::exists(output.File("tokenizer.json"), ignored) ||
                         fs::exists(output.File("tiktoken.model"), ignored);
  for (const auto& entry : fs::directory_iterator(output.path(), ignored)) {
    result.bytes += static_cast<int64_t>(entry.file_size(ignored));
  }
  BATON_RETURN_IF_ERROR(output.Commit());
  return result;
}

}  // namespace baton::model_tools
