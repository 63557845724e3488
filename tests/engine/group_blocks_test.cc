#include "engine/group_blocks.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/log.h"
#include "engine/float_convert.h"
#include "engine/weights.h"
#include "tests/engine/model_dir.h"

namespace baton::engine {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// A random matrix of whole numbers, zero points and scales, and its packings.
struct Quantized {
  Quantized(int64_t outputs, int64_t inputs, int64_t group_size, int bits,
            uint32_t seed)
      : outputs(outputs),
        inputs(inputs),
        groups((inputs + group_size - 1) / group_size),
        bits(bits) {
    std::mt19937 random(seed);
    const uint32_t mask = (1u << bits) - 1;
    for (int64_t i = 0; i < outputs * inputs; ++i) {
      values.push_back(random() & mask);
    }
    for (int64_t i = 0; i < groups * outputs; ++i) {
      zeros.push_back(random() & mask);
      // Halves with few bits: the weights are exact.
      scales.push_back(static_cast<uint16_t>(0x2000 + random() % 0x800));
    }
    for (int64_t i = 0; i < inputs; ++i) {
      group_of.push_back(static_cast<int32_t>(i / group_size));
    }
  }

  float Weight(int64_t n, int64_t k) const {
    const int64_t at = group_of[k] * outputs + n;
    const int q = static_cast<int>(values[n * inputs + k]);
    return static_cast<float>(q - static_cast<int>(zeros[at])) *
           F16ToFloat(scales[at]);
  }

  template <typename T>
  static std::string Text(const std::vector<T>& data) {
    return std::string(reinterpret_cast<const char*>(data.data()),
                       data.size() * sizeof(T));
  }

  // AutoGPTQ's layout; zero points are stored less `zero_offset`.
  std::vector<TestTensor> Gptq(const std::string& module, uint32_t zero_offset,
                               bool with_index) const {
    const int64_t per_word = 32 / bits;
    const uint32_t mask = (1u << bits) - 1;
    std::vector<uint32_t> q(inputs / per_word * outputs);
    for (int64_t k = 0; k < inputs; ++k) {
      for (int64_t n = 0; n < outputs; ++n) {
        q[k / per_word * outputs + n] |= values[n * inputs + k]
                                         << (bits * (k % per_word));
      }
    }
    std::vector<uint32_t> z(groups * outputs / per_word);
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t n = 0; n < outputs; ++n) {
        z[g * (outputs / per_word) + n / per_word] |=
            ((zeros[g * outputs + n] - zero_offset) & mask)
            << (bits * (n % per_word));
      }
    }
    std::vector<TestTensor> tensors = {
        {module + ".qweight", "I32", {inputs / per_word, outputs}, Text(q)},
        {module + ".qzeros", "I32", {groups, outputs / per_word}, Text(z)},
        {module + ".scales", "F16", {groups, outputs}, Text(scales)}};
    if (with_index) {
      tensors.push_back({module + ".g_idx", "I32", {inputs}, Text(group_of)});
    }
    return tensors;
  }

  // AutoAWQ's "gemm" layout.
  std::vector<TestTensor> Awq(const std::string& module) const {
    constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    std::vector<uint32_t> q(inputs * outputs / 8);
    std::vector<uint32_t> z(groups * outputs / 8);
    for (int64_t block = 0; block < outputs / 8; ++block) {
      for (int i = 0; i < 8; ++i) {
        const int64_t n = block * 8 + kOrder[i];
        for (int64_t k = 0; k < inputs; ++k) {
          q[k * (outputs / 8) + block] |= values[n * inputs + k] << (4 * i);
        }
        for (int64_t g = 0; g < groups; ++g) {
          z[g * (outputs / 8) + block] |= zeros[g * outputs + n] << (4 * i);
        }
      }
    }
    return {{module + ".qweight", "I32", {inputs, outputs / 8}, Text(q)},
            {module + ".qzeros", "I32", {groups, outputs / 8}, Text(z)},
            {module + ".scales", "F16", {groups, outputs}, Text(scales)}};
  }

  int64_t outputs, inputs, groups;
  int bits;
  std::vector<uint32_t> values;   // [outputs][inputs]
  std::vector<uint32_t> zeros;    // [groups][outputs]
  std::vector<uint16_t> scales;   // [groups][outputs]
  std::vector<int32_t> group_of;  // [inputs]
};

constexpr char kModule[] = "model.layers.1.mlp.up_proj";

// The tensors of LlamaTensors() with those of kModule, [24, 16], replaced.
std::vector<TestTensor> WithModule(std::vector<TestTensor> module) {
  std::vector<TestTensor> tensors = LlamaTensors();
  std::erase_if(tensors, [](const TestTensor& t) {
    return t.name == std::string(kModule) + ".weight";
  });
  tensors.insert(tensors.end(), module.begin(), module.end());
  return tensors;
}

absl::StatusOr<ModelWeights> Load(const std::vector<TestTensor>& tensors,
                                  const json& quantization) {
  ModelDir dir;
  json config = LlamaConfigJson();
  config["quantization_config"] = quantization;
  dir.Write("config.json", config.dump());
  dir.Write("model.safetensors", Safetensors(tensors));
  const auto loaded = LoadModelConfig(dir.path());
  if (!loaded.ok()) return loaded.status();
  return LoadModelWeights(dir.path(), *loaded);
}

void ExpectReads(const ModelWeights& weights, const Quantized& expected) {
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
      const Quantized q(24, 16, group_size, bits, 1);
      const json config = {{"quant_method", "gptq"},
                           {"bits", bits},
                           {"group_size", group_size},
                           {"sym", false}};
      auto weights = Load(WithModule(q.Gptq(kModule, 1, true)), config);
      ASSERT_TRUE(weights.ok()) << weights.status();
      EXPECT_EQ(weights->layers[1].up_proj.encoding, WeightEncoding::kGptq);
      EXPECT_EQ(weights->layers[0].up_proj.encoding, WeightEncoding::kPlain);
      ExpectReads(*weights, q);
      weights = Load(WithModule(q.Gptq(kModule, 1, false)), config);
      ASSERT_TRUE(weights.ok()) << weights.status();
      ExpectReads(*weights, q);
    }
  }
}

TEST(GroupBlocksTest, GptqGroupsMayBeInAnyOrder) {
  Quantized q(24, 16, 8, 4, 2);
  std::mt19937 random(3);
  std::shuffle(q.group_of.begin(), q.group_of.end(), random);
  const auto weights =
      Load(WithModule(q.Gptq(kModule, 1, true)), {{"quant_method", "gptq"},
                                                  {"bits", 4},
                                                  {"group_size", 8},
                                                  {"desc_act", true}});
  ASSERT_TRUE(weights.ok()) << weights.status();
  ExpectReads(*weights, q);
}

TEST(GroupBlocksTest, GptqOfTheSecondFormatStoresZerosAsTheyAre) {
  const Quantized q(24, 16, 8, 4, 4);
  const auto weights = Load(WithModule(q.Gptq(kModule, 0, true)),
                            {{"quant_method", "gptq"},
                             {"bits", 4},
                             {"group_size", 8},
                             {"checkpoint_format", "gptq_v2"}});
  ASSERT_TRUE(weights.ok()) << weights.status();
  ExpectReads(*weights, q);
}

TEST(GroupBlocksTest, OneGroupMayBeTheWholeMatrix) {
  const Quantized q(24, 16, 16, 4, 5);
  const auto weights =
      Load(WithModule(q.Gptq(kModule, 1, true)),
           {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", -1}});
  ASSERT_TRUE(weights.ok()) << weights.status();
  ExpectReads(*weights, q);
}

TEST(GroupBlocksTest, ReadsAwq) {
  const Quantized q(24, 16, 8, 4, 6);
  for (const char* const version : {"gemm", "GEMM"}) {
    const auto weights =
        Load(WithModule(q.Awq(kModule)), {{"quant_method", "awq"},
                                          {"bits", 4},
                                          {"group_size", 8},
                                          {"version", version},
                                          {"zero_point", true}});
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(weights->layers[1].up_proj.encoding, WeightEncoding::kAwq);
    ExpectReads(*weights, q);
  }
}

TEST(GroupBlocksTest, BrokenModulesNameFileAndTensor) {
  const Quantized q(24, 16, 8, 4, 7);
  const json gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 8}};
  for (size_t i = 0; i < 4; ++i) {
    std::vector<TestTensor> module = q.Gptq(kModule, 1, true);
    std::swap(module[i].shape.front(), module[i].shape.back());
    module[i].shape.push_back(1);
    auto weights = Load(WithModule(module), gptq);
    EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        weights.status().message(),
        AllOf(HasSubstr("model.safetensors"), HasSubstr(module[i].name)));

    module = q.Gptq(kModule, 1, true);
    module[i].dtype = module[i].dtype == "I32" ? "F32" : "I16";
    weights = Load(WithModule(module), gptq);
    EXPECT_FALSE(weights.ok());
    EXPECT_THAT(
        weights.status().message(),
        AllOf(HasSubstr("model.safetensors"), HasSubstr(module[i].name)));

    // Without the words it is a plain matrix, which is not there; without the
    // index, groups follow each other.
    module = q.Gptq(kModule, 1, true);
    const std::string name = i == 0 ? std::string(kModule) : module[i].name;
    module.erase(module.begin() + i);
    weights = Load(WithModule(module), gptq);
    EXPECT_EQ(weights.ok(), i == 3);
    if (i < 3) {
      EXPECT_EQ(weights.status().code(), absl::StatusCode::kNotFound);
      EXPECT_THAT(weights.status().message(), HasSubstr(name));
    }
  }
  for (const int32_t group : {-1, 2}) {
    Quantized bad = q;
    bad.group_of[7] = group;
    const auto weights = Load(WithModule(bad.Gptq(kModule, 1, true)), gptq);
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
      {{{"quant_method", "fp8"}, {"bits", 8}}, "quant_method"},
      {{{"quant_method", "gptq"}, {"bits", 3}}, "bits"},
      {{{"quant_method", "gptq"}, {"bits", 4}, {"checkpoint_format", "marlin"}},
       "checkpoint_format"},
      {{{"quant_method", "awq"}, {"bits", 8}}, "bits"},
      {{{"quant_method", "awq"}, {"bits", 4}, {"version", "gemv"}}, "version"},
  };
  for (const auto& [quantization, field] : unknown) {
    const auto weights = Load(LlamaTensors(), quantization);
    EXPECT_EQ(weights.status().code(), absl::StatusCode::kUnimplemented)
        << quantization;
    EXPECT_THAT(weights.status().message(),
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
    const auto weights = Load(LlamaTensors(), quantization);
    EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument)
        << quantization;
    EXPECT_THAT(weights.status().message(), HasSubstr("quantization_config"));
  }
}

}  // namespace
}  // namespace baton::engine
