#include "engine/engine_factory.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/cpu/cpu_engine.h"
#include "engine/cuda/backend.h"

namespace baton::engine {
namespace {

constexpr int32_t kMaxThreads = 1024;
constexpr int32_t kMaxRanks = 64;

absl::Status ValidateAdapters(const EngineOptions& options) {
  if (options.adapters.size() > kMaxAdapters) {
    return absl::InvalidArgumentError(
        absl::StrCat("adapters: ", options.adapters.size(),
                     " are more than the ", kMaxAdapters, " there may be"));
  }
  if (options.adapter_rank < 1 || options.adapter_rank > kMaxLoraRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("adapter_rank: ", options.adapter_rank, " is not in [1, ",
                     kMaxLoraRank, "]"));
  }
  for (size_t i = 0; i < options.adapters.size(); ++i) {
    const std::string& name = options.adapters[i].name;
    if (name.empty()) {
      return absl::InvalidArgumentError("adapters: one has no name");
    }
    for (size_t j = 0; j < i; ++j) {
      if (options.adapters[j].name != name) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("adapters: two are called \"", name, "\""));
    }
  }
  return absl::OkStatus();
}

absl::Status Validate(const EngineOptions& options) {
  if (options.model_dir.empty()) {
    return absl::InvalidArgumentError("model_dir: is empty");
  }
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_threads: ", options.num_threads, " is not in [0, ",
                     kMaxThreads, "]"));
  }
  if (options.tensor_parallel < 1 || options.tensor_parallel > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor_parallel: ", options.tensor_parallel,
                     " is not in [1, ", kMaxRanks, "]"));
  }
  if (!options.draft_weights.empty() && options.backend != "cpu") {
    return absl::UnimplementedError(
        absl::StrCat("draft_weights: the ", options.backend,
                     " backend holds its weights once"));
  }
  if (options.kv_memory_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kv_memory_bytes: ", options.kv_memory_bytes, " is negative"));
  }
  if (options.kv_staging_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kv_staging_bytes: ", options.kv_staging_bytes, " is negative"));
  }
  // Also refuses NaN.
  if (!(options.kv_memory_share >= 0 && options.kv_memory_share <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kv_memory_share: ", options.kv_memory_share, " is not in [0, 1]"));
  }
  if (options.weights != "auto" && options.weights != "bf16" &&
      options.weights != "fp8" && options.weights != "int8" &&
      options.weights != "int4" && options.weights != "mxfp4") {
    return absl::InvalidArgumentError(
        absl::StrCat("weights: \"", options.weights,
                     "\" is not auto, bf16, fp8, int8, int4 or mxfp4"));
  }
  if (!ParseKvDtype(options.kv_dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kv_dtype: \"", options.kv_dtype, "\" is not bf16, int8 or fp8"));
  }
  for (const int32_t size : {16, 32, 64, 128}) {
    if (options.block_size == size) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "block_size: ", options.block_size, " is not 16, 32, 64 or 128"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(
    const EngineOptions& options) {
  if (absl::Status status = Validate(options); !status.ok()) return status;
  if (absl::Status status = ValidateAdapters(options); !status.ok()) {
    return status;
  }
  if (options.backend == "cpu") return cpu::CpuEngine::Create(options);
  if (options.backend == "cuda") return cuda::CreateCudaEngine(options);
  return absl::InvalidArgumentError(absl::StrCat(
      "backend: \"", options.backend, "\" is unknown; there are: cpu, cuda"));
}

}  // namespace baton::engine
