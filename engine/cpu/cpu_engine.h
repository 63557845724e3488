// The CPU backend. See engine.h for the contract.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/cpu/cpu_weights.h"
#include "engine/cpu/forward_pass.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/lora_weights.h"
#include "engine/cpu/memory_arena.h"
#include "engine/cpu/thread_team.h"
#include "engine/engine.h"
#include "engine/engine_factory.h"

namespace baton::engine::cpu {

class CpuEngine final : public Engine {
 public:
  // Loads the model and allocates KV memory. Errors as CreateEngine.
  // REQUIRES: options that CreateEngine takes.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(
      const EngineOptions& options);

  const ModelConfig& model() const override { return config_; }
  const std::string& model_identity() const override { return identity_; }
  const std::string& backend_name() const override { return backend_name_; }
  const KvLayout& kv_layout() const override { return layout_; }
  WeightsInfo weights_info() const override { return weights_info_; }
  absl::Span<const AdapterInfo> adapters() const override { return adapters_; }
  absl::StatusOr<std::unique_ptr<PreparedAdapter>> PrepareAdapter(
      const AdapterSource& source) const override;
  absl::StatusOr<int32_t> AddAdapter(
      std::unique_ptr<PreparedAdapter> adapter) override;
  void RemoveAdapter(int32_t adapter) override;
  absl::Span<std::byte> kv_memory() override { return arena_.memory(); }
  int kv_descriptor() const override { return arena_.descriptor(); }
  int32_t max_drafts() const override { return kMaxDrafts; }
  bool has_draft_weights() const override { return draft_weights_ != nullptr; }
  scheduling::StepResult Execute(const scheduling::StepPlan& plan,
                                 LayerHook on_layer_done) override;

 private:
  CpuEngine(const Kernels& kernels, const ModelConfig& config,
            std::unique_ptr<ThreadTeam> team, CpuWeights weights,
            std::unique_ptr<const CpuWeights> draft_weights,
            WeightsInfo weights_info, std::string identity,
            std::vector<AdapterInfo> adapters, CpuLoras loras,
            const KvLayout& layout, MemoryArena arena);

  const ModelConfig config_;
  const std::string identity_;
  const std::string backend_name_;
  const KvLayout layout_;
  MemoryArena arena_;
  const std::unique_ptr<ThreadTeam> team_;
  const CpuWeights weights_;
  const std::unique_ptr<const CpuWeights> draft_weights_;  // null: none
  const WeightsInfo weights_info_;
  std::vector<AdapterInfo> adapters_;
  CpuLoras loras_;  // as many
  ForwardPass forward_pass_;
  std::optional<ForwardPass> draft_pass_;  // with draft_weights_
};

}  // namespace baton::engine::cpu
