// The CUDA backend with directories that `baton quantize` wrote: the same
// answers, to the bit, as with the model that they were made from.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "engine/cpu/weight_dtype.h"
#include "engine/cuda/cuda_engine.h"
#include "tests/engine/cuda/device_fixture.h"
#include "tests/engine/packed_dir.h"
#include "tests/support/scratch_dir.h"

namespace baton::engine::cuda {
namespace {

using testing::HasSubstr;

class PackedDirTest : public DeviceTest,
                      public testing::WithParamInterface<cpu::WeightDtype> {
 protected:
  std::string dtype() const {
    return std::string(cpu::WeightDtypeName(GetParam()));
  }
  // Packs a model of device_fixture.h.
  void Write(const std::string& name) {
    std::filesystem::create_directory(packed_);
    const absl::Status status =
        WritePackedDir(ModelDirOf(name), GetParam(), packed_);
    ASSERT_TRUE(status.ok()) << status;
  }
  absl::Status Open(const std::string& weights) const {
    EngineOptions options;
    options.model_dir = packed_;
    options.weights = weights;
    options.kv_memory_bytes = 1 << 20;
    return CudaEngine::Create(options).status();
  }

  const test::ScratchDir scratch_;
  const std::string packed_ = scratch_.path() + "/packed";
};

INSTANTIATE_TEST_SUITE_P(Dtypes, PackedDirTest,
                         testing::Values(cpu::WeightDtype::kBf16,
                                         cpu::WeightDtype::kInt8,
                                         cpu::WeightDtype::kInt4),
                         [](const auto& param) {
                           return std::string(
                               cpu::WeightDtypeName(param.param));
                         });

TEST_P(PackedDirTest, GivesTheBitsOfTheModelThatWasPacked) {
  for (const std::string& name : ModelNames()) {
    ASSERT_NO_FATAL_FAILURE(Write(name));
    const auto source =
        MakeCuda(ModelDirOf(name), SmallPass(), /*block_size=*/16, dtype());
    const auto packed =
        MakeCuda(packed_, SmallPass(), /*block_size=*/16, "auto");
    EXPECT_EQ(packed->model_identity(), source->model_identity());
    EXPECT_EQ(packed->backend_name(), source->backend_name());
    EXPECT_EQ(packed->weights_info().dtype, dtype());
    EXPECT_EQ(packed->weights_info().bytes, source->weights_info().bytes);
    for (const int32_t length : {1, 33}) {
      const std::vector<TokenId> tokens = Prompt(length, 5);
      const std::vector<BlockId> blocks = BlockRange(0, 3);
      EXPECT_TRUE(SameBits(RunWhole(*packed, tokens, blocks),
                           RunWhole(*source, tokens, blocks)))
          << name << " " << length;
    }
  }
}

TEST_P(PackedDirTest, OtherWeightsThanItHoldsAreRefused) {
  ASSERT_NO_FATAL_FAILURE(Write("llama"));
  const absl::Status status = Open("fp8");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("weights are ", dtype(), ", not fp8")));
}

TEST_P(PackedDirTest, AnotherConfigIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Write("llama"));
  std::ifstream in(packed_ + "/config.json");
  nlohmann::json config = nlohmann::json::parse(in);
  config["rope_theta"] = 20000.0;
  std::ofstream(packed_ + "/config.json") << config;
  const absl::Status status = Open("auto");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("baton_packed.json: config was another one"));
}

}  // namespace
}  // namespace baton::engine::cuda
