// An engine that computes nothing: for tests of what stands around one.
#pragma once

#include <string>

#include "engine/engine.h"

namespace baton::test {

class IdleEngine final : public engine::Engine {
 public:
  const engine::ModelConfig& model() const override { return model_; }
  const std::string& model_identity() const override { return name_; }
  const std::string& backend_name() const override { return name_; }
  const engine::KvLayout& kv_layout() const override { return layout_; }
  absl::Span<std::byte> kv_memory() override { return {}; }
  scheduling::StepResult Execute(const scheduling::StepPlan&,
                                 LayerHook) override {
    return {};
  }

 private:
  const engine::ModelConfig model_;
  const engine::KvLayout layout_;
  const std::string name_ = "idle";
};

}  // namespace baton::test
