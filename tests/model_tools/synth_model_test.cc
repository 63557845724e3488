#include "model_tools/synth_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/float_convert.h"
#include "engine/model_config.h"
#include "engine/safetensors.h"
#include "engine/weights.h"
#include "model_tools/model_shapes.h"
#include "model_tools/model_tensors.h"
#include "model_tools/synth_tokenizer.h"
#include "tests/support/scratch_dir.h"

namespace baton::model_tools {
namespace {

namespace fs = std::filesystem;
using engine::DType;
using engine::ModelConfig;
using ::testing::HasSubstr;

class SynthModelTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = scratch_.path() + "/synth_model_test";
    fs::create_directory(root_);
    options_.shape = "tiny";
    options_.config = FindModelShape("tiny")->config;
    options_.num_threads = 1;
  }

  std::string Dir(const std::string& name) const { return root_ + "/" + name; }

  absl::StatusOr<SynthResult> Write(const std::string& name) {
    return WriteSynthModel(Dir(name), options_, [](int64_t, int64_t) {});
  }

  // File name -> content.
  std::map<std::string, std::string> Files(const std::string& name) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(Dir(name))) {
      std::ifstream in(entry.path(), std::ios::binary);
      files[entry.path().filename()] =
          std::string(std::istreambuf_iterator<char>(in), {});
    }
    return files;
  }

  std::vector<float> Values(const std::string& name,
                            const std::string& tensor) const {
    const auto set = engine::SafetensorsSet::Open(Dir(name));
    EXPECT_TRUE(set.ok()) << set.status();
    const engine::TensorView* view = (*set)->Find(tensor);
    EXPECT_NE(view, nullptr) << tensor;
    std::vector<float> values(view->num_elements());
    engine::ConvertToFloat(view->dtype, view->bytes, absl::MakeSpan(values));
    return values;
  }

  static double Deviation(absl::Span<const float> values) {
    double squares = 0;
    for (const float x : values) squares += x * x;
    return std::sqrt(squares / values.size());
  }

  test::ScratchDir scratch_;
  std::string root_;
  SynthOptions options_;
};

TEST_F(SynthModelTest, ReadsBackAsTheSameModel) {
  for (const ModelShape& shape : ModelShapes()) {
    options_.shape = shape.name;
    ShapeChanges small;
    small.layers = shape.config.layer_turns.empty() ? 2 : 5;
    small.hidden = 64;
    small.intermediate = 96;
    small.heads = 4;
    if (!shape.config.IsLatent()) small.kv_heads = 2;
    small.vocab = 300;
    options_.config = *ChangeShape(shape.config, small);
    // Hundreds say no more, and take as long.
    engine::ExpertsConfig& experts = options_.config.experts;
    experts.count = std::min(experts.count, 4 * experts.groups + 16);
    ASSERT_TRUE(Write(shape.name).ok());
    const auto config = engine::LoadModelConfig(Dir(shape.name));
    ASSERT_TRUE(config.ok()) << config.status();
    const engine::ModelConfig& wanted = options_.config;
    EXPECT_EQ(config->architecture, wanted.architecture);
    EXPECT_EQ(config->hidden_size, wanted.hidden_size);
    EXPECT_EQ(config->num_layers, wanted.num_layers);
    EXPECT_EQ(config->num_heads, wanted.num_heads);
    EXPECT_EQ(config->num_kv_heads, wanted.num_kv_heads);
    EXPECT_EQ(config->head_dim, wanted.head_dim);
    EXPECT_EQ(config->intermediate_size, wanted.intermediate_size);
    EXPECT_EQ(config->experts.count, wanted.experts.count);
    EXPECT_EQ(config->experts.per_token, wanted.experts.per_token);
    EXPECT_EQ(config->experts.intermediate_size,
              wanted.experts.intermediate_size);
    EXPECT_EQ(config->experts.normalized, wanted.experts.normalized);
    EXPECT_EQ(config->experts.shared, wanted.experts.shared);
    EXPECT_EQ(config->experts.score, wanted.experts.score);
    EXPECT_EQ(config->experts.choice_bias, wanted.experts.choice_bias);
    EXPECT_EQ(config->experts.scale, wanted.experts.scale);
    EXPECT_EQ(config->experts.groups, wanted.experts.groups);
    EXPECT_EQ(config->experts.chosen_groups, wanted.experts.chosen_groups);
    EXPECT_EQ(config->latent.rank, wanted.latent.rank);
    EXPECT_EQ(config->latent.query_rank, wanted.latent.query_rank);
    EXPECT_EQ(config->latent.nope_dim, wanted.latent.nope_dim);
    EXPECT_EQ(config->latent.value_dim, wanted.latent.value_dim);
    EXPECT_EQ(config->rope_interleaved, wanted.rope_interleaved);
    EXPECT_DOUBLE_EQ(config->ScoreScale(), wanted.ScoreScale());
    EXPECT_EQ(config->layer_has_experts, wanted.layer_has_experts);
    EXPECT_EQ(config->rotary_dim, wanted.rotary_dim);
    EXPECT_EQ(config->vocab_size, wanted.vocab_size);
    EXPECT_EQ(config->max_position, wanted.max_position);
    EXPECT_EQ(config->rms_norm_eps, wanted.rms_norm_eps);
    EXPECT_EQ(config->rope_theta, wanted.rope_theta);
    EXPECT_EQ(config->rope_scaling.kind, wanted.rope_scaling.kind);
    EXPECT_EQ(config->rope_scaling.factor, wanted.rope_scaling.factor);
    EXPECT_EQ(config->tie_word_embeddings, wanted.tie_word_embeddings);
    EXPECT_EQ(config->qkv_bias, wanted.qkv_bias);
    EXPECT_EQ(config->qk_norm, wanted.qk_norm);
    EXPECT_EQ(config->sliding_window, wanted.sliding_window);
    EXPECT_EQ(config->layer_turns, wanted.layer_turns);
    for (int32_t i = 0; i < wanted.num_layers; ++i) {
      EXPECT_EQ(config->LayerSlides(i), wanted.LayerSlides(i));
    }
    EXPECT_EQ(config->attention_sinks, wanted.attention_sinks);
    EXPECT_EQ(config->experts.bias, wanted.experts.bias);
    EXPECT_EQ(config->experts.router_bias, wanted.experts.router_bias);
    EXPECT_EQ(config->experts.swiglu_limit, wanted.experts.swiglu_limit);
    EXPECT_EQ(config->bos_token_id, kSynthBos);
    EXPECT_THAT(config->eos_token_ids, testing::ElementsAre(kSynthEos));
    const auto set = engine::SafetensorsSet::Open(Dir(shape.name));
    ASSERT_TRUE(set.ok()) << set.status();
    for (const TensorSpec& tensor : ListTensors(wanted)) {
      const engine::TensorView* view = (*set)->Find(tensor.name);
      ASSERT_NE(view, nullptr) << tensor.name;
      EXPECT_EQ(view->shape, tensor.shape) << tensor.name;
      EXPECT_EQ(view->dtype, DType::kBf16);
    }
    EXPECT_EQ((*set)->num_tensors(), ListTensors(wanted).size());
  }
}

TEST_F(SynthModelTest, ExpertsMayBeInMxfp4) {
  options_.mxfp4 = true;
  const absl::Status llama = Write("llama").status();
  EXPECT_EQ(llama.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(llama.message(), HasSubstr("mxfp4: is of gpt-oss, not of tiny"));

  options_.shape = "gpt-oss-20b";
  ShapeChanges small;
  small.layers = 2;
  small.hidden = 64;
  small.intermediate = 90;
  small.heads = 4;
  small.kv_heads = 2;
  small.vocab = 300;
  const ModelConfig whole = FindModelShape(options_.shape)->config;
  options_.config = *ChangeShape(whole, small);
  EXPECT_THAT(std::string(Write("odd").status().message()),
              HasSubstr("intermediate: 90 is no multiple of 32"));
  small.intermediate = 96;
  options_.config = *ChangeShape(whole, small);
  const auto result = Write("mxfp4");
  ASSERT_TRUE(result.ok()) << result.status();

  const auto config = engine::LoadModelConfig(Dir("mxfp4"));
  ASSERT_TRUE(config.ok()) << config.status();
  const auto weights = engine::LoadModelWeights(Dir("mxfp4"), *config);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const engine::WeightMatrix& up = weights->layers[1].experts[3].up_proj;
  EXPECT_EQ(up.encoding, engine::WeightEncoding::kMxfp4);
  std::vector<float> values(up.rows * up.columns);
  ReadRows(up, 0, up.rows, absl::MakeSpan(values));
  // As far as powers of two allow.
  EXPECT_NEAR(std::log2(Deviation(values) / 0.06), 0.0, 0.6);
  // But for the header.
  const auto size =
      static_cast<int64_t>(fs::file_size(Dir("mxfp4") + "/model.safetensors"));
  EXPECT_GT(size, result->bytes);
  EXPECT_LT(size, result->bytes + (16 << 10));
}

TEST_F(SynthModelTest, BytesDependOnTheOptionsOnly) {
  ShapeChanges wide;
  wide.hidden = 640;  // more elements than one thread takes at a time
  options_.config = *ChangeShape(options_.config, wide);
  ASSERT_TRUE(Write("one").ok());
  options_.num_threads = 3;
  ASSERT_TRUE(Write("three").ok());
  EXPECT_EQ(Files("one"), Files("three"));
  options_.seed = 2;
  ASSERT_TRUE(Write("seed2").ok());
  EXPECT_NE(Files("one").at("model.safetensors"),
            Files("seed2").at("model.safetensors"));
  EXPECT_EQ(Files("one").at("tokenizer.json"),
            Files("seed2").at("tokenizer.json"));
}

TEST_F(SynthModelTest, ShardsHoldTheSameTensors) {
  const absl::StatusOr<SynthResult> whole = Write("whole");
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->files, 1);
  EXPECT_EQ(whole->parameters, CountParameters(options_.config));
  EXPECT_EQ(whole->bytes, 2 * whole->parameters);
  options_.max_shard_bytes = 100 << 10;
  const absl::StatusOr<SynthResult> sharded = Write("sharded");
  ASSERT_TRUE(sharded.ok()) << sharded.status();
  EXPECT_GT(sharded->files, 1);
  const auto files = Files("sharded");
  EXPECT_EQ(files.count("model.safetensors"), 0u);
  EXPECT_EQ(files.count("model.safetensors.index.json"), 1u);
  for (const TensorSpec& tensor : ListTensors(options_.config)) {
    EXPECT_EQ(Values("whole", tensor.name), Values("sharded", tensor.name));
  }
}

TEST_F(SynthModelTest, ValuesAreSane) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    options_.dtype = dtype;
    ASSERT_TRUE(Write(engine::DTypeName(dtype)).ok());
    const std::string dir = engine::DTypeName(dtype);
    EXPECT_NEAR(Deviation(Values(dir, "model.layers.1.mlp.up_proj.weight")),
                0.06, 0.003);
    for (const float x : Values(dir, "model.norm.weight")) {
      EXPECT_NEAR(x, 1.0f, 0.1f);
    }
  }
}

// Greedy output picks the largest product with a row of the output head.
TEST_F(SynthModelTest, RowsOfUnprintableTokensAreSmall) {
  for (const bool tied : {true, false}) {
    options_.config.tie_word_embeddings = tied;
    const std::string dir = tied ? "tied" : "untied";
    ASSERT_TRUE(Write(dir).ok());
    const std::vector<float> head =
        Values(dir, tied ? "model.embed_tokens.weight" : "lm_head.weight");
    const auto hidden = static_cast<size_t>(options_.config.hidden_size);
    for (TokenId id = 0; id < options_.config.vocab_size; ++id) {
      const double size =
          Deviation(absl::MakeConstSpan(head).subspan(id * hidden, hidden));
      EXPECT_NEAR(size, IsPrintableSynthToken(id) ? 0.06 : 0.06 / 16,
                  IsPrintableSynthToken(id) ? 0.03 : 0.002)
          << id;
    }
    if (!tied) {
      const std::vector<float> embedding =
          Values(dir, "model.embed_tokens.weight");
      EXPECT_GT(Deviation(absl::MakeConstSpan(embedding).first(hidden)), 0.03);
    }
  }
}

TEST_F(SynthModelTest, NeverReplacesSomethingElse) {
  fs::create_directory(Dir("other"));
  std::ofstream(Dir("other") + "/letter.txt") << "dear";
  options_.replace = true;
  const auto other = Write("other");
  EXPECT_EQ(other.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(other.status().message(), HasSubstr(Dir("other")));
  EXPECT_EQ(Files("other").size(), 1u);
  std::ofstream(Dir("file")) << "dear";
  EXPECT_EQ(Write("file").status().code(), absl::StatusCode::kAlreadyExists);
  // Nor a directory in the place where it would work.
  fs::create_directory(Dir("model.partial"));
  std::ofstream(Dir("model.partial") + "/letter.txt") << "dear";
  EXPECT_EQ(Write("model").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Files("model.partial").size(), 1u);
}

TEST_F(SynthModelTest, MakesTheSameDirectoryOnce) {
  fs::create_directory(Dir("model"));
  absl::StatusOr<SynthResult> result = Write("model");  // was empty
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->existed);
  EXPECT_FALSE(fs::exists(Dir("model.partial")));
  result = Write("model/");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->existed);
  const auto before = Files("model");
  options_.seed = 5;
  result = Write("model");
  EXPECT_EQ(result.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(result.status().message(), HasSubstr("--replace"));
  EXPECT_EQ(Files("model"), before);
  options_.replace = true;
  result = Write("model");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NE(Files("model"), before);
}

TEST_F(SynthModelTest, ClearsUpAfterItself) {
  // A call that did not come to its end.
  fs::create_directory(Dir("model.partial"));
  std::ofstream(Dir("model.partial") + "/synth.json") << "{}";
  std::ofstream(Dir("model.partial") + "/half") << "half";
  ASSERT_TRUE(Write("model").ok());
  EXPECT_EQ(Files("model").count("half"), 0u);
  const auto nowhere = Write("nowhere/model");
  EXPECT_EQ(nowhere.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(nowhere.status().message(), HasSubstr("nowhere/model.partial"));
}

TEST_F(SynthModelTest, SaysThatTheDiskIsTooSmall) {
  ShapeChanges huge;
  huge.layers = 1 << 12;
  huge.hidden = 1 << 16;
  huge.intermediate = 1 << 18;
  huge.vocab = 1 << 20;
  options_.config = *ChangeShape(options_.config, huge);
  const auto result = Write("huge");
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(result.status().message(), HasSubstr("no space"));
  EXPECT_FALSE(fs::exists(Dir("huge.partial")));
}

TEST_F(SynthModelTest, ReportsProgress) {
  std::vector<int64_t> done;
  ASSERT_TRUE(WriteSynthModel(Dir("model"), options_,
                              [&](int64_t bytes, int64_t total) {
                                EXPECT_LE(bytes, total);
                                done.push_back(bytes);
                              })
                  .ok());
  ASSERT_FALSE(done.empty());
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), 2 * CountParameters(options_.config));
}

}  // namespace
}  // namespace baton::model_tools
