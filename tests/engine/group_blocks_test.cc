#include "engine/group_blocks.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/log.h"
#include "engine/weights.h"
#include "tests/engine/grouped_matrix.h"
#include "tests/engine/model_dir.h"

namespace baton::engine {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr char kModule[] = "model.layers.1.mlp.up_proj";

std::vector<TestTensor> WithModule(std::vector<TestTensor> module) {
  return WithTensorsOf(kModule, std::move(module));
}

void ExpectReads(const ModelWeights& weights, const GroupedMatrix& expected) {
  const WeightMatrix& matrix = weights.layers[1].up_proj;
  ASSERT_EQ(matrix.rows, expected.outputs);
  ASSERT_EQ(matrix.columns, expected.inputs);
  std::vector<float> row(matrix.columns);
  std::vector<float> rows(11 * matrix.columns);
  ReadRows(matrix, 5, 11, absl::MakeSpan(rows));
  for (int64_t n = 0; n < matrix.rows; ++n) {
    ReadRow(matrix, n, absl::MakeSpan(row));
    for (int64_t k = 0; k < matrix.columns; ++k) {
      EXPECT_EQ(row[k], expected.Weight(n, k)) << n << " " << k;
      if (n >= 5 && n < 16) {
        EXPECT_EQ(rows[(n - 5) * matrix.columns + k], expected.Weight(n, k));
      }
    }
  }
}

TEST(GroupBlocksTest, ReadsGptq) {
  for (const int bits : {4, 8}) {
    for (const int64_t group_size : {8, 16}) {
      const GroupedMatrix q(24, 16, group_size, bits, 1);
      const json config = {{"quant_method", "gptq"},
                           {"bits", bits},
                           {"group_size", group_size},
                           {"sym", false}};
      auto weights =
          LoadQuantized(WithModule(q.Gptq(kModule, 1, true)), config);
      ASSERT_TRUE(weights.ok()) << weights.status();
      EXPECT_EQ(weights->layers[1].up_proj.encoding, WeightEncoding::kGptq);
      EXPECT_EQ(weights->layers[0].up_proj.encoding, WeightEncoding::kPlain);
      ExpectReads(*weights, q);
      weights = LoadQuantized(WithModule(q.Gptq(kModule, 1, false)), config);
      ASSERT_TRUE(weights.ok()) << weights.status();
      ExpectReads(*weights, q);
    }
  }
}

TEST(GroupBlocksTest, GptqGroupsMayBeInAnyOrder) {
  GroupedMatrix q(24, 16, 8, 4, 2);
  std::mt19937 random(3);
  std::shuffle(q.group_of.begin(), q.group_of.end(), random);
  const auto weights = LoadQuantized(WithModule(q.Gptq(kModule, 1, true)),
                                     {{"quant_method", "gptq"},
                                      {"bits", 4},
                                      {"group_size", 8},
                                      {"desc_act", true}});
  ASSERT_TRUE(weights.ok()) << weights.status();
  ExpectReads(*weights, q);
}

TEST(GroupBlocksTest, GptqOfTheSecondFormatStoresZerosAsTheyAre) {
  const GroupedMatrix q(24, 16, 8, 4, 4);
  const auto weights = LoadQuantized(WithModule(q.Gptq(kModule, 0, true)),
                                     {{"quant_method", "gptq"},
                                      {"bits", 4},
                                      {"group_size", 8},
                                      {"checkpoint_format", "gptq_v2"}});
  ASSERT_TRUE(weights.ok()) << weights.status();
  ExpectReads(*weights, q);
}

TEST(GroupBlocksTest, OneGroupMayBeTheWholeMatrix) {
  const GroupedMatrix q(24, 16, 16, 4, 5);
  const auto weights = LoadQuantized(
      WithModule(q.Gptq(kModule, 1, true)),
      {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", -1}});
  ASSERT_TRUE(weights.ok()) << weights.status();
  ExpectReads(*weights, q);
}

TEST(GroupBlocksTest, ReadsAwq) {
  const GroupedMatrix q(24, 16, 8, 4, 6);
  for (const char* const version : {"gemm", "GEMM"}) {
    const auto weights =
        LoadQuantized(WithModule(q.Awq(kModule)), {{"quant_method", "awq"},
                                                   {"bits", 4},
                                                   {"group_size", 8},
                                                   {"version", version},
                                                   {"zero_point", true}});
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(weights->layers[1].up_proj.encoding, WeightEncoding::kAwq);
    ExpectReads(*weights, q);
  }
}

void ExpectGrids(const WeightMatrix& matrix, const GroupedMatrix& expected) {
  constexpr int64_t kFirst = 5;
  constexpr int64_t kCount = 11;
  const int64_t slices = (matrix.columns + 63) / 64;
  const std::vector<Int4Grid> grids = ReadInt4Grids(matrix, kFirst, kCount);
  ASSERT_EQ(static_cast<int64_t>(grids.size()), kCount * slices);
  ASSERT_EQ(StoredType(matrix), DType::kU8);
  std::vector<std::byte> stored(kCount * matrix.columns);
  CopyRows(matrix, kFirst, kCount, stored.data());
  std::vector<float> row(matrix.columns);
  for (int64_t n = 0; n < kCount; ++n) {
    for (int64_t k = 0; k < matrix.columns; ++k) {
      const Int4Grid& grid = grids[n * slices + k / 64];
      const auto q =
          static_cast<int>(expected.values[(kFirst + n) * matrix.columns + k]);
      ASSERT_EQ(static_cast<int>(stored[n * matrix.columns + k]), q);
      EXPECT_EQ(static_cast<float>(q - grid.zero) * grid.scale,
                expected.Weight(kFirst + n, k))
          << n << " " << k;
    }
  }
}

TEST(GroupBlocksTest, GridsOfSixtyFourInputsAreThoseOfTheirGroup) {
  for (const int64_t group_size : {64, 128, 192}) {
    // The last one is shorter.
    const GroupedMatrix q(16, 320, group_size, 4, 8);
    const std::vector<TestTensor> gptq = q.Gptq("m", 1, true);
    ExpectGrids(q.View(gptq, WeightEncoding::kGptq, 1), q);
    const std::vector<TestTensor> awq = q.Awq("m");
    ExpectGrids(q.View(awq, WeightEncoding::kAwq, 0), q);
  }
  // One group, whose size is no multiple of 64.
  const GroupedMatrix one(16, 72, 72, 4, 9);
  const std::vector<TestTensor> gptq = one.Gptq("m", 0, false);
  ExpectGrids(one.View(gptq, WeightEncoding::kGptq, 0), one);
  // Inputs that fill no eight.
  const GroupedMatrix odd(16, 75, 75, 4, 17);
  const std::vector<TestTensor> awq = odd.Awq("m");
  ExpectGrids(odd.View(awq, WeightEncoding::kAwq, 0), odd);
}

TEST(GroupBlocksTest, WhatHasNoGridsOfSixtyFourInputsSaysSo) {
  const auto expect_none = [](const GroupedMatrix& q) {
    const std::vector<TestTensor> gptq = q.Gptq("m", 1, true);
    EXPECT_FALSE(HasInt4Grids(q.View(gptq, WeightEncoding::kGptq, 1)));
    EXPECT_TRUE(
        ReadInt4Grids(q.View(gptq, WeightEncoding::kGptq, 1), 0, 16).empty());
  };
  expect_none(GroupedMatrix(16, 320, 64, 8, 10));
  expect_none(GroupedMatrix(16, 320, 32, 4, 11));
  expect_none(GroupedMatrix(16, 320, 96, 4, 12));
  GroupedMatrix act_order(16, 320, 64, 4, 13);
  std::swap(act_order.group_of[3], act_order.group_of[319]);
  expect_none(act_order);
  const GroupedMatrix q(16, 320, 64, 4, 14);
  const std::vector<TestTensor> tensors = q.Awq("m");
  WeightMatrix plain = q.View(tensors, WeightEncoding::kAwq, 0);
  plain.encoding = WeightEncoding::kPlain;
  EXPECT_TRUE(ReadInt4Grids(plain, 0, 16).empty());
}

// The loader says which.
TEST(GroupBlocksTest, LoadersSeeWhetherGroupsAreInOrder) {
  for (const bool in_order : {true, false}) {
    GroupedMatrix q(24, 16, 8, 4, 15);
    if (!in_order) std::swap(q.group_of[0], q.group_of[15]);
    const auto weights = LoadQuantized(
        WithModule(q.Gptq(kModule, 1, true)),
        {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 8}});
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(weights->layers[1].up_proj.groups_in_order, in_order);
  }
  const GroupedMatrix q(24, 16, 8, 4, 16);
  const auto weights =
      LoadQuantized(WithModule(q.Awq(kModule)),
                    {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 8}});
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_TRUE(weights->layers[1].up_proj.groups_in_order);
}

TEST(GroupBlocksTest, BrokenModulesNameFileAndTensor) {
  const GroupedMatrix q(24, 16, 8, 4, 7);
  const json gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 8}};
  for (size_t i = 0; i < 4; ++i) {
    std::vector<TestTensor> module = q.Gptq(kModule, 1, true);
    std::swap(module[i].shape.front(), module[i].shape.back());
    module[i].shape.push_back(1);
    auto weights = LoadQuantized(WithModule(module), gptq);
    EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        weights.status().message(),
        AllOf(HasSubstr("model.safetensors"), HasSubstr(module[i].name)));

    module = q.Gptq(kModule, 1, true);
    module[i].dtype = module[i].dtype == "I32" ? "F32" : "I16";
    weights = LoadQuantized(WithModule(module), gptq);
    EXPECT_FALSE(weights.ok());
    EXPECT_THAT(
        weights.status().message(),
        AllOf(HasSubstr("model.safetensors"), HasSubstr(module[i].name)));

    // Without the words it is a plain matrix, which is not there; without the
    // index, groups follow each other.
    module = q.Gptq(kModule, 1, true);
    const std::string name = i == 0 ? std::string(kModule) : module[i].name;
    module.erase(module.begin() + i);
    weights = LoadQuantized(WithModule(module), gptq);
    EXPECT_EQ(weights.ok(), i == 3);
    if (i < 3) {
      EXPECT_EQ(weights.status().code(), absl::StatusCode::kNotFound);
      EXPECT_THAT(weights.status().message(), HasSubstr(name));
    }
  }
  for (const int32_t group : {-1, 2}) {
    GroupedMatrix bad = q;
    bad.group_of[7] = group;
    const auto weights =
        LoadQuantized(WithModule(bad.Gptq(kModule, 1, true)), gptq);
    EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(weights.status().message(), HasSubstr("g_idx"));
  }
}

TEST(GroupBlocksTest, MatricesThatCannotBePackedAreRefused) {
  json config = LlamaConfigJson();
  config["intermediate_size"] = 20;
  config["quantization_config"] = {
      {"quant_method", "awq"}, {"bits", 4}, {"group_size", 8}};
  ModelDir dir;
  dir.Write("config.json", config.dump());
  std::vector<TestTensor> tensors = LlamaTensors();
  tensors.push_back({"model.layers.0.mlp.gate_proj.qweight", "I32", {0}, ""});
  dir.Write("model.safetensors", Safetensors(tensors));
  const auto loaded = LoadModelConfig(dir.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const auto weights = LoadModelWeights(dir.path(), *loaded);
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(weights.status().message(), HasSubstr("gate_proj.qweight"));
}

TEST(GroupBlocksTest, UnknownMethodsNameTheField) {
  const std::vector<std::pair<json, std::string>> unknown = {
      {{{"bits", 4}}, "quant_method"},
      {{{"quant_method", "bitsandbytes"}, {"bits", 8}}, "quant_method"},
      {{{"quant_method", "gptq"}, {"bits", 3}}, "bits"},
      {{{"quant_method", "gptq"}, {"bits", 4}, {"checkpoint_format", "marlin"}},
       "checkpoint_format"},
      {{{"quant_method", "awq"}, {"bits", 8}}, "bits"},
      {{{"quant_method", "awq"}, {"w_bit", 3}}, "w_bit"},
      {{{"quant_method", "awq"}, {"bits", 4}, {"version", "gemv"}}, "version"},
  };
  for (const auto& [quantization, field] : unknown) {
    const absl::Status status = QuantizationStatus(quantization);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << quantization;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("config.json"),
                      HasSubstr("quantization_config." + field)));
  }
  const std::vector<json> broken = {
      json(7),
      {{"quant_method", "gptq"}},
      {{"quant_method", "gptq"}, {"bits", "four"}},
      {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", -2}},
  };
  for (const json& quantization : broken) {
    const absl::Status status = QuantizationStatus(quantization);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
        << quantization;
    EXPECT_THAT(status.message(), HasSubstr("quantization_config"));
  }
}

}  // namespace
}  // namespace baton::engine
