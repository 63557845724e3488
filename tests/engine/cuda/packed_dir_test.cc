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
#include "tests/engine/model_dir.h"
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

// Experts in MXFP4 are e4m3 with a power of two for each output, so that
// nothing is rounded; packed ones, too.
class Mxfp4DirTest : public DeviceTest {};

TEST_F(Mxfp4DirTest, ExpertsAreHeldInFp8AndAnswerAsInBfloat16) {
  const std::string dir = GoldenDir("gpt_oss");
  const test::ScratchDir scratch;
  const std::string packed_dir = scratch.path() + "/packed";
  std::filesystem::create_directory(packed_dir);
  const absl::Status packed_status =
      WritePackedDir(dir, cpu::WeightDtype::kMxfp4, packed_dir);
  ASSERT_TRUE(packed_status.ok()) << packed_status;
  const auto make = [](const std::string& dir, const std::string& weights) {
    return MakeCuda(dir, SmallPass(), /*block_size=*/16, weights);
  };
  const auto bf16 = make(dir, "bf16");
  EXPECT_EQ(bf16->weights_info().dtype, "bf16");
  const auto as_it_is = make(dir, "auto");
  const auto packed = make(packed_dir, "auto");
  EXPECT_EQ(packed->model_identity(), as_it_is->model_identity());
  for (const auto* const engine : {&as_it_is, &packed}) {
    EXPECT_EQ((*engine)->weights_info().dtype, "fp8-bf16");
    EXPECT_LT((*engine)->weights_info().bytes, bf16->weights_info().bytes);
    for (const int32_t length : {1, 9, 33, 60}) {
      std::vector<TokenId> tokens = Prompt(length, 5);
      for (TokenId& token : tokens) token %= 146;
      const std::vector<BlockId> blocks = BlockRange(0, 5);
      EXPECT_TRUE(SameBits(RunWhole(**engine, tokens, blocks),
                           RunWhole(*bf16, tokens, blocks)))
          << length;
    }
  }
}

}  // namespace
}  // namespace baton::engine::cuda
