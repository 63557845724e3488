#include "model_tools/model_shapes.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model_tools/model_tensors.h"

namespace baton::model_tools {
namespace {

using ::testing::HasSubstr;

// As the models' own pages and files count them; GLM's files have a layer more,
// which predicts further tokens (3,616,573,568 and 5,539,962,267 parameters).
TEST(ModelShapesTest, HaveAsManyParametersAsTheRealModels) {
  const std::map<std::string, int64_t> expected = {
      {"SmolLM2-135M", 134515008},
      {"SmolLM2-360M", 361821120},
      {"Qwen2.5-0.5B", 494032768},
      {"Qwen3-0.6B", 596049920},
      {"TinyLlama-1.1B", 1100048384},
      {"Llama-3.2-1B", 1235814400},
      {"Llama-3.2-3B", 3212749824},
      {"Mistral-7B", 7248023552},
      {"SmolLM3-3B", 3075098624},
      {"Phi-4", 14659507200},
      {"Llama-3.1-8B", 8030261248},
      {"Qwen3-30B-A3B", 30532122624},
      {"Mixtral-8x7B", 46702792704},
      {"GLM-4.5-Air", 106852251264},
      {"GLM-4.5", 352797829024},
      {"gpt-oss-20b", 20914757184},
      {"gpt-oss-120b", 116829156672},
      {"Gemma-3-270M", 268098176},
      {"Gemma-3-1B", 999885952},
      // Those of texts.
      {"Gemma-3-4B", 3880263168},
      {"Gemma-3-12B", 11766034176},
      {"Gemma-3-27B", 27009346304},
      {"DeepSeek-V2-Lite", 15706484224},
      // Without what predicts further tokens; of the last two their authors
      // give no more digits than 1.03T and, with that, 31.2B.
      {"DeepSeek-V3", 671026419200},
      {"Kimi-K2", 1026408232448},
      {"GLM-4.7-Flash", 29943393920}};
  for (const auto& [name, parameters] : expected) {
    const auto shape = FindModelShape(name);
    ASSERT_TRUE(shape.ok()) << shape.status();
    EXPECT_EQ(CountParameters(shape->config), parameters) << name;
  }
  // "tiny", "tiny-moe", "tiny-mla"
  EXPECT_EQ(ModelShapes().size(), expected.size() + 3);
}

TEST(ModelShapesTest, NamesDoNotDependOnCase) {
  ASSERT_TRUE(FindModelShape("llama-3.2-1b").ok());
  EXPECT_STREQ(FindModelShape("llama-3.2-1b")->name, "Llama-3.2-1B");
  const auto unknown = FindModelShape("GPT-7");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(unknown.status().message(), HasSubstr("SmolLM2-135M, "));
}

TEST(ModelShapesTest, TensorsHaveNamesOfTheirOwn) {
  for (const ModelShape& shape : ModelShapes()) {
    std::set<std::string> names;
    for (const TensorSpec& tensor : ListTensors(shape.config)) {
      EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
      EXPECT_GT(tensor.num_elements(), 0) << tensor.name;
    }
    EXPECT_EQ(names.count("lm_head.weight"),
              shape.config.tie_word_embeddings ? 0u : 1u)
        << shape.name;
  }
}

TEST(ChangeShapeTest, ChangesWhatIsAskedFor) {
  const engine::ModelConfig tiny = FindModelShape("tiny")->config;
  EXPECT_TRUE(ShapeChanges().empty());
  ShapeChanges changes;
  changes.layers = 7;
  changes.vocab = 1000;
  changes.tie_word_embeddings = false;
  EXPECT_FALSE(changes.empty());
  const auto changed = ChangeShape(tiny, changes);
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(changed->num_layers, 7);
  EXPECT_EQ(changed->vocab_size, 1000);
  EXPECT_FALSE(changed->tie_word_embeddings);
  EXPECT_EQ(changed->hidden_size, tiny.hidden_size);
}

TEST(ChangeShapeTest, KeepsLayersWithAndWithoutExperts) {
  const engine::ModelConfig glm = FindModelShape("GLM-4.5")->config;
  ShapeChanges changes;
  for (const auto& [layers, dense] : {std::pair(1, 0), {2, 1}, {9, 3}}) {
    changes.layers = layers;
    const auto changed = ChangeShape(glm, changes);
    ASSERT_TRUE(changed.ok()) << changed.status();
    for (int32_t i = 0; i < layers; ++i) {
      EXPECT_EQ(changed->LayerHasExperts(i), i >= dense) << layers << " " << i;
    }
  }
}

TEST(ChangeShapeTest, NamesTheWrongFlag) {
  const engine::ModelConfig tiny = FindModelShape("tiny")->config;
  const auto error = [&](auto ShapeChanges::*field, int32_t value) {
    ShapeChanges changes;
    changes.*field = value;
    return std::string(ChangeShape(tiny, changes).status().message());
  };
  EXPECT_THAT(error(&ShapeChanges::layers, 0), HasSubstr("--layers 0"));
  EXPECT_THAT(error(&ShapeChanges::vocab, 257), HasSubstr("--vocab 257"));
  EXPECT_THAT(error(&ShapeChanges::kv_heads, 3), HasSubstr("--kv-heads 3"));
  EXPECT_THAT(error(&ShapeChanges::head_dim, 17), HasSubstr("--head-dim 17"));
  EXPECT_THAT(error(&ShapeChanges::hidden, -1), HasSubstr("--hidden -1"));
  EXPECT_THAT(error(&ShapeChanges::max_position, 0),
              HasSubstr("--max-position 0"));
}

}  // namespace
}  // namespace baton::model_tools
