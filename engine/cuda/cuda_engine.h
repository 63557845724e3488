// The CUDA backend. See engine.h for the contract.
//
// KV lies in device memory: kv_memory() is empty, and a stage moves blocks
// between there and the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/cuda/device_kv_stage.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/device_weights.h"
#include "engine/cuda/forward_pass.h"
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
  absl::Span<std::byte> kv_memory() override { return {}; }
  KvStage* kv_stage() const override { return stage_.get(); }
  scheduling::StepResult Execute(const scheduling::StepPlan& plan,
                                 LayerHook on_layer_done) override;

  // The arena that kv_layout() describes, on the device.
  std::byte* device_kv_memory() const { return kv_.data(); }
  const DeviceProperties& device() const { return device_; }
  Stream& stream() { return *stream_; }

 private:
  CudaEngine(const ModelConfig& config, const DeviceProperties& device,
             std::string identity, const KvLayout& layout,
             std::unique_ptr<Stream> stream, DeviceWeights weights,
             WeightsInfo weights_info, DeviceBuffer kv);

  const ModelConfig config_;
  const DeviceProperties device_;
  const std::string identity_;
  const std::string backend_name_;
  const KvLayout layout_;
  const std::unique_ptr<Stream> stream_;
  const DeviceWeights weights_;
  const WeightsInfo weights_info_;
  const DeviceBuffer kv_;
  std::unique_ptr<DeviceKvStage> stage_;  // null: none was asked for
  std::unique_ptr<ForwardPass> forward_pass_;
};

}  // namespace baton::engine::cuda
