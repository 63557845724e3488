#include "engine/cpu/cpu_engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/process/memory.h"
#include "common/status_macros.h"
#include "engine/cpu/kernel_choice.h"
#include "engine/cpu/weight_loading.h"
#include "engine/plan_check.h"

namespace baton::engine::cpu {
namespace {

// All but the number of blocks.
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

// Sets the number of blocks. `where` the bytes come from, for the error.
absl::Status FillWithBlocks(int64_t bytes, absl::string_view where,
                            KvLayout* layout) {
  const int64_t blocks = bytes / layout->block_bytes();
  if (blocks < 1) {
    return absl::ResourceExhaustedError(absl::StrCat(
        where, ": ", bytes, " is too small; one KV block of this model takes ",
        layout->block_bytes(), " bytes"));
  }
  layout->num_blocks = static_cast<int32_t>(
      std::min<int64_t>(blocks, std::numeric_limits<BlockId>::max()));
  return absl::OkStatus();
}

WeightsInfo InfoOf(const CpuWeights& weights, absl::Duration load_time) {
  WeightsInfo info;
  info.dtype = std::string(WeightDtypeName(weights.dtype));
  info.bytes =
      weights.matrix_bytes() + static_cast<int64_t>(weights.embedding.size()) *
                                   int64_t{sizeof(uint16_t)};
  info.mapped = weights.mapping != nullptr;
  info.load_seconds = absl::ToDoubleSeconds(load_time);
  return info;
}

// The share of what is free, with the weights loaded.
int64_t ShareOfFreeMemory(double share, const WeightsInfo& weights) {
  int64_t free = process::ReadMemory().Free();
  // The system counts a mapped file as memory that it could take back; but then
  // every step would read it from the disk again.
  if (weights.mapped) free = std::max<int64_t>(0, free - weights.bytes);
  return static_cast<int64_t>(share * static_cast<double>(free));
}

// The option that says how large KV memory is.
const char* KvMemoryOption(const EngineOptions& options) {
  return options.kv_memory_share > 0 ? "kv_memory_share" : "kv_memory_bytes";
}

absl::StatusOr<MemoryArena> AllocateKv(int64_t bytes,
                                       const EngineOptions& options) {
  const std::string purpose =
      absl::StrCat("KV memory (", KvMemoryOption(options), ")");
  if (options.share_kv_memory) {
    absl::StatusOr<MemoryArena> shared =
        MemoryArena::AllocateShared(bytes, purpose);
    if (shared.ok()) return shared;
    LOG(WARNING) << "KV memory is private to this process: "
                 << shared.status().message();
  }
  return MemoryArena::Allocate(bytes, purpose);
}

// "cpu-avx512bf16-int4-kv8": what bf16 does not name, nor MXFP4, which computes
// the same.
std::string BackendName(const Kernels& kernels, WeightDtype weights,
                        KvDtype kv) {
  std::string name = absl::StrCat("cpu-", kernels.name);
  if (TakesInt8(weights)) {
    absl::StrAppend(&name, "-", WeightDtypeName(weights));
  }
  if (kv == KvDtype::kInt8) absl::StrAppend(&name, "-kv8");
  return name;
}

class PreparedCpuAdapter final : public PreparedAdapter {
 public:
  PreparedCpuAdapter(AdapterInfo info, std::unique_ptr<const CpuLora> lora)
      : PreparedAdapter(std::move(info)), lora(std::move(lora)) {}

  std::unique_ptr<const CpuLora> lora;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CpuEngine::Create(
    const EngineOptions& options) {
  if (options.weights != "auto" && !ParseWeightDtype(options.weights)) {
    return absl::UnimplementedError(
        absl::StrCat("weights: the cpu backend holds bf16, int8, int4 or "
                     "mxfp4, not ",
                     options.weights));
  }
  if (options.tensor_parallel != 1) {
    return absl::UnimplementedError(
        absl::StrCat("tensor_parallel: the cpu backend computes on one device, "
                     "not ",
                     options.tensor_parallel));
  }
  if (options.kv_dtype != KvDtypeName(KvDtype::kBf16) &&
      options.kv_dtype != KvDtypeName(KvDtype::kInt8)) {
    return absl::UnimplementedError(
        absl::StrCat("kv_dtype: the cpu backend holds bf16 or int8, not ",
                     options.kv_dtype));
  }
  BATON_ASSIGN_OR_RETURN(const Kernels* const kernels,
                         FindKernels(options.cpu_isa));
  BATON_ASSIGN_OR_RETURN(const ModelConfig config,
                         LoadModelConfig(options.model_dir));
  KvLayout layout = BlockLayout(config, options);
  if (options.kv_memory_share == 0) {
    BATON_RETURN_IF_ERROR(FillWithBlocks(options.kv_memory_bytes,
                                         KvMemoryOption(options), &layout));
  }
  auto team =
      std::make_unique<ThreadTeam>(options.num_threads, options.pin_threads);
  const absl::Time start = Clock::Monotonic()->Now();
  BATON_ASSIGN_OR_RETURN(LoadedWeights loaded,
                         LoadCpuWeights(options, config, *team));
  const WeightsInfo info =
      InfoOf(loaded.weights, Clock::Monotonic()->Now() - start);
  BATON_ASSIGN_OR_RETURN(
      std::unique_ptr<const CpuWeights> draft_weights,
      LoadDraftWeights(options, config, loaded.weights, *team));
  BATON_ASSIGN_OR_RETURN(const std::vector<LoraAdapter> adapters,
                         LoadLoraAdapters(options.adapters, config));
  CpuLoras loras;
  for (const LoraAdapter& adapter : adapters) {
    BATON_ASSIGN_OR_RETURN(loras.emplace_back(),
                           PackLora(adapter, config, loaded.weights, *team));
  }
  if (options.kv_memory_share > 0) {
    BATON_RETURN_IF_ERROR(
        FillWithBlocks(ShareOfFreeMemory(options.kv_memory_share, info),
                       KvMemoryOption(options), &layout));
  }
  BATON_ASSIGN_OR_RETURN(MemoryArena arena,
                         AllocateKv(layout.total_bytes(), options));
  return std::unique_ptr<Engine>(new CpuEngine(
      *kernels, config, std::move(team), std::move(loaded.weights),
      std::move(draft_weights), info, std::move(loaded.identity),
      AdapterInfos(adapters), std::move(loras), layout, std::move(arena)));
}

CpuEngine::CpuEngine(const Kernels& kernels, const ModelConfig& config,
                     std::unique_ptr<ThreadTeam> team, CpuWeights weights,
                     std::unique_ptr<const CpuWeights> draft_weights,
                     WeightsInfo weights_info, std::string identity,
                     std::vector<AdapterInfo> adapters, CpuLoras loras,
                     const KvLayout& layout, MemoryArena arena)
    : config_(config),
      identity_(std::move(identity)),
      backend_name_(BackendName(kernels, weights.dtype, layout.dtype)),
      layout_(layout),
      arena_(std::move(arena)),
      team_(std::move(team)),
      weights_(std::move(weights)),
      draft_weights_(std::move(draft_weights)),
      weights_info_(std::move(weights_info)),
      adapters_(std::move(adapters)),
      loras_(std::move(loras)),
      forward_pass_(kernels, *team_, config_, weights_, loras_, layout_,
                    arena_.memory().data()) {
  if (draft_weights_ == nullptr) return;
  draft_pass_.emplace(kernels, *team_, config_, *draft_weights_, loras_,
                      layout_, arena_.memory().data());
}

absl::StatusOr<std::unique_ptr<PreparedAdapter>> CpuEngine::PrepareAdapter(
    const AdapterSource& source) const {
  BATON_ASSIGN_OR_RETURN(
      const std::vector<LoraAdapter> adapters,
      LoadLoraAdapters(absl::MakeConstSpan(&source, 1), config_));
  // The engine's own threads run its steps.
  ThreadTeam team(1);
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<const CpuLora> lora,
                         PackLora(adapters.front(), config_, weights_, team));
  return std::make_unique<PreparedCpuAdapter>(AdapterInfos(adapters).front(),
                                              std::move(lora));
}

absl::StatusOr<int32_t> CpuEngine::AddAdapter(
    std::unique_ptr<PreparedAdapter> adapter) {
  auto place = std::find(loras_.begin(), loras_.end(), nullptr);
  if (place == loras_.end()) {
    CHECK_LT(loras_.size(), kMaxAdapters);
    place = loras_.insert(place, nullptr);
    adapters_.emplace_back();
  }
  const auto index = static_cast<int32_t>(place - loras_.begin());
  adapters_[index] = adapter->info();
  *place = std::move(static_cast<PreparedCpuAdapter&>(*adapter).lora);
  return index;
}

void CpuEngine::RemoveAdapter(int32_t adapter) {
  CHECK(loras_[adapter] != nullptr) << adapter;
  loras_[adapter].reset();
  adapters_[adapter] = {};
}

scheduling::StepResult CpuEngine::Execute(const scheduling::StepPlan& plan,
                                          LayerHook on_layer_done) {
  CheckPlan(plan, config_, layout_, max_drafts(), adapters_);
  team_->PinCaller();
  if (!plan.draft) return forward_pass_.Run(plan, on_layer_done);
  CHECK(has_draft_weights());
  return draft_pass_->Run(plan, on_layer_done);
}

}  // namespace baton::engine::cpu
