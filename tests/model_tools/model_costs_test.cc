#include "model_tools/model_costs.h"

#include <string>

#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

#include "model_tools/model_shapes.h"
#include "model_tools/model_tensors.h"

namespace baton::model_tools {
namespace {

using engine::KvDtype;
using engine::ModelConfig;

// 2 layers, width 8, 2 heads of 4, 1 KV head, MLP 16, 32 tokens.
ModelConfig SmallConfig() {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 8;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.intermediate_size = 16;
  config.vocab_size = 32;
  return config;
}

// q 8x8, k 4x8, v 4x8, o 8x8, gate and up 16x8, down 8x16.
constexpr int64_t kLayer = 64 + 32 + 32 + 64 + 3 * 128;
constexpr int64_t kHead = 32 * 8;

// Whether it is a matrix of each expert of a layer.
bool IsStacked(const TensorSpec& tensor) { return tensor.shape.size() == 3; }

// Which expert a tensor is of; -1: none, or all.
int32_t ExpertOf(const TensorSpec& tensor) {
  const std::string kExperts = ".experts.";
  const size_t at = tensor.name.find(kExperts);
  int32_t expert = -1;
  if (at != std::string::npos) {
    absl::string_view name = tensor.name;
    name.remove_prefix(at + kExperts.size());
    if (!absl::SimpleAtoi(name.substr(0, name.find('.')), &expert)) return -1;
  }
  return expert;
}

TEST(ModelCostsTest, CountsMatrices) {
  const ModelConfig config = SmallConfig();
  EXPECT_EQ(LayerMatrixParameters(config), 2 * kLayer);
  EXPECT_EQ(HeadParameters(config), kHead);
  // Of real ones, all but norms and biases; of experts, those of one token.
  for (const ModelShape& shape : ModelShapes()) {
    int64_t n = 0;
    for (const TensorSpec& tensor : ListTensors(shape.config)) {
      if (ExpertOf(tensor) >= shape.config.experts.per_token) continue;
      if (tensor.role == TensorRole::kMatrix ||
          tensor.role == TensorRole::kQueryKeyMatrix ||
          tensor.role == TensorRole::kResidualMatrix) {
        n += IsStacked(tensor) ? tensor.num_elements() / tensor.shape[0] *
                                     shape.config.experts.per_token
                               : tensor.num_elements();
      }
    }
    EXPECT_EQ(LayerMatrixParameters(shape.config), n) << shape.name;
  }
}

TEST(ModelCostsTest, AStepReadsTheExpertsThatItsTokensPassThrough) {
  ModelConfig config = SmallConfig();
  config.experts = {.count = 4, .per_token = 1, .intermediate_size = 16};
  config.layer_has_experts = {true, false};
  // An expert is as the other layer's MLP; the router is 4x8.
  constexpr int64_t kExpert = 3 * 128;
  EXPECT_EQ(LayerMatrixParameters(config), 2 * kLayer + 32);
  EXPECT_EQ(LayerMatrixBytes(config, WeightKind::kBf16),
            2 * (2 * kLayer + 3 * kExpert + 32));
  // The router is no int8 matrix.
  EXPECT_EQ(LayerMatrixBytes(config, WeightKind::kInt8),
            2 * (kLayer + 4 * 64) + 3 * (kExpert + 4 * 40) + 2 * 32);
  EXPECT_EQ(LayerBytesRead(config, WeightKind::kBf16, 1),
            2 * (2 * kLayer + 32));
  // The second token goes another way in 3 of 4 cases.
  EXPECT_EQ(LayerBytesRead(config, WeightKind::kBf16, 2),
            2 * (2 * kLayer + 0.75 * kExpert + 32));
  EXPECT_NEAR(LayerBytesRead(config, WeightKind::kBf16, 1000),
              LayerMatrixBytes(config, WeightKind::kBf16), 1e-6);
  // One that all share is read by the first token.
  config.experts.shared = 1;
  EXPECT_EQ(LayerMatrixParameters(config), 2 * kLayer + kExpert + 32);
  EXPECT_EQ(LayerMatrixBytes(config, WeightKind::kBf16),
            2 * (2 * kLayer + 4 * kExpert + 32));
  EXPECT_EQ(LayerBytesRead(config, WeightKind::kBf16, 2),
            2 * (2 * kLayer + 1.75 * kExpert + 32));
  const ModelConfig dense = SmallConfig();
  EXPECT_EQ(LayerBytesRead(dense, WeightKind::kInt4, 7),
            LayerMatrixBytes(dense, WeightKind::kInt4));
}

// Half a byte, and one for 32 inputs.
TEST(ModelCostsTest, ExpertsAloneAreInMxfp4) {
  ModelConfig config = SmallConfig();
  config.hidden_size = 64;
  config.experts = {.count = 4, .per_token = 1, .intermediate_size = 32};
  config.layer_has_experts = {true, false};
  EXPECT_EQ(LayerMatrixBytes(config, WeightKind::kBf16) -
                LayerMatrixBytes(config, WeightKind::kMxfp4),
            4 * 3 * 64 * 32 * (2 - 17 / 32.0));
  const ModelConfig dense = SmallConfig();
  EXPECT_EQ(LayerMatrixBytes(dense, WeightKind::kMxfp4),
            LayerMatrixBytes(dense, WeightKind::kBf16));
}

TEST(ModelCostsTest, BytesFollowTheKindOfWeights) {
  const ModelConfig config = SmallConfig();
  EXPECT_EQ(LayerMatrixBytes(config, WeightKind::kBf16), 2 * 2 * kLayer);
  EXPECT_EQ(HeadBytes(config, WeightKind::kBf16), 2 * kHead);
  // A scale per output, of which a layer has 8 + 4 + 4 + 8 + 16 + 16 + 8.
  EXPECT_EQ(LayerMatrixBytes(config, WeightKind::kInt8), 2 * (kLayer + 4 * 64));
  EXPECT_EQ(HeadBytes(config, WeightKind::kInt8), kHead + 4 * 32);
  // All inputs are one group.
  EXPECT_EQ(LayerMatrixBytes(config, WeightKind::kInt4),
            2 * (kLayer / 2 + 6 * 64));
  EXPECT_EQ(HeadBytes(config, WeightKind::kInt4), kHead / 2 + 6 * 32);
  EXPECT_EQ(HeadBytes(config, WeightKind::kMxfp4), 2 * kHead);
}

TEST(ModelCostsTest, OperationsCountMatricesHeadAndVisiblePositions) {
  const ModelConfig config = SmallConfig();
  // One token at position 9 sees 10; q_size is 8.
  EXPECT_EQ(SequenceOperations(config, {9, 1, 1}),
            2.0 * (2 * kLayer) + 2.0 * kHead + 4.0 * 8 * 2 * 10);
  // Three tokens see 1, 2 and 3; none is sampled.
  EXPECT_EQ(SequenceOperations(config, {0, 3, 0}),
            2.0 * (2 * kLayer) * 3 + 4.0 * 8 * 2 * (1 + 2 + 3));
  // Chunks of a prompt are together the prompt.
  EXPECT_EQ(SequenceOperations(config, {0, 100, 1}),
            SequenceOperations(config, {0, 60, 0}) +
                SequenceOperations(config, {60, 40, 1}));
}

TEST(ModelCostsTest, SlidingLayersSeeTheirWindow) {
  ModelConfig config = SmallConfig();
  config.sliding_window = 4;
  const double matrices = 2.0 * (2 * kLayer);
  EXPECT_EQ(SequenceOperations(config, {9, 1, 0}), matrices + 4.0 * 8 * 2 * 4);
  // They see 3, 4, 4.
  EXPECT_EQ(SequenceOperations(config, {2, 3, 0}),
            3 * matrices + 4.0 * 8 * 2 * (3 + 4 + 4));
  config.layer_slides = {true, false};
  EXPECT_EQ(SequenceOperations(config, {9, 1, 0}),
            matrices + 4.0 * 8 * (4 + 10));
}

TEST(ModelCostsTest, KvBytesAreThoseOfTheLayout) {
  ModelConfig config = SmallConfig();
  config.head_dim = 16;
  const engine::KvLayout layout =
      MakeKvLayout(config, KvDtype::kBf16, 16, /*num_blocks=*/4);
  EXPECT_EQ(layout.num_blocks, 4);
  // Key and value of 16 elements of 2 bytes, in 2 layers.
  EXPECT_EQ(SequenceKvBytes(config, layout, {100, 1, 1}), 100.0 * 2 * 2 * 32);
  EXPECT_EQ(SequenceKvBytes(config, layout, {0, 50, 1}), 0.0);
  config.sliding_window = 11;
  EXPECT_EQ(SequenceKvBytes(config, layout, {100, 1, 1}), 10.0 * 2 * 2 * 32);
}

TEST(ModelCostsTest, KindComesFromWhatAnEngineSays) {
  const auto of = [](const char* dtype) {
    engine::WeightsInfo weights;
    weights.dtype = dtype;
    return WeightKindOf(weights);
  };
  EXPECT_EQ(of("bf16"), WeightKind::kBf16);
  EXPECT_EQ(of("int8"), WeightKind::kInt8);
  EXPECT_EQ(of("mxfp4"), WeightKind::kMxfp4);
  EXPECT_EQ(of("int4-bf16"), WeightKind::kInt4);
  EXPECT_EQ(of("fp8-bf16"), WeightKind::kFp8);
  EXPECT_EQ(ParseWeightKind("mxfp4"), WeightKind::kMxfp4);
  EXPECT_EQ(ParseWeightKind("int5"), std::nullopt);
  EXPECT_STREQ(WeightKindName(WeightKind::kInt4), "int4");
  EXPECT_STREQ(WeightKindName(WeightKind::kFp8), "fp8");
}

TEST(ModelCostsTest, LatentAttentionReadsOneKey) {
  const ModelConfig config = FindModelShape("tiny-mla")->config;
  const SequenceStep step = {.before = 9, .tokens = 2, .sampled = 1};
  // Each of 4 heads with keys of 32 + 16 numbers and values of 32; the two
  // tokens see 10 and 11 positions, in 2 layers.
  const double attention = 2.0 * 4 * (48 + 32) * 21 * 2;
  EXPECT_DOUBLE_EQ(SequenceOperations(config, step),
                   4.0 * LayerMatrixParameters(config) +
                       2.0 * HeadParameters(config) + attention);
  const engine::KvLayout layout =
      MakeKvLayout(config, KvDtype::kBf16, /*block_size=*/16, /*num_blocks=*/1);
  EXPECT_DOUBLE_EQ(SequenceKvBytes(config, layout, step), 2.0 * 9 * 48 * 2);
}

}  // namespace
}  // namespace baton::model_tools
