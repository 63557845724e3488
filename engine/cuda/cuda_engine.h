// The CUDA backend. See engine.h for the contract.
//
// KV lies in device memory: kv_memory() is empty, and a stage moves blocks
// between there and the host. Several devices may share the model: rank r, with
// its shard of weights and KV, is device r (shard.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/cuda/device_kv_stage.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/device_weights.h"
#include "engine/cuda/forward_pass.h"
#include "engine/cuda/rank_group.h"
#include "engine/cuda/rank_threads.h"
#include "engine/cuda/shard.h"
#include "engine/engine.h"
#include "engine/engine_factory.h"
#include "engine/kv_stage.h"

namespace baton::engine::cuda {

class CudaEngine final : public Engine {
 public:
  // Loads the model and allocates KV memory. Errors as CreateEngine;
  // FailedPrecondition where there is no device.
  // REQUIRES: options that CreateEngine takes.
  static absl::StatusOr<std::unique_ptr<CudaEngine>> Create(
      const EngineOptions& options);
  // For tests and benchmarks: with passes of another size, or without graphs.
  static absl::StatusOr<std::unique_ptr<CudaEngine>> Create(
      const EngineOptions& options, const ForwardPassOptions& pass_options);

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
  absl::Span<std::byte> kv_memory() override { return {}; }
  KvStage* kv_stage() const override { return stage_.get(); }
  scheduling::StepResult Execute(const scheduling::StepPlan& plan,
                                 LayerHook on_layer_done) override {
    return ExecuteBeside(plan, on_layer_done, [] {});
  }
  int32_t max_drafts() const override { return kMaxDrafts; }
  bool runs_on_device() const override { return true; }
  scheduling::StepResult ExecuteBeside(
      const scheduling::StepPlan& plan, LayerHook on_layer_done,
      absl::FunctionRef<void()> meanwhile) override;
  bool runs_ahead() const override { return true; }
  bool RunAhead(const scheduling::StepPlan& plan) override;
  scheduling::StepResult Await(absl::FunctionRef<void()> meanwhile) override;

  int32_t num_ranks() const { return static_cast<int32_t>(ranks_.size()); }
  // A rank's part of KV memory, on its device, and the stream of its steps.
  DeviceKv device_kv(int32_t rank) const;

 private:
  // A device, and what it has of the model.
  struct Rank {
    Shard shard;
    std::unique_ptr<Stream> stream;
    DeviceWeights weights;
    KvLayout layout;
    DeviceBuffer kv;
    std::unique_ptr<ForwardPass> forward_pass;
  };

  CudaEngine(const ModelConfig& config, const KvLayout& layout, int32_t ranks);

  // What Create does, step by step. `files` are the model's weights.
  absl::Status LoadWeights(const EngineOptions& options,
                           const ModelWeights& files,
                           std::optional<WeightFormat> format);
  absl::Status LoadAdapters(const EngineOptions& options);
  // Bytes for the KV of all ranks.
  int64_t FreeForKv(const EngineOptions& options,
                    const ForwardPassOptions& pass_options);
  absl::Status AllocateKv(const EngineOptions& options,
                          const ForwardPassOptions& pass_options);
  // Of decode steps at start, as far as there is memory for them.
  absl::Status RecordGraphs(const EngineOptions& options,
                            const ForwardPassOptions& pass_options);
  absl::Status CreatePasses(const EngineOptions& options,
                            const ForwardPassOptions& pass_options);
  // Runs a step on all ranks: `run` on rank 0, with what it is to do meanwhile,
  // and `run_other` on the others.
  using Meanwhile = absl::FunctionRef<void()>;
  void OnAllRanks(Meanwhile meanwhile, absl::FunctionRef<void(Meanwhile)> run,
                  absl::FunctionRef<void(int32_t rank, Meanwhile)> run_other);
  // After a step: a device that draws other tokens than others would go on with
  // another text.
  void CheckRanksAgree() const;
  // Of all ranks at the same time; the first error.
  absl::Status ForAllRanks(absl::FunctionRef<absl::Status(Rank&)> run);

  const ModelConfig config_;
  std::string identity_;
  std::string backend_name_;
  KvLayout layout_;  // of all ranks together
  WeightsInfo weights_info_;
  std::vector<AdapterInfo> adapters_;
  bool adapters_may_come_ = false;
  std::unique_ptr<RankGroup> group_;  // null: one rank
  RankMeeting meeting_;
  std::vector<Rank> ranks_;
  std::unique_ptr<DeviceKvStage> stage_;  // null: none was asked for
  LayerGate gate_;
  StepRelay relay_;
  RankThreads threads_;
};

}  // namespace baton::engine::cuda
