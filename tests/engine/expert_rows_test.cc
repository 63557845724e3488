#include "engine/expert_rows.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/float_convert.h"
#include "engine/model_identity.h"
#include "engine/mxfp4.h"
#include "engine/weights.h"
#include "tests/engine/model_dir.h"
#include "tests/support/tiny_model.h"

namespace baton::engine::expert_rows_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kOutputs = 5;
constexpr int64_t kInputs = 64;

// Every number of e2m1 in each place of a byte, with scales that differ.
class Mxfp4Test : public testing::Test {
 protected:
  Mxfp4Test() {
    for (int64_t i = 0; i < kOutputs * kInputs / 2; ++i) {
      blocks_.push_back(static_cast<std::byte>(i * 7 % 256));
    }
    for (int64_t i = 0; i < kOutputs * kInputs / kMxfp4Group; ++i) {
      scales_.push_back(static_cast<std::byte>(120 + i));
    }
    matrix_.name = "m";
    matrix_.encoding = WeightEncoding::kMxfp4;
    matrix_.rows = kOutputs;
    matrix_.columns = kInputs;
    matrix_.values.dtype = DType::kU8;
    matrix_.values.bytes = blocks_;
    matrix_.scales.dtype = DType::kU8;
    matrix_.scales.bytes = scales_;
  }

  // By the bits: (-1)^s 2^(e - 1) (1 + m / 2), or m / 2 where e is 0.
  double Expected(int64_t row, int64_t column) const {
    const int64_t at = row * kInputs + column;
    const int byte = std::to_integer<int>(blocks_[at / 2]);
    const int code = at % 2 == 0 ? byte % 16 : byte / 16;
    const int exponent = code / 2 % 4;
    const double mantissa = code % 2 / 2.0;
    const double magnitude =
        exponent == 0 ? mantissa : std::exp2(exponent - 1) * (1 + mantissa);
    return (code < 8 ? 1 : -1) * magnitude *
           std::exp2(std::to_integer<int>(scales_[at / kMxfp4Group]) - 127);
  }

  std::vector<std::byte> blocks_, scales_;
  WeightMatrix matrix_;
};

TEST_F(Mxfp4Test, NumbersAreThoseOfTheFormat) {
  std::vector<float> rows(kOutputs * kInputs);
  ReadRows(matrix_, 0, kOutputs, absl::MakeSpan(rows));
  for (int64_t i = 0; i < kOutputs * kInputs; ++i) {
    ASSERT_EQ(rows[i], Expected(i / kInputs, i % kInputs)) << i;
    ASSERT_EQ(rows[i], Bf16ToFloat(FloatToBf16(rows[i]))) << i;
  }
  std::vector<float> row(kInputs);
  ReadRow(matrix_, 3, absl::MakeSpan(row));
  EXPECT_EQ(row, std::vector<float>(rows.begin() + 3 * kInputs,
                                    rows.begin() + 4 * kInputs));
}

TEST_F(Mxfp4Test, RowsInTurns) {
  matrix_.rows = 2;
  matrix_.run = {1, 1, 2};
  std::vector<float> rows(2 * kInputs);
  ReadRows(matrix_, 0, 2, absl::MakeSpan(rows));
  for (int64_t i = 0; i < 2 * kInputs; ++i) {
    ASSERT_EQ(rows[i], Expected(1 + i / kInputs * 2, i % kInputs)) << i;
  }
}

TEST_F(Mxfp4Test, ScalesAtTheEnds) {
  scales_[0] = std::byte{0};
  scales_[1] = std::byte{255};
  std::vector<float> row(kInputs);
  ReadRow(matrix_, 0, absl::MakeSpan(row));
  for (int64_t i = 0; i < kMxfp4Group; ++i) {
    EXPECT_EQ(row[i], Expected(0, i)) << i;
    EXPECT_TRUE(std::isnan(row[kMxfp4Group + i])) << i;
  }
}

TEST(ExpertRowsTest, OutputsOfAnInputSideBySide) {
  test::TinyModelOptions tiny;
  tiny.architecture = "GptOssForCausalLM";
  tiny.hidden = 57;
  tiny.intermediate = 37;
  tiny.experts = 3;
  const ModelDir dir;
  ASSERT_TRUE(test::WriteTinyModel(dir.path(), tiny).ok());
  const auto config = LoadModelConfig(dir.path());
  ASSERT_TRUE(config.ok()) << config.status();
  const auto weights = LoadModelWeights(dir.path(), *config);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const LayerWeights& layer = weights->layers[1];
  ASSERT_EQ(layer.experts.size(), 3u);
  const ExpertWeights& expert = layer.experts[2];
  // Views of one expert's part.
  EXPECT_THAT(expert.gate_proj.values.shape, ElementsAre(57, 74));
  EXPECT_EQ(expert.gate_proj.values.bytes.data(),
            expert.up_proj.values.bytes.data());
  EXPECT_EQ(layer.experts[1].down_proj.values.bytes.end(),
            expert.down_proj.values.bytes.begin());
  const auto stored = [](const WeightMatrix& m, int64_t output, int64_t input) {
    const int64_t outputs = m.values.shape[1];
    std::vector<float> value(1);
    ConvertToFloat(m.values.dtype,
                   m.values.bytes.subspan(2 * (input * outputs + output), 2),
                   absl::MakeSpan(value));
    return value[0];
  };
  const auto check = [&](const WeightMatrix& m, int64_t first, int64_t step) {
    EXPECT_EQ(m.encoding, WeightEncoding::kByInput);
    std::vector<float> rows(5 * m.columns);
    ReadRows(m, 7, 5, absl::MakeSpan(rows));
    for (int64_t i = 0; i < 5 * m.columns; ++i) {
      ASSERT_EQ(rows[i],
                stored(m, first + (7 + i / m.columns) * step, i % m.columns));
    }
  };
  check(expert.gate_proj, 0, 2);
  check(expert.up_proj, 1, 2);
  check(expert.down_proj, 0, 1);
  EXPECT_EQ(expert.down_proj.rows, 57);
}

// A copy of the golden model whose config says something else.
absl::Status StatusOf(const json& changes) {
  const std::string golden = GoldenDir("gpt_oss");
  const ModelDir dir;
  dir.Write("config.json",
            With(json::parse(std::ifstream(golden + "/config.json")), changes)
                .dump());
  std::filesystem::copy_file(golden + "/model.safetensors",
                             dir.File("model.safetensors"));
  const auto config = LoadModelConfig(dir.path());
  if (!config.ok()) return config.status();
  return LoadModelWeights(dir.path(), *config).status();
}

TEST(ExpertRowsTest, WhatDoesNotFitIsNamed) {
  EXPECT_TRUE(StatusOf(json::object()).ok());
  const auto message = [](const json& changes) {
    return std::string(StatusOf(changes).message());
  };
  EXPECT_THAT(
      message({{"intermediate_size", 64}}),
      AllOf(HasSubstr("experts.gate_up_proj_blocks"),
            HasSubstr("[6, 192, 2, 16]"), HasSubstr("[6, 128, 2, 16]")));
  EXPECT_THAT(message({{"num_local_experts", 5}}), HasSubstr("router.weight"));
  EXPECT_THAT(message({{"hidden_size", 72}}), HasSubstr("embed_tokens"));
  EXPECT_THAT(message({{"intermediate_size", 80}}),
              HasSubstr("gate_up_proj_blocks"));
  EXPECT_THAT(message({{"quantization_config", "(erase)"}}),
              AllOf(HasSubstr("\"model.layers.0.mlp.experts.gate_up_proj\""),
                    HasSubstr("missing")));
}

TEST(ExpertRowsTest, Mxfp4IsOfGptOss) {
  const absl::Status status = QuantizationStatus({{"quant_method", "mxfp4"}});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("quantization_config.quant_method is \"mxfp4\""),
                    HasSubstr("GptOssForCausalLM")));
}

TEST(ExpertRowsTest, GroupsAreWhole) {
  test::TinyModelOptions tiny;
  tiny.architecture = "GptOssForCausalLM";
  tiny.hidden = 40;
  const ModelDir dir;
  ASSERT_TRUE(test::WriteTinyModel(dir.path(), tiny).ok());
  auto config = LoadModelConfig(dir.path());
  ASSERT_TRUE(config.ok()) << config.status();
  config->quantization.method = QuantizationConfig::Method::kMxfp4;
  EXPECT_THAT(
      std::string(LoadModelWeights(dir.path(), *config).status().message()),
      AllOf(HasSubstr("gate_up_proj_blocks"), HasSubstr("40 inputs")));
}

TEST(ExpertRowsTest, IdentityIsOfAllOfIt) {
  const auto config = LoadModelConfig(GoldenDir("gpt_oss"));
  ASSERT_TRUE(config.ok()) << config.status();
  const auto changed = [&](auto change) {
    ModelConfig other = *config;
    change(other);
    return ConfigIdentity(other) != ConfigIdentity(*config);
  };
  EXPECT_TRUE(changed([](ModelConfig& c) { c.attention_sinks = false; }));
  EXPECT_TRUE(changed([](ModelConfig& c) { c.experts.swiglu_limit = 7; }));
  EXPECT_TRUE(changed([](ModelConfig& c) { c.experts.bias = false; }));
  EXPECT_TRUE(changed([](ModelConfig& c) { c.experts.router_bias = false; }));
}

}  // namespace
}  // namespace baton::engine::expert_rows_test
