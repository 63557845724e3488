// The CUDA backend against the reference that tests/golden/README.md describes:
// PyTorch, for each family of models. Its tolerance is for engines that hold
// weights, KV and the inputs of products in bfloat16, as this one does.
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "tests/engine/cuda/device_fixture.h"
#include "tests/golden/golden_check.h"
#include "tests/golden/golden_model.h"

namespace baton::engine::cuda {
namespace {

class CudaGoldenTest : public DeviceTest,
                       public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    golden_ = LoadGoldenModel(GetParam());
    EngineOptions options = OptionsFor(golden_.dir);
    if (!golden_.adapter_dir.empty()) {
      options.adapters = {{"adapter", golden_.adapter_dir}};
    }
    auto engine = CudaEngine::Create(options, SmallPass());
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  GoldenModel golden_;
  std::unique_ptr<CudaEngine> engine_;
};

INSTANTIATE_TEST_SUITE_P(Models, CudaGoldenTest,
                         testing::ValuesIn(GoldenNames()),
                         [](const auto& param) { return param.param; });

TEST_P(CudaGoldenTest, LogitsAreTheReferencesAtEveryPosition) {
  ExpectReferenceLogits(*engine_, golden_, 1);
  ExpectReferenceLogits(*engine_, golden_, kWholePrompt);
}

TEST_P(CudaGoldenTest, GreedyTokensAreTheReferences) {
  ExpectReferenceTokens(*engine_, golden_);
}

}  // namespace
}  // namespace baton::engine::cuda
