// Which part of a model each rank has, and what ranks cannot share.
#include "engine/cuda/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/latent_config.h"

namespace baton::engine::cuda {
namespace {

TEST(ShardTest, SharesExpertsByTheirOutputs) {
  ModelConfig config;
  config.architecture = Architecture::kQwen3Moe;
  config.num_heads = config.num_kv_heads = 4;
  config.hidden_size = 96;
  config.experts.count = 40;
  config.experts.per_token = 8;
  config.experts.intermediate_size = 34;
  EXPECT_TRUE(CheckShards(config, 2).ok());
  EXPECT_EQ((Shard{1, 2}.ExpertIntermediate(config)), 17);
  EXPECT_THAT(CheckShards(config, 4).message(),
              testing::HasSubstr("moe_intermediate_size 34"));
  config.architecture = Architecture::kMixtral;
  EXPECT_THAT(CheckShards(config, 4).message(),
              testing::HasSubstr(" intermediate_size 34"));
  // Shared ones count.
  config.experts.per_token = 31;
  config.experts.shared = 1;
  EXPECT_TRUE(CheckShards(config, 1).ok());
  config.experts.per_token = 32;
  absl::Status status = CheckShards(config, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), testing::HasSubstr("num_experts_per_tok"));
  config.experts.per_token = 31;
  config.experts.count = 1024;
  status = CheckShards(config, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), testing::HasSubstr("at most 1024"));
}

TEST(ShardTest, SaysWhatRanksCannotShare) {
  ModelConfig config;
  config.num_heads = 12;
  config.num_kv_heads = 4;
  config.hidden_size = 96;
  config.intermediate_size = 100;
  config.vocab_size = 10;
  EXPECT_TRUE(CheckShards(config, 1).ok());
  EXPECT_TRUE(CheckShards(config, 4).ok());
  const absl::Status heads = CheckShards(config, 3);
  EXPECT_EQ(heads.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(heads.message(), testing::HasSubstr("num_key_value_heads 4"));
  config.num_kv_heads = 12;
  EXPECT_THAT(CheckShards(config, 3).message(),
              testing::HasSubstr("intermediate_size 100"));
  config.intermediate_size = 99;
  config.hidden_size = 95;
  EXPECT_THAT(CheckShards(config, 3).message(),
              testing::HasSubstr("hidden_size 95"));
  // The last rank has less of the vocabulary.
  EXPECT_EQ((Shard{2, 3}.Vocabulary(config)), 4);
  EXPECT_EQ((Shard{2, 3}.Heads(config)), 4);
}

// Their heads are shared out, and what those read is everybody's.
TEST(ShardTest, LatentAttentionHasItsKeyOnAllRanks) {
  ModelConfig config;
  config.architecture = Architecture::kDeepseekV3;
  config.num_heads = 12;
  config.hidden_size = 96;
  config.latent.rank = 512;
  config.latent.rope_dim = 64;
  config.latent.nope_dim = config.latent.value_dim = 128;
  SetLatentHeads(config);
  EXPECT_TRUE(CheckShards(config, 4).ok());
  EXPECT_EQ((Shard{3, 4}.Heads(config)), 3);
  EXPECT_EQ((Shard{3, 4}.KvHeads(config)), 1);
  const absl::Status heads = CheckShards(config, 8);
  EXPECT_EQ(heads.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(heads.message(), testing::HasSubstr("num_attention_heads 12"));

  KvLayout layout;
  layout.num_layers = 2;
  layout.num_kv_heads = config.num_kv_heads;
  layout.head_dim = config.head_dim;
  layout.shared_value_dim = config.latent.rank;
  EXPECT_EQ(ShardLayout(layout, {3, 4}).page_bytes(), layout.page_bytes());
  EXPECT_EQ(BlockBytesOfAll(layout, 4), 4 * layout.block_bytes());
  layout.shared_value_dim = 0;
  layout.num_kv_heads = 4;
  EXPECT_EQ(ShardLayout(layout, {3, 4}).page_bytes(), layout.page_bytes() / 4);
  EXPECT_EQ(BlockBytesOfAll(layout, 4), layout.block_bytes());
}

}  // namespace
}  // namespace baton::engine::cuda
