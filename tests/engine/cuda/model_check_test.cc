// Which models the CUDA backend runs, and what it says of others.
#include "engine/cuda/model_check.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/cuda/latent_attention.h"
#include "engine/latent_config.h"

namespace baton::engine::cuda {
namespace {

using testing::HasSubstr;

// A block's memory of Hopper, of Ampere's A100, and of Ada's L40S.
constexpr int64_t kHopperBytes = 227 << 10;
constexpr int64_t kAmpereBytes = 163 << 10;
constexpr int64_t kAdaBytes = 99 << 10;

ModelConfig Dense() {
  ModelConfig config;
  config.hidden_size = 4096;
  config.num_layers = 2;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.intermediate_size = 14336;
  return config;
}

// As DeepSeek-V3 has it.
ModelConfig Latent() {
  ModelConfig config = Dense();
  config.architecture = Architecture::kDeepseekV3;
  config.num_heads = 128;
  config.latent.rank = 512;
  config.latent.rope_dim = 64;
  config.latent.nope_dim = config.latent.value_dim = 128;
  SetLatentHeads(config);
  return config;
}

absl::Status Check(const ModelConfig& config, int64_t shared_bytes,
                   KvDtype dtype = KvDtype::kBf16, int32_t ranks = 1) {
  KvLayout layout;
  layout.num_layers = config.num_layers;
  layout.num_kv_heads = config.num_kv_heads;
  layout.head_dim = config.head_dim;
  layout.shared_value_dim = config.latent.rank;
  layout.dtype = dtype;
  DeviceProperties device;
  device.name = "a chip";
  device.shared_bytes_per_block = shared_bytes;
  return CheckModel(config, layout, ranks, device);
}

std::string Said(const absl::Status& status, absl::StatusCode code) {
  EXPECT_EQ(status.code(), code) << status;
  return std::string(status.message());
}

TEST(ModelCheckTest, TakesWhatThereAreKernelsFor) {
  EXPECT_TRUE(Check(Dense(), kAdaBytes).ok());
  EXPECT_TRUE(Check(Dense(), kAdaBytes, KvDtype::kFp8, 8).ok());
  EXPECT_TRUE(Check(Latent(), kHopperBytes).ok());
  EXPECT_TRUE(Check(Latent(), kAmpereBytes, KvDtype::kInt8).ok());
  EXPECT_TRUE(Check(Latent(), kAmpereBytes, KvDtype::kFp8).ok());
  EXPECT_TRUE(Check(Latent(), kHopperBytes, KvDtype::kBf16, 8).ok());
}

TEST(ModelCheckTest, SaysWhatABlocksMemoryIsTooSmallFor) {
  constexpr auto kCode = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(Said(Check(Latent(), kAmpereBytes), kCode),
              testing::AllOf(
                  HasSubstr("kv_lora_rank: keys of 576 elements take 193024"),
                  HasSubstr("a chip"), HasSubstr("kv_dtype int8 takes less")));
  EXPECT_THAT(Said(Check(Latent(), kAdaBytes, KvDtype::kInt8), kCode),
              testing::Not(HasSubstr("takes less")));
  ModelConfig long_heads = Dense();
  long_heads.head_dim = 256;
  EXPECT_THAT(Said(Check(long_heads, kAdaBytes), kCode),
              HasSubstr("head_dim: 256 elements take"));
}

TEST(ModelCheckTest, SaysWhatThereAreNoKernelsFor) {
  constexpr auto kCode = absl::StatusCode::kUnimplemented;
  ModelConfig config = Dense();
  config.head_dim = 144;
  EXPECT_THAT(Said(Check(config, kHopperBytes), kCode), HasSubstr("for 144"));
  config = Dense();
  config.num_heads = 65;
  config.num_kv_heads = 1;
  EXPECT_THAT(Said(Check(config, kHopperBytes), kCode),
              HasSubstr("65 heads share one"));
  config = Latent();
  config.latent.rank = 256;
  SetLatentHeads(config);
  EXPECT_THAT(Said(Check(config, kHopperBytes), kCode),
              HasSubstr("kv_lora_rank: the cuda backend has no kernel for 256 "
                        "beside qk_rope_head_dim 64"));
  config = Latent();
  config.experts.count = 512;
  config.experts.groups = 64;
  EXPECT_THAT(Said(Check(config, kHopperBytes), kCode),
              HasSubstr("n_group: the cuda backend takes at most 32"));
}

// Queries of a tile fill blocks.
TEST(ModelCheckTest, TilesOfLatentAttentionAreWholeBlocks) {
  for (int32_t heads = 1; heads <= 130; ++heads) {
    const int32_t rows = LatentTileRows(heads);
    EXPECT_EQ(rows * heads % kLatentQueries, 0) << heads;
    EXPECT_EQ(LatentBlocks(heads, rows), rows * heads / kLatentQueries);
  }
  EXPECT_EQ(LatentTileRows(128), 1);
  EXPECT_EQ(LatentTileRows(16), 2);
  EXPECT_EQ(LatentTileRows(20), 8);
}

}  // namespace
}  // namespace baton::engine::cuda
