#include "tests/engine/packed_dir.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/cpu/packed_model.h"
#include "engine/cpu/weight_loading.h"
#include "engine/model_identity.h"

namespace baton::engine {
namespace {

absl::Status WriteFile(const std::string& path, const std::string& content) {
  std::ofstream out(path, std::ios::binary);
  out << content;
  out.close();
  return out ? absl::OkStatus() : absl::InternalError(path);
}

}  // namespace

absl::Status WritePackedDir(const std::string& source, cpu::WeightDtype dtype,
                            const std::string& dir) {
  BATON_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(source));
  cpu::ThreadTeam team(2);
  BATON_ASSIGN_OR_RETURN(
      const cpu::LoadedWeights loaded,
      cpu::PackModel(source, config, dtype, team, [](double) {}));
  std::string bytes;
  const auto append = [&](absl::Span<const std::byte> piece) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return absl::OkStatus();
  };
  BATON_RETURN_IF_ERROR(
      cpu::WritePackedWeights(config, loaded.weights, append));
  BATON_RETURN_IF_ERROR(
      WriteFile(absl::StrCat(dir, "/", cpu::kPackedWeightsFile), bytes));
  cpu::PackedManifest manifest;
  manifest.dtype = dtype;
  manifest.identity = loaded.identity;
  manifest.config = ConfigIdentity(config);
  manifest.source = "test";
  BATON_RETURN_IF_ERROR(
      WriteFile(absl::StrCat(dir, "/", cpu::kPackedManifestFile),
                cpu::PackedManifestText(manifest)));
  for (const char* const file : {"config.json", "generation_config.json"}) {
    std::error_code error;
    std::filesystem::copy_file(
        absl::StrCat(source, "/", file), absl::StrCat(dir, "/", file),
        std::filesystem::copy_options::overwrite_existing, error);
    if (error)
      return absl::InternalError(absl::StrCat(file, ": ", error.message()));
  }
  return absl::OkStatus();
}

}  // namespace baton::engine
