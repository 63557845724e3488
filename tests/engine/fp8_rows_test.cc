#include "engine/fp8_rows.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/e4m3.h"
#include "engine/float_convert.h"
#include "engine/model_identity.h"
#include "engine/weights.h"
#include "tests/engine/model_dir.h"

namespace baton::engine {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr char kFp8Module[] = "model.layers.1.mlp.up_proj";
constexpr int64_t kOutputs = 24;
constexpr int64_t kInputs = 16;

// A matrix for kFp8Module: every e4m3 number but NaN, and scales that differ.
struct Fp8Matrix {
  Fp8Matrix(int64_t block_rows, int64_t block_columns, const char* scale_type)
      : block_rows(block_rows),
        block_columns(block_columns),
        scale_type(scale_type) {
    for (int64_t i = 0; i < kOutputs * kInputs; ++i) {
      const auto byte = static_cast<uint8_t>(i * 5 + i / 256);
      bytes.push_back(static_cast<char>((byte & 0x7f) == 0x7f ? 0x40 : byte));
    }
    const int64_t count = ((kOutputs + block_rows - 1) / block_rows) * Across();
    for (int64_t i = 0; i < count; ++i) {
      // Numbers that bfloat16 has.
      scales.push_back(0.25f + 0.0625f * static_cast<float>(i % 23));
    }
  }

  int64_t Across() const {
    return (kInputs + block_columns - 1) / block_columns;
  }
  float Weight(int64_t n, int64_t k) const {
    return E4m3ToFloat(static_cast<uint8_t>(bytes[n * kInputs + k])) *
           scales[n / block_rows * Across() + k / block_columns];
  }
  std::vector<TestTensor> Tensors(const std::string& scale_name,
                                  std::vector<int64_t> shape) const {
    std::string stored;
    for (const float scale : scales) {
      if (scale_type == std::string("F32")) {
        stored.append(reinterpret_cast<const char*>(&scale), 4);
      } else {
        const uint16_t bits = FloatToBf16(scale);
        stored.append(reinterpret_cast<const char*>(&bits), 2);
      }
    }
    const std::string module = kFp8Module;
    return {{module + ".weight", "F8_E4M3", {kOutputs, kInputs}, bytes},
            {module + "." + scale_name, scale_type, std::move(shape), stored}};
  }

  const int64_t block_rows, block_columns;
  const std::string scale_type;
  std::string bytes;
  std::vector<float> scales;
};

void ExpectReads(const absl::StatusOr<ModelWeights>& weights,
                 const Fp8Matrix& expected) {
  ASSERT_TRUE(weights.ok()) << weights.status();
  const WeightMatrix& matrix = weights->layers[1].up_proj;
  ASSERT_EQ(matrix.encoding, WeightEncoding::kFp8);
  EXPECT_EQ(weights->layers[0].up_proj.encoding, WeightEncoding::kPlain);
  EXPECT_EQ(HasScalePerOutput(matrix), expected.Across() == 1);
  std::vector<float> rows(7 * kInputs);
  ReadRows(matrix, 9, 7, absl::MakeSpan(rows));
  for (int64_t n = 9; n < 16; ++n) {
    for (int64_t k = 0; k < kInputs; ++k) {
      EXPECT_EQ(rows[(n - 9) * kInputs + k], expected.Weight(n, k))
          << n << " " << k;
    }
    if (HasScalePerOutput(matrix)) {
      EXPECT_EQ(OutputScale(matrix, n),
                expected.scales[n / expected.block_rows]);
    }
  }
}

json CompressedTensors(const json& weights) {
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"input_activations", {{"num_bits", 8}, {"dynamic", true}}},
              {"weights", weights}}}}},
          {"ignore", {"lm_head"}}};
}

// As checkpoints of each kind have them.
TEST(Fp8RowsTest, ReadsScalesOfAllOfAnOutputAndOfBlocks) {
  const json eight = {{"num_bits", 8}, {"type", "float"}};
  for (const char* type : {"F32", "BF16"}) {
    const Fp8Matrix whole(kOutputs, kInputs, type);
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{}, std::vector<int64_t>{1}}) {
      ExpectReads(
          LoadQuantized(
              WithTensorsOf(kFp8Module, whole.Tensors("weight_scale", shape)),
              {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}}),
          whole);
    }
    ExpectReads(
        LoadQuantized(
            WithTensorsOf(kFp8Module, whole.Tensors("weight_scale", {1})),
            {{"quant_method", "fp8"}, {"activation_scheme", "static"}}),
        whole);
    const Fp8Matrix outputs(1, kInputs, type);
    ExpectReads(
        LoadQuantized(WithTensorsOf(kFp8Module, outputs.Tensors("weight_scale",
                                                                {kOutputs, 1})),
                      CompressedTensors(eight)),
        outputs);
    ExpectReads(
        LoadQuantized(WithTensorsOf(kFp8Module, outputs.Tensors("weight_scale",
                                                                {kOutputs})),
                      {{"quant_method", "fbgemm_fp8"}}),
        outputs);
    // Blocks that do not fill the matrix.
    const Fp8Matrix blocks(10, 7, type);
    ExpectReads(
        LoadQuantized(WithTensorsOf(kFp8Module,
                                    blocks.Tensors("weight_scale_inv", {3, 3})),
                      {{"quant_method", "fp8"},
                       {"fmt", "e4m3"},
                       {"weight_block_size", {10, 7}}}),
        blocks);
    json structured = eight;
    structured["strategy"] = "block";
    structured["block_structure"] = {10, 7};
    ExpectReads(
        LoadQuantized(
            WithTensorsOf(kFp8Module, blocks.Tensors("weight_scale", {3, 3})),
            CompressedTensors(structured)),
        blocks);
  }
}

TEST(Fp8RowsTest, NanIsNan) {
  Fp8Matrix matrix(1, kInputs, "F32");
  matrix.bytes[9 * kInputs + 2] = '\x7f';
  const auto weights = LoadQuantized(
      WithTensorsOf(kFp8Module, matrix.Tensors("weight_scale", {kOutputs, 1})),
      {{"quant_method", "fbgemm_fp8"}});
  ASSERT_TRUE(weights.ok()) << weights.status();
  std::vector<float> row(kInputs);
  ReadRow(weights->layers[1].up_proj, 9, absl::MakeSpan(row));
  EXPECT_TRUE(std::isnan(row[2]));
  EXPECT_FALSE(std::isnan(row[3]));
}

// Scales, and which outputs have which, are part of what a model is.
TEST(Fp8RowsTest, OtherScalesAreAnotherModel) {
  const auto identity = [](const Fp8Matrix& matrix, int64_t block) {
    ModelDir dir;
    json config = LlamaConfigJson();
    config["quantization_config"] = {{"quant_method", "fp8"},
                                     {"weight_block_size", {block, kInputs}}};
    dir.Write("config.json", config.dump());
    dir.Write("model.safetensors",
              Safetensors(WithTensorsOf(
                  kFp8Module, matrix.Tensors("weight_scale_inv", {3, 1}))));
    const auto loaded = LoadModelConfig(dir.path());
    CHECK(loaded.ok()) << loaded.status();
    const auto weights = LoadModelWeights(dir.path(), *loaded);
    CHECK(weights.ok()) << weights.status();
    return ModelIdentity(*loaded, *weights);
  };
  Fp8Matrix matrix(8, kInputs, "F32");
  const std::string first = identity(matrix, 8);
  EXPECT_EQ(identity(matrix, 8), first);
  EXPECT_NE(identity(matrix, 10), first);
  matrix.scales[2] *= 2;
  EXPECT_NE(identity(matrix, 8), first);
}

TEST(Fp8RowsTest, BrokenModulesNameFileAndTensor) {
  const Fp8Matrix matrix(1, kInputs, "F32");
  const json channel = {{"quant_method", "fbgemm_fp8"}};
  const auto expect = [](const absl::StatusOr<ModelWeights>& weights,
                         absl::StatusCode code, const std::string& name) {
    EXPECT_EQ(weights.status().code(), code);
    EXPECT_THAT(weights.status().message(),
                AllOf(HasSubstr("safetensors"), HasSubstr(name)));
  };
  // No scales; of another shape; of another type; a matrix of another shape.
  std::vector<TestTensor> tensors = matrix.Tensors("weight_scale", {kOutputs});
  tensors.pop_back();
  expect(LoadQuantized(WithTensorsOf(kFp8Module, tensors), channel),
         absl::StatusCode::kNotFound, "up_proj.weight_scale");
  expect(LoadQuantized(
             WithTensorsOf(kFp8Module, matrix.Tensors("weight_scale", {8, 3})),
             channel),
         absl::StatusCode::kInvalidArgument, "up_proj.weight_scale");
  expect(
      LoadQuantized(
          WithTensorsOf(kFp8Module, matrix.Tensors("weight_scale_inv", {8, 3})),
          {{"quant_method", "fp8"}, {"weight_block_size", {4, 4}}}),
      absl::StatusCode::kInvalidArgument, "up_proj.weight_scale_inv");
  tensors = matrix.Tensors("weight_scale", {kOutputs});
  tensors[1].dtype = "I32";
  expect(LoadQuantized(WithTensorsOf(kFp8Module, tensors), channel),
         absl::StatusCode::kUnimplemented, "up_proj.weight_scale");
  tensors = matrix.Tensors("weight_scale", {kOutputs});
  tensors[0].shape = {kInputs, kOutputs};
  expect(LoadQuantized(WithTensorsOf(kFp8Module, tensors), channel),
         absl::StatusCode::kInvalidArgument, "up_proj.weight");
  // Without a config that says what they are.
  expect(LoadQuantized(WithTensorsOf(kFp8Module, matrix.Tensors("weight_scale",
                                                                {kOutputs})),
                       json()),
         absl::StatusCode::kUnimplemented, "up_proj.weight");
}

TEST(Fp8RowsTest, OtherKindsNameTheField) {
  json transforms = CompressedTensors({{"num_bits", 8}, {"type", "float"}});
  transforms["transform_config"] = json::object();
  EXPECT_TRUE(QuantizationStatus(transforms).ok());
  transforms["transform_config"] = {
      {"config_groups", {{"u", {{"type", "x"}}}}}};
  const std::vector<std::pair<json, std::string>> unknown = {
      {{{"quant_method", "fp8"}, {"fmt", "e5m2"}}, "fmt"},
      {{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}, "quant_algo"},
      {{{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}},
       "format"},
      {CompressedTensors(
           {{"num_bits", 8}, {"type", "float"}, {"symmetric", false}}),
       "config_groups.group_0.weights.symmetric"},
      {transforms, "transform_config"},
      {CompressedTensors({{"num_bits", 8}, {"type", "int"}}),
       "config_groups.group_0.weights.type"},
      {CompressedTensors({{"num_bits", 4}, {"type", "float"}}),
       "config_groups.group_0.weights.num_bits"},
  };
  for (const auto& [quantization, field] : unknown) {
    const absl::Status status = QuantizationStatus(quantization);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << quantization;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("config.json"),
                      HasSubstr("quantization_config." + field)));
  }
  json no_groups = CompressedTensors({});
  no_groups.erase("config_groups");
  json odd_name = no_groups;
  odd_name["config_groups"]["a\nb"] = 7;
  const std::vector<std::pair<json, std::string>> broken = {
      {{{"quant_method", "fp8"}, {"weight_block_size", {128}}},
       "weight_block_size"},
      {{{"quant_method", "fp8"}, {"weight_block_size", {128, 0}}},
       "weight_block_size"},
      {no_groups, "config_groups"},
      {odd_name, "config_groups.0 is 7"},
      {CompressedTensors(json(7)), "config_groups.group_0.weights"},
      {CompressedTensors({{"type", "float"}}),
       "config_groups.group_0.weights.num_bits"},
  };
  for (const auto& [quantization, field] : broken) {
    const absl::Status status = QuantizationStatus(quantization);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
        << quantization;
    EXPECT_THAT(status.message(), HasSubstr("quantization_config." + field));
  }
}

}  // namespace
}  // namespace baton::engine
