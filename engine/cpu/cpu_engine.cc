#include "engine/cpu/cpu_engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "engine/cpu/kernel_choice.h"
#include "engine/cpu/weight_loading.h"

namespace baton::engine::cpu {
namespace {

absl::StatusOr<KvLayout> MakeLayout(const ModelConfig& config,
                                    const EngineOptions& options) {
  KvLayout layout;
  layout.num_layers = config.num_layers;
  layout.block_size = options.block_size;
  layout.num_kv_heads = config.num_kv_heads;
  layout.head_dim = config.head_dim;
  layout.dtype = options.kv_dtype == KvDtypeName(KvDtype::kInt8)
                     ? KvDtype::kInt8
                     : KvDtype::kBf16;
  const int64_t blocks = options.kv_memory_bytes / layout.block_bytes();
  if (blocks < 1) {
    return absl::ResourceExhaustedError(
        absl::StrCat("kv_memory_bytes: ", options.kv_memory_bytes,
                     " is too small; one KV block of this model takes ",
                     layout.block_bytes(), " bytes"));
  }
  layout.num_blocks = static_cast<int32_t>(
      std::min<int64_t>(blocks, std::numeric_limits<BlockId>::max()));
  return layout;
}

// "cpu-avx512bf16-int4-kv8": what bf16 does not name.
std::string BackendName(const Kernels& kernels, WeightDtype weights,
                        KvDtype kv) {
  std::string name = absl::StrCat("cpu-", kernels.name);
  if (weights != WeightDtype::kBf16) {
    absl::StrAppend(&name, "-", WeightDtypeName(weights));
  }
  if (kv == KvDtype::kInt8) absl::StrAppend(&name, "-kv8");
  return name;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CpuEngine::Create(
    const EngineOptions& options) {
  BATON_ASSIGN_OR_RETURN(const Kernels* const kernels,
                         FindKernels(options.cpu_isa));
  BATON_ASSIGN_OR_RETURN(const ModelConfig config,
                         LoadModelConfig(options.model_dir));
  BATON_ASSIGN_OR_RETURN(const KvLayout layout, MakeLayout(config, options));
  auto team = std::make_unique<ThreadTeam>(options.num_threads);
  BATON_ASSIGN_OR_RETURN(LoadedWeights loaded,
                         LoadCpuWeights(options, config, *team));
  BATON_ASSIGN_OR_RETURN(MemoryArena arena,
                         MemoryArena::Allocate(layout.total_bytes(),
                                               "KV memory (kv_memory_bytes)"));
  return std::unique_ptr<Engine>(new CpuEngine(
      *kernels, config, std::move(team), std::move(loaded.weights),
      std::move(loaded.identity), layout, std::move(arena)));
}

CpuEngine::CpuEngine(const Kernels& kernels, const ModelConfig& config,
                     std::unique_ptr<ThreadTeam> team, CpuWeights weights,
                     std::string identity, const KvLayout& layout,
                     MemoryArena arena)
    : config_(config),
      identity_(std::move(identity)),
      backend_name_(BackendName(kernels, weights.dtype, layout.dtype)),
      layout_(layout),
      arena_(std::move(arena)),
      team_(std::move(team)),
      weights_(std::move(weights)),
      forward_pass_(kernels, *team_, config_, weights_, layout_,
                    arena_.memory().data()) {}

void CpuEngine::CheckPlan(const scheduling::StepPlan& plan) const {
  absl::flat_hash_set<SequenceId> seen;
  for (const scheduling::PlannedSequence& s : plan.sequences) {
    CHECK(seen.insert(s.sequence).second) << "a sequence is planned twice";
    CHECK(!s.tokens.empty());
    CHECK_GE(s.first_position, 0);
    const int64_t end = s.first_position + int64_t(s.tokens.size());
    CHECK_LE(end, config_.max_position);
    for (const TokenId token : s.tokens) {
      CHECK(token >= 0 && token < config_.vocab_size) << token;
    }
    const int32_t num_blocks = layout_.BlocksFor(end);
    CHECK_GE(s.blocks.size(), static_cast<size_t>(num_blocks));
    for (const BlockId block : s.blocks.first(num_blocks)) {
      CHECK(block >= 0 && block < layout_.num_blocks) << block;
    }
    if (!s.sample) continue;
    CHECK(s.sampling != nullptr);
    CHECK(!s.history.empty());
    CHECK_EQ(s.history.back(), s.tokens.back());
    CHECK_EQ(static_cast<int64_t>(s.history.size()), end);
    CHECK(s.prompt_length >= 1 &&
          s.prompt_length <= static_cast<int64_t>(s.history.size()))
        << s.prompt_length;
  }
}

scheduling::StepResult CpuEngine::Execute(const scheduling::StepPlan& plan,
                                          LayerHook on_layer_done) {
  CheckPlan(plan);
  return forward_pass_.Run(plan, on_layer_done);
}

}  // namespace baton::engine::cpu
