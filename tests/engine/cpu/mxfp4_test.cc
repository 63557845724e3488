// Weights that stay in MXFP4 compute what the same weights in bfloat16 do, to
// the bit.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "engine/cpu/kernel_choice.h"
#include "engine/engine_factory.h"
#include "engine/float_convert.h"
#include "tests/engine/cpu/engine_fixture.h"
#include "tests/engine/cpu/owned_matrix.h"
#include "tests/engine/model_dir.h"
#include "tests/engine/mxfp4_matrix.h"

namespace baton::engine::cpu::mxfp4_test {
namespace {

using testing::HasSubstr;

TEST(PackedMxfp4Test, ReadsBackWhatFilesHave) {
  ThreadTeam team(2);
  for (const int32_t unit : {1, 2, 4}) {
    for (const auto& [outputs, inputs] :
         {std::pair{5, 32}, {33, 64}, {70, 2880}}) {
      Mxfp4Matrix matrix(outputs, inputs, 1);
      for (const WeightMatrix& view : {matrix.View(), matrix.GgufView()}) {
        const OwnedMatrix mxfp4(WeightDtype::kMxfp4, unit, view, team);
        const OwnedMatrix bf16(WeightDtype::kBf16, unit, view, team);
        EXPECT_TRUE(SameBits(mxfp4.Values(), bf16.Values()))
            << unit << " " << outputs << "x" << inputs;
        EXPECT_EQ(mxfp4.matrix.bytes(),
                  int64_t{mxfp4.matrix.outputs()} * inputs * 17 / 32);
      }
    }
  }
}

// As they might be in a broken file.
TEST(PackedMxfp4Test, ExponentsThatBfloat16HasNot) {
  ThreadTeam team(1);
  Mxfp4Matrix matrix(16, 64, 1);
  const uint8_t kEnds[] = {0, 1, 253, 254, 255};
  for (size_t i = 0; i < std::size(kEnds); ++i) {
    matrix.exponents[2 * i] = kEnds[i];  // the first group of output i
  }
  const OwnedMatrix owned(WeightDtype::kMxfp4, 1, matrix.View(), team);
  const std::vector<float> values = owned.Values();
  for (size_t i = 0; i < std::size(kEnds); ++i) {
    for (int k = 0; k < 32; ++k) {
      const float value = values[64 * i + k];
      EXPECT_TRUE(kEnds[i] < 2 ? value == 0 : std::isinf(value))
          << int{kEnds[i]} << " " << value;
      EXPECT_TRUE(std::isfinite(values[64 * i + 32 + k]));
    }
  }
  for (const Kernels* const kernels : AvailableKernels()) {
    const std::vector<float> c =
        ProductOf(*kernels, team, RandomInput(1, 64), 0, 1, owned.matrix);
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(!std::isfinite(c[i]), i >= 2 && i < 5)
          << kernels->name << " " << i;
    }
  }
}

class Mxfp4ProductTest : public testing::TestWithParam<const Kernels*> {};

INSTANTIATE_TEST_SUITE_P(
    Isa, Mxfp4ProductTest,
    testing::ValuesIn(AvailableKernels().begin(), AvailableKernels().end()),
    [](const testing::TestParamInfo<const Kernels*>& info) {
      return std::string(info.param->name);
    });

// Few rows and many, blocks of k and parts of one, panels that lie in fours and
// in twos, more items than threads.
TEST_P(Mxfp4ProductTest, IsThatOfBfloat16) {
  constexpr int32_t kRows = 300;
  ThreadTeam one(1), three(3);
  for (const auto& [outputs, inputs] :
       {std::pair{5, 32}, {40, 96}, {150, 1312}, {70, 2880}}) {
    Mxfp4Matrix matrix(outputs, inputs, 4);
    const WeightMatrix view = matrix.View();
    const std::vector<float> a = RandomInput(kRows, inputs);
    for (const int32_t unit : {2, 4}) {
      const OwnedMatrix mxfp4(WeightDtype::kMxfp4, unit, view, one);
      const OwnedMatrix bf16(WeightDtype::kBf16, unit, view, one);
      for (ThreadTeam* const team : {&one, &three}) {
        for (const int32_t rows : {1, 2, 3, 7, 8, 9, 33, kRows}) {
          EXPECT_TRUE(
              SameBits(ProductOf(*GetParam(), *team, a, 0, rows, mxfp4.matrix),
                       ProductOf(*GetParam(), *team, a, 0, rows, bf16.matrix)))
              << rows << " rows, " << outputs << "x" << inputs << " in " << unit
              << "s on " << team->num_threads() << " threads";
        }
      }
    }
  }
}

// With the smallest and the largest exponents.
TEST_P(Mxfp4ProductTest, IsThatOfBfloat16AtTheEnds) {
  ThreadTeam team(1);
  for (const int exponent : {kLeastMxfp4Exponent, 30, 235}) {
    Mxfp4Matrix matrix(32, 64, 5, exponent);
    const WeightMatrix view = matrix.View();
    const OwnedMatrix mxfp4(WeightDtype::kMxfp4, 2, view, team);
    const OwnedMatrix bf16(WeightDtype::kBf16, 2, view, team);
    const std::vector<float> a = RandomInput(2, 64);
    EXPECT_TRUE(SameBits(ProductOf(*GetParam(), team, a, 0, 2, mxfp4.matrix),
                         ProductOf(*GetParam(), team, a, 0, 2, bf16.matrix)))
        << exponent;
  }
}

TEST_P(Mxfp4ProductTest, AnEngineAnswersAsInBfloat16) {
  const std::string dir = GoldenDir("gpt_oss");
  const auto make = [&](const char* weights) {
    return MakeEngine(dir, GetParam()->name, Dtypes{weights, "bf16"});
  };
  const std::unique_ptr<Engine> bf16 = make("bf16");
  const std::vector<TokenId> tokens = [] {
    std::vector<TokenId> tokens = Prompt(60, 1);
    for (TokenId& token : tokens) token %= 146;
    return tokens;
  }();
  const std::vector<BlockId> blocks = BlockRange(0, 4);
  const std::vector<float> expected = RunWhole(*bf16, tokens, blocks);
  EXPECT_EQ(bf16->weights_info().dtype, "bf16");
  for (const char* const weights : {"mxfp4", "auto"}) {
    const std::unique_ptr<Engine> engine = make(weights);
    EXPECT_TRUE(SameBits(RunWhole(*engine, tokens, blocks), expected))
        << weights;
    // Workers of either kind may serve the same requests.
    EXPECT_EQ(engine->model_identity(), bf16->model_identity());
    EXPECT_EQ(engine->backend_name(), bf16->backend_name());
    EXPECT_EQ(engine->weights_info().dtype, "mxfp4") << weights;
    EXPECT_LT(engine->weights_info().bytes, bf16->weights_info().bytes);
  }
}

absl::Status StatusOf(const std::string& dir) {
  EngineOptions options;
  options.model_dir = dir;
  options.weights = "mxfp4";
  options.kv_memory_bytes = 2 << 20;
  return CreateEngine(options).status();
}

TEST(Mxfp4EngineTest, IsRefusedWhereFilesHaveSomethingElse) {
  const absl::Status dense = StatusOf(EngineModelDir("llama"));
  EXPECT_EQ(dense.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(dense.message(), HasSubstr("the model has no experts"));
  const absl::Status plain = StatusOf(EngineModelDir("experts"));
  EXPECT_EQ(plain.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(plain.message(),
              HasSubstr("weights: mxfp4 is for experts that files have in "
                        "MXFP4; model.layers."));
  EXPECT_THAT(plain.message(), HasSubstr("is plain"));
  const std::unique_ptr<Engine> engine =
      MakeEngine(EngineModelDir("experts"), "", Dtypes{"auto", "bf16"});
  EXPECT_EQ(engine->weights_info().dtype, "bf16");
}

}  // namespace
}  // namespace baton::engine::cpu::mxfp4_test
