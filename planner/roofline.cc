#include "planner/roofline.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::planner {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;

// Data sheets of the makers: dense bf16 tensor operations, memory; a network
// card of 400 Gb/s for each GPU of the large servers, 100 Gb/s for the others.
constexpr Gpu kGpus[] = {
    {"A10G", 70 * kTera, 600 * kGiga, 24 * kGiga, 12.5 * kGiga},
    {"A100", 312 * kTera, 2039 * kGiga, 80 * kGiga, 25 * kGiga},
    {"B200", 2250 * kTera, 8000 * kGiga, 180 * kGiga, 50 * kGiga},
    {"H100", 989 * kTera, 3350 * kGiga, 80 * kGiga, 50 * kGiga},
    {"H200", 989 * kTera, 4800 * kGiga, 141 * kGiga, 50 * kGiga},
    {"L4", 121 * kTera, 300 * kGiga, 24 * kGiga, 12.5 * kGiga},
    {"L40S", 362 * kTera, 864 * kGiga, 48 * kGiga, 12.5 * kGiga},
};

// What GPUs of one worker lose by waiting for each other.
constexpr double kParallelEfficiency = 0.9;
// Of a GPU's memory for weights and KV; the rest is the engine's.
constexpr double kMemoryShare = 0.88;
// Between two steps, and for the draw of a token.
constexpr double kStepOverhead = 5e-4;
constexpr double kSampleSeconds = 2e-6;
constexpr int32_t kBlockSize = 16;
// What engines commonly take.
constexpr int32_t kPrefillBudget = 8192;
constexpr int32_t kDecodeBudget = 1024;
constexpr int32_t kMaxSequences = 256;
constexpr double kLinkLatency = 2e-5;

}  // namespace

absl::Span<const Gpu> KnownGpus() { return kGpus; }

absl::StatusOr<Gpu> FindGpu(absl::string_view name) {
  std::string names;
  for (const Gpu& gpu : kGpus) {
    if (absl::EqualsIgnoreCase(gpu.name, name)) return gpu;
    absl::StrAppend(&names, names.empty() ? "" : ", ", gpu.name);
  }
  return absl::NotFoundError(
      absl::StrCat("there is no GPU \"", name, "\": ", names));
}

absl::StatusOr<ClusterProfile> RooflineProfile(const Gpu& gpu,
                                               const ModelGeometry& model,
                                               const RooflineOptions& options) {
  CHECK_GE(options.gpus_per_worker, 1);
  const double gpus = options.gpus_per_worker;
  const double parallel = gpus > 1 ? kParallelEfficiency : 1;
  const double flops = gpu.flops * gpus * parallel * options.compute_efficiency;
  const double bandwidth =
      gpu.bytes_per_second * gpus * parallel * options.memory_efficiency;
  const double kv_memory =
      gpu.memory_bytes * gpus * kMemoryShare - model.weight_bytes;
  // Of all GPUs together.
  const double kv_per_token = static_cast<double>(model.kv_bytes_per_token) *
                              (model.kv_on_each_gpu ? gpus : 1);
  const double blocks = kv_memory / (kv_per_token * kBlockSize);
  if (blocks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(model.name, " does not fit: its weights take ",
                     static_cast<int64_t>(model.weight_bytes / kGiga), " GB, ",
                     options.gpus_per_worker, " x ", gpu.name, " have ",
                     static_cast<int64_t>(gpu.memory_bytes * gpus / kGiga),
                     "; more --gpus-per-worker"));
  }
  WorkerProfile worker;
  scheduling::StepCost& step = worker.cost;
  step.fixed = model.weight_bytes / bandwidth + kStepOverhead;
  step.per_token = 2 * model.layer_parameters / flops;
  step.per_context_token = kv_per_token / bandwidth;
  step.per_sequence = 2 * model.head_parameters / flops + kSampleSeconds;
  step.per_prompt_context_token = 4.0 * model.q_size * model.num_layers / flops;
  worker.block_size = kBlockSize;
  worker.total_blocks = static_cast<int32_t>(std::min(blocks, 1e9));
  worker.max_sequences = kMaxSequences;
  worker.max_context = model.max_context;

  ClusterProfile profile;
  profile.source = absl::StrCat(
      model.name, " on ", options.gpus_per_worker, " x ", gpu.name,
      " by roofline (", options.compute_efficiency, " of its operations, ",
      options.memory_efficiency, " of its bandwidth)");
  profile.prefill = profile.decode = worker;
  profile.prefill.token_budget = kPrefillBudget;
  profile.decode.token_budget = kDecodeBudget;
  if (model.decode_bytes > 0) {
    profile.decode.cost.fixed = model.decode_bytes / bandwidth + kStepOverhead;
    absl::StrAppend(&profile.source, ", a decode step reads ",
                    static_cast<int64_t>(model.decode_bytes / kGiga), " of ",
                    static_cast<int64_t>(model.weight_bytes / kGiga),
                    " GB of weights");
  }
  profile.kv_bytes_per_token = model.kv_bytes_per_token;
  profile.num_layers = model.num_layers;
  profile.link_bytes_per_second = gpu.link_bytes_per_second * gpus;
  profile.link_latency_seconds = kLinkLatency;
  return profile;
}

}  // namespace baton::planner
