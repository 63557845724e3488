// CudaEngine: its LoRA adapters, from the start and as they come and go.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "engine/cuda/cuda_engine.h"
#include "engine/cuda/device_loras.h"

namespace baton::engine::cuda {
namespace {

class PreparedCudaAdapter final : public PreparedAdapter {
 public:
  PreparedCudaAdapter(AdapterInfo info, std::vector<HostLora> loras)
      : PreparedAdapter(std::move(info)), loras(std::move(loras)) {}

  const std::vector<HostLora> loras;  // of each rank
};

}  // namespace

absl::Status CudaEngine::LoadAdapters(const EngineOptions& options) {
  BATON_ASSIGN_OR_RETURN(const std::vector<LoraAdapter> adapters,
                         LoadLoraAdapters(options.adapters, config_));
  adapters_ = AdapterInfos(adapters);
  adapters_may_come_ = options.adapters_may_come;
  int32_t most = adapters_may_come_ ? options.adapter_rank : 0;
  for (const LoraAdapter& adapter : adapters) {
    most = std::max(most, adapter.rank);
  }
  const auto places =
      static_cast<int32_t>(adapters_may_come_ ? kMaxAdapters : adapters.size());
  return ForAllRanks([&](Rank& rank) -> absl::Status {
    BATON_ASSIGN_OR_RETURN(
        rank.weights.loras,
        LoadDeviceLoras(adapters, places, PaddedLoraRank(most),
                        adapters_may_come_, config_, rank.shard, *rank.stream));
    return absl::OkStatus();
  });
}

absl::StatusOr<std::unique_ptr<PreparedAdapter>> CudaEngine::PrepareAdapter(
    const AdapterSource& source) const {
  if (!adapters_may_come_) return Engine::PrepareAdapter(source);
  BATON_ASSIGN_OR_RETURN(
      const std::vector<LoraAdapter> adapters,
      LoadLoraAdapters(absl::MakeConstSpan(&source, 1), config_));
  const LoraAdapter& adapter = adapters.front();
  const int32_t rank = ranks_[0].weights.loras.rank;
  if (adapter.rank > rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("adapter ", source.name, ": its rank is ", adapter.rank,
                     ", there is room for ", rank, " (adapter_rank)"));
  }
  std::vector<HostLora> loras;
  for (const Rank& r : ranks_) {
    loras.push_back(MakeHostLora(adapter, config_, r.shard, rank));
  }
  return std::make_unique<PreparedCudaAdapter>(AdapterInfos(adapters).front(),
                                               std::move(loras));
}

absl::StatusOr<int32_t> CudaEngine::AddAdapter(
    std::unique_ptr<PreparedAdapter> adapter) {
  const auto place =
      std::find_if(adapters_.begin(), adapters_.end(),
                   [](const AdapterInfo& info) { return info.name.empty(); });
  const auto index = static_cast<int32_t>(place - adapters_.begin());
  CHECK_LT(index, static_cast<int32_t>(kMaxAdapters));
  const auto& loras = static_cast<PreparedCudaAdapter&>(*adapter).loras;
  for (Rank& rank : ranks_) {
    UseDevice(rank.shard.rank);
    const absl::Status status = PutDeviceLora(
        loras[rank.shard.rank], index, *rank.stream, &rank.weights.loras);
    if (status.ok()) continue;
    for (Rank& other : ranks_) other.weights.loras.memory[index] = {};
    return status;
  }
  if (place == adapters_.end()) adapters_.emplace_back();
  adapters_[index] = adapter->info();
  return index;
}

void CudaEngine::RemoveAdapter(int32_t adapter) {
  CHECK(!adapters_[adapter].name.empty()) << adapter;
  adapters_[adapter] = {};
  for (Rank& rank : ranks_) {
    UseDevice(rank.shard.rank);
    rank.stream->Wait();
    rank.weights.loras.memory[adapter] = {};
  }
}

}  // namespace baton::engine::cuda
