#include "engine/cuda/cuda_engine.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "engine/cpu/packed_model.h"
#include "engine/cpu/packed_views.h"
#include "engine/cpu/thread_team.h"
#include "engine/cpu/weight_loading.h"
#include "engine/cuda/device_kernels.h"
#include "engine/cuda/graph_buckets.h"
#include "engine/cuda/load_log.h"
#include "engine/cuda/model_check.h"
#include "engine/cuda/weight_format.h"
#include "engine/model_identity.h"
#include "engine/plan_check.h"
#include "engine/quantize_weights.h"
#include "engine/weights.h"

namespace baton::engine::cuda {
namespace {

absl::Status CheckOptions(const EngineOptions& options) {
  if (options.weights != "auto" && !ParseWeightFormat(options.weights)) {
    return absl::UnimplementedError(
        absl::StrCat("weights: the cuda backend holds bf16, fp8, int8 or int4, "
                     "not ",
                     options.weights));
  }
  if (!ParseKvDtype(options.kv_dtype)) {
    return absl::UnimplementedError(
        absl::StrCat("kv_dtype: the cuda backend holds bf16, int8 or fp8, not ",
                     options.kv_dtype));
  }
  return absl::OkStatus();
}

StagedArena::Kind StagedKind(const EngineOptions& options) {
  if (options.kv_staging_on_device) return StagedArena::Kind::kDevice;
  return options.share_kv_memory ? StagedArena::Kind::kSharedHost
                                 : StagedArena::Kind::kHost;
}

// "cuda-sm90-int4-kv8": what bf16 does not name. The number of devices is not
// part of it, as answers are the same.
std::string BackendName(const DeviceProperties& device,
                        absl::string_view weights, KvDtype kv) {
  std::string name = absl::StrCat("cuda-sm", device.architecture);
  if (weights != WeightFormatName(WeightFormat::kBf16)) {
    absl::StrAppend(&name, "-", weights);
  }
  switch (kv) {
    case KvDtype::kBf16:
      break;
    case KvDtype::kInt8:
      absl::StrAppend(&name, "-kv8");
      break;
    case KvDtype::kFp8:
      absl::StrAppend(&name, "-kvfp8");
      break;
  }
  return name;
}

KvLayout BlockLayout(const ModelConfig& config, const EngineOptions& options) {
  KvLayout layout;
  layout.num_layers = config.num_layers;
  layout.block_size = options.block_size;
  layout.num_kv_heads = config.num_kv_heads;
  layout.head_dim = config.head_dim;
  layout.shared_value_dim = config.latent.rank;
  layout.dtype = ParseKvDtype(options.kv_dtype).value();
  return layout;
}

// Sets the number of blocks. `option` says where the bytes, which are of all
// ranks, come from.
absl::Status FillWithBlocks(int64_t bytes, const char* option, int32_t ranks,
                            KvLayout* layout) {
  const int64_t block_bytes = BlockBytesOfAll(*layout, ranks);
  const int64_t blocks = bytes / block_bytes;
  if (blocks < 1) {
    return absl::ResourceExhaustedError(absl::StrCat(
        option, ": ", bytes, " is too small; one KV block of this model takes ",
        block_bytes, " bytes",
        block_bytes > layout->block_bytes() ? " of all devices" : ""));
  }
  layout->num_blocks = static_cast<int32_t>(
      std::min<int64_t>(blocks, std::numeric_limits<BlockId>::max()));
  return absl::OkStatus();
}

// What the model is on disk, and as what it is to be held.
struct LoadedFiles {
  ModelWeights weights;
  // None: each matrix as the files have it.
  std::optional<WeightFormat> format;
  // Of packed ones: Engine::model_identity, with a format; without, that of the
  // model before it is known how matrices are held.
  std::string identity;
};

absl::StatusOr<LoadedFiles> LoadFiles(const EngineOptions& options,
                                      const ModelConfig& config) {
  LoadedFiles files;
  if (cpu::IsPackedModel(options.model_dir)) {
    BATON_ASSIGN_OR_RETURN(cpu::LoadedWeights packed,
                           cpu::MapModel(options, config));
    // Formats of one name are the same weights. MXFP4 is none of them.
    files.format =
        ParseWeightFormat(cpu::WeightDtypeName(packed.weights.dtype));
    files.identity = std::move(packed.identity);
    files.weights = cpu::ViewPackedWeights(config, std::move(packed.weights));
    return files;
  }
  files.format = ParseWeightFormat(options.weights);
  BATON_ASSIGN_OR_RETURN(files.weights,
                         LoadModelWeights(options.model_dir, config));
  return files;
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaEngine>> CudaEngine::Create(
    const EngineOptions& options) {
  return Create(options, ForwardPassOptions());
}

absl::StatusOr<std::unique_ptr<CudaEngine>> CudaEngine::Create(
    const EngineOptions& options, const ForwardPassOptions& pass_options) {
  BATON_RETURN_IF_ERROR(CheckOptions(options));
  const int32_t ranks = options.tensor_parallel;
  BATON_ASSIGN_OR_RETURN(const DeviceProperties device, OpenDevice(0));
  const DeviceKernels kernels = KernelsOf(device);
  const DeviceKernels wanted = pass_options.kernels.value_or(DeviceKernels{});
  if ((wanted.group && !kernels.group) || (wanted.wide && !kernels.wide) ||
      (wanted.flow && !kernels.flow) ||
      (wanted.group_attention && !kernels.group_attention)) {
    return absl::FailedPreconditionError(
        absl::StrCat("kernels: CUDA device 0 (", device.name,
                     ") does not have all of these, or this build does not"));
  }
  for (int32_t rank = 1; rank < ranks; ++rank) {
    BATON_ASSIGN_OR_RETURN(const DeviceProperties other, OpenDevice(rank));
    if (other.architecture == device.architecture) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("tensor_parallel: CUDA device ", rank, " (", other.name,
                     ") is not of the kind of device 0 (", device.name, ")"));
  }
  for (int32_t rank = 0; options.kv_staging_on_device && rank < ranks; ++rank) {
    BATON_RETURN_IF_ERROR(
        ReachMemoryOf(rank, 0, "staged KV blocks on device 0"));
  }
  BATON_ASSIGN_OR_RETURN(const ModelConfig config,
                         LoadModelConfig(options.model_dir));
  const KvLayout layout = BlockLayout(config, options);
  BATON_RETURN_IF_ERROR(CheckModel(config, layout, ranks, device));
  BATON_ASSIGN_OR_RETURN(LoadedFiles files, LoadFiles(options, config));
  std::unique_ptr<CudaEngine> engine(new CudaEngine(config, layout, ranks));
  if (ranks > 1) {
    BATON_ASSIGN_OR_RETURN(engine->group_, CreateRankGroup(ranks));
  }
  BATON_RETURN_IF_ERROR(
      engine->LoadWeights(options, files.weights, files.format));
  BATON_RETURN_IF_ERROR(engine->LoadAdapters(options));
  const bool packed = !files.identity.empty();
  engine->identity_ =
      packed ? std::move(files.identity) : ModelIdentity(config, files.weights);
  if (!packed || !files.format.has_value()) {
    engine->identity_ =
        QuantizedIdentity(engine->identity_, engine->weights_info_.dtype);
  }
  engine->backend_name_ =
      BackendName(device, engine->weights_info_.dtype, layout.dtype);
  ForwardPassOptions chosen = pass_options;
  chosen.lora_rank = engine->ranks_[0].weights.loras.rank;
  if (!chosen.kernels) {
    UseDevice(0);
    KernelTrials trials = TrialsFor(engine->ranks_[0].weights, layout);
    trials.repeats = chosen.kernel_trials;
    BATON_ASSIGN_OR_RETURN(
        chosen.kernels,
        KernelsThatAgree(kernels, trials, *engine->ranks_[0].stream));
  }
  // What a step takes beyond what is there makes graphs void.
  const bool all_at_start =
      options.kv_staging_on_device || options.decode_rows_at_start > 0;
  if (all_at_start) {
    chosen.first_upload_bytes = kFirstUploadBytesBesidePeers;
    chosen.first_rope_positions = config.max_position;
  }
  for (const Rank& rank : engine->ranks_) {
    rank.stream->SetEarlyKernels(device.clusters);
  }
  BATON_RETURN_IF_ERROR(engine->AllocateKv(options, chosen));
  if (all_at_start) {
    // As many as there may be.
    chosen.first_rope_positions = static_cast<int32_t>(std::min<int64_t>(
        config.max_position,
        int64_t{engine->layout_.num_blocks} * engine->layout_.block_size));
  }
  BATON_RETURN_IF_ERROR(engine->CreatePasses(options, chosen));
  if (options.decode_rows_at_start > 0) {
    BATON_RETURN_IF_ERROR(engine->RecordGraphs(options, chosen));
  }
  return engine;
}

CudaEngine::CudaEngine(const ModelConfig& config, const KvLayout& layout,
                       int32_t ranks)
    : config_(config),
      layout_(layout),
      meeting_(ranks),
      ranks_(ranks),
      gate_(ranks),
      relay_(ranks),
      threads_(ranks, UseDevice) {
  for (int32_t rank = 0; rank < ranks; ++rank) {
    UseDevice(rank);
    ranks_[rank].shard = {rank, ranks};
    ranks_[rank].stream = std::make_unique<Stream>();
  }
}

absl::Status CudaEngine::ForAllRanks(
    absl::FunctionRef<absl::Status(Rank&)> run) {
  std::vector<absl::Status> statuses(ranks_.size());
  threads_.Run([&](int32_t rank) { statuses[rank] = run(ranks_[rank]); });
  for (const absl::Status& status : statuses) BATON_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::Status CudaEngine::LoadWeights(const EngineOptions& options,
                                     const ModelWeights& files,
                                     std::optional<WeightFormat> format) {
  const auto start = std::chrono::steady_clock::now();
  // The ranks share the threads out, and are about as far as each other.
  int32_t threads = options.num_threads;
  if (num_ranks() > 1) {
    threads = std::max(
        1, cpu::ThreadTeam(options.num_threads).num_threads() / num_ranks());
  }
  LoadLog log(options.model_dir);
  BATON_RETURN_IF_ERROR(ForAllRanks([&](Rank& rank) -> absl::Status {
    cpu::ThreadTeam team(threads);
    const auto progress = [&](double share) {
      if (rank.shard.rank == 0) log(share);
    };
    BATON_ASSIGN_OR_RETURN(rank.weights,
                           LoadDeviceWeights(config_, files, format, rank.shard,
                                             team, *rank.stream, progress));
    return absl::OkStatus();
  }));
  weights_info_.dtype = WeightFormatNames(ranks_[0].weights.formats);
  for (const Rank& rank : ranks_) {
    weights_info_.bytes += rank.weights.matrix_bytes;
  }
  weights_info_.load_seconds = SecondsSince(start);
  return absl::OkStatus();
}

int64_t CudaEngine::FreeForKv(const EngineOptions& options,
                              const ForwardPassOptions& pass_options) {
  // All have as much as the one that has the least.
  int64_t free = std::numeric_limits<int64_t>::max();
  for (const Rank& rank : ranks_) {
    UseDevice(rank.shard.rank);
    free =
        std::min(free, FreeDeviceBytes() - ForwardPass::DeviceBytes(
                                               config_, rank.shard,
                                               ShardLayout(layout_, rank.shard),
                                               pass_options));
  }
  if (options.kv_staging_on_device) {
    // The transport's NCCL, beside that of ranks.
    free = std::max<int64_t>(
        0, free - pass_options.spare_bytes - StagedArena::kSpareBytes);
    // Staged blocks are no more than there is KV, and all on one device, of
    // whose memory the others use as much.
    const int32_t parts = RanksHaveWholePages(layout_) ? 1 : num_ranks();
    free -= std::min(options.kv_staging_bytes, free * parts / (parts + 1));
  }
  return std::max<int64_t>(0, free) * num_ranks();
}

absl::Status CudaEngine::AllocateKv(const EngineOptions& options,
                                    const ForwardPassOptions& pass_options) {
  if (options.kv_memory_share > 0) {
    const int64_t free = FreeForKv(options, pass_options);
    BATON_RETURN_IF_ERROR(
        FillWithBlocks(static_cast<int64_t>(options.kv_memory_share *
                                            static_cast<double>(free)),
                       "kv_memory_share", num_ranks(), &layout_));
  } else {
    BATON_RETURN_IF_ERROR(FillWithBlocks(
        options.kv_memory_bytes, "kv_memory_bytes", num_ranks(), &layout_));
  }
  return ForAllRanks([&](Rank& rank) -> absl::Status {
    rank.layout = ShardLayout(layout_, rank.shard);
    BATON_ASSIGN_OR_RETURN(
        rank.kv,
        DeviceBuffer::Allocate(rank.layout.total_bytes(), "KV memory"));
    rank.stream->Fill(rank.kv.data(), 0, rank.kv.bytes());
    return absl::OkStatus();
  });
}

absl::Status CudaEngine::CreatePasses(const EngineOptions& options,
                                      const ForwardPassOptions& pass_options) {
  BATON_RETURN_IF_ERROR(ForAllRanks([&](Rank& rank) -> absl::Status {
    BATON_ASSIGN_OR_RETURN(
        rank.forward_pass,
        ForwardPass::Create(config_, {rank.shard, group_.get(), &meeting_},
                            rank.weights, rank.layout, rank.kv.data(),
                            *rank.stream, pass_options));
    return absl::OkStatus();
  }));
  if (options.kv_staging_bytes == 0) return absl::OkStatus();
  std::vector<DeviceKv> devices;
  for (int32_t rank = 0; rank < num_ranks(); ++rank) {
    devices.push_back(device_kv(rank));
  }
  BATON_ASSIGN_OR_RETURN(
      stage_, DeviceKvStage::Create(
                  layout_, std::move(devices), options.kv_staging_bytes,
                  StagedKind(options), pass_options.most_copy_runs));
  for (Rank& rank : ranks_) {
    rank.forward_pass->SetStage(stage_->rank(rank.shard.rank));
  }
  return absl::OkStatus();
}

absl::Status CudaEngine::RecordGraphs(const EngineOptions& options,
                                      const ForwardPassOptions& pass_options) {
  const auto start = std::chrono::steady_clock::now();
  // Half of what is left to CUDA, and nothing of what is left to others.
  const int64_t most = pass_options.spare_bytes / 2;
  const int64_t least =
      most / 2 + (options.kv_staging_on_device ? pass_options.spare_bytes : 0);
  const auto free_bytes = [this] {
    int64_t free = std::numeric_limits<int64_t>::max();
    for (int32_t rank = 0; rank < num_ranks(); ++rank) {
      UseDevice(rank);
      free = std::min(free, FreeDeviceBytes());
    }
    UseDevice(0);
    return free;
  };
  GraphRoom room(most, least, free_bytes());
  const std::vector<GraphBucket> buckets =
      ranks_[0].forward_pass->DecodeBuckets(options.decode_rows_at_start,
                                            options.drafts_at_start);
  size_t count = 0;
  const GraphBucket* last = nullptr;
  for (const GraphBucket& bucket : buckets) {
    if (!room.has_room()) break;
    bool recorded = false;  // on all of them, or on none
    threads_.Run([&](int32_t rank) {
      const bool there = ranks_[rank].forward_pass->RecordGraph(
          bucket, last == nullptr || bucket.rows != last->rows ||
                      bucket.several_rows != last->several_rows);
      if (rank == 0) recorded = there;
    });
    if (!recorded) break;
    last = &bucket;
    ++count;
    room.Recorded(free_bytes());
  }
  LOG(INFO) << "recorded " << count << " of " << buckets.size()
            << " graphs of decode steps in "
            << absl::StrFormat("%.1f s", SecondsSince(start));
  return absl::OkStatus();
}

DeviceKv CudaEngine::device_kv(int32_t rank) const {
  const Rank& r = ranks_.at(rank);
  return {rank, r.layout, r.kv.data(), r.stream.get()};
}

scheduling::StepResult CudaEngine::ExecuteBeside(
    const scheduling::StepPlan& plan, LayerHook on_layer_done,
    absl::FunctionRef<void()> meanwhile) {
  CheckPlan(plan, config_, layout_, max_drafts(), adapters_);
  if (num_ranks() == 1) {
    // The loop's thread need not be the one that loaded the model.
    UseDevice(0);
    return ranks_[0].forward_pass->Run(plan, on_layer_done, meanwhile);
  }
  gate_.Begin();
  const auto hook = [&](int32_t layer) {
    gate_.Await(layer);
    on_layer_done(layer);
  };
  scheduling::StepResult result;
  OnAllRanks(
      meanwhile,
      [&](Meanwhile use_time) {
        result = ranks_[0].forward_pass->Run(plan, hook, use_time);
      },
      [&](int32_t rank, Meanwhile use_time) {
        ranks_[rank].forward_pass->Run(
            plan, [&](int32_t layer) { gate_.Pass(rank, layer); }, use_time);
      });
  CheckRanksAgree();
  return result;
}

void CudaEngine::OnAllRanks(
    Meanwhile meanwhile, absl::FunctionRef<void(Meanwhile)> run,
    absl::FunctionRef<void(int32_t rank, Meanwhile)> run_other) {
  relay_.Begin();
  threads_.Run([&](int32_t rank) {
    if (rank == 0) {
      run([&] {
        meanwhile();
        relay_.End();
      });
      return;
    }
    run_other(rank, [&] {
      relay_.Take([&](const scheduling::StepPlan& ahead) {
        CHECK(ranks_[rank].forward_pass->RunAhead(ahead))
            << "rank " << rank << " cannot run ahead, and rank 0 does";
      });
    });
  });
}

void CudaEngine::CheckRanksAgree() const {
  for (int32_t rank = 1; rank < num_ranks(); ++rank) {
    CHECK(ranks_[rank].forward_pass->drawn() == ranks_[0].forward_pass->drawn())
        << "CUDA device " << rank << " drew other tokens than device 0";
  }
}

bool CudaEngine::RunAhead(const scheduling::StepPlan& plan) {
  CheckPlanAhead(plan, config_, layout_);
  if (!ranks_[0].forward_pass->RunAhead(plan)) return false;
  if (num_ranks() > 1) relay_.Give(plan);
  return true;
}

scheduling::StepResult CudaEngine::Await(absl::FunctionRef<void()> meanwhile) {
  if (num_ranks() == 1) {
    UseDevice(0);
    return ranks_[0].forward_pass->Await(meanwhile);
  }
  scheduling::StepResult result;
  OnAllRanks(
      meanwhile,
      [&](Meanwhile use_time) {
        result = ranks_[0].forward_pass->Await(use_time);
      },
      [&](int32_t rank, Meanwhile use_time) {
        ranks_[rank].forward_pass->Await(use_time);
      });
  CheckRanksAgree();
  return result;
}

}  // namespace baton::engine::cuda
