#include "engine/cpu/rope_table.h"

#include <cmath>

#include <gtest/gtest.h>

namespace baton::engine::cpu {
namespace {

ModelConfig Config(int32_t head_dim, double theta) {
  ModelConfig config;
  config.head_dim = head_dim;
  config.rope_theta = theta;
  return config;
}

TEST(RopeFrequenciesTest, Unscaled) {
  const std::vector<double> f = RopeFrequencies(Config(8, 10000.0));
  ASSERT_EQ(f.size(), 4u);
  EXPECT_DOUBLE_EQ(f[0], 1.0);
  EXPECT_NEAR(f[1], 0.1, 1e-15);
  EXPECT_NEAR(f[2], 0.01, 1e-15);
  EXPECT_NEAR(f[3], 0.001, 1e-15);
}

TEST(RopeFrequenciesTest, LinearDivides) {
  ModelConfig config = Config(4, 10000.0);
  config.rope_scaling.kind = RopeScaling::Kind::kLinear;
  config.rope_scaling.factor = 4.0;
  const std::vector<double> f = RopeFrequencies(config);
  EXPECT_DOUBLE_EQ(f[0], 0.25);
  EXPECT_NEAR(f[1], 0.0025, 1e-15);
}

// Llama 3.1: theta 500000, head_dim 128, factor 8, low 1, high 4, original
// 8192. Turns within 8192 positions: more than 4 keeps the frequency, fewer
// than 1 divides it by 8, between is blended.
TEST(RopeFrequenciesTest, Llama3) {
  ModelConfig config = Config(128, 500000.0);
  const std::vector<double> plain = RopeFrequencies(config);
  config.rope_scaling = {RopeScaling::Kind::kLlama3, 8.0, 1.0, 4.0, 8192.0};
  const std::vector<double> scaled = RopeFrequencies(config);
  int kept = 0, divided = 0, blended = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double turns = 8192.0 * plain[i] / (2.0 * M_PI);
    if (turns > 4.0) {
      EXPECT_EQ(scaled[i], plain[i]);
      ++kept;
    } else if (turns < 1.0) {
      EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 8.0);
      ++divided;
    } else {
      const double blend = (turns - 1.0) / 3.0;
      EXPECT_NEAR(scaled[i], plain[i] * ((1.0 - blend) / 8.0 + blend),
                  1e-12 * plain[i]);
      ++blended;
    }
  }
  EXPECT_GT(kept, 20);
  EXPECT_GT(divided, 20);
  EXPECT_GT(blended, 2);
}

// Qwen2.5 with the rope_scaling that its authors give: 128 ln(32768 / (2 pi t))
// / (2 ln 1e6) is 23.6 for t = 32 turns and 39.7 for 1.
TEST(RopeFrequenciesTest, Yarn) {
  ModelConfig config = Config(128, 1e6);
  const std::vector<double> plain = RopeFrequencies(config);
  config.rope_scaling.kind = RopeScaling::Kind::kYarn;
  config.rope_scaling.factor = 4.0;
  config.rope_scaling.original_max_position = 32768.0;
  std::vector<double> scaled = RopeFrequencies(config);
  for (int i = 0; i < 64; ++i) {
    const double share = i <= 23 ? 0.0 : i >= 40 ? 1.0 : (i - 23) / 17.0;
    EXPECT_NEAR(scaled[i] / plain[i], (1.0 - share) + share / 4.0, 1e-12) << i;
  }
  config.rope_scaling.truncate = false;
  scaled = RopeFrequencies(config);
  EXPECT_EQ(scaled[23], plain[23]);
  EXPECT_LT(scaled[24], plain[24]);
  EXPECT_GT(scaled[39], plain[39] / 4.0 * 1.0001);
  EXPECT_DOUBLE_EQ(scaled[40], plain[40] / 4.0);
  // A context in which no pair turns often, and one in which all do.
  config.rope_scaling.truncate = true;
  config.rope_scaling.original_max_position = 40.0;
  EXPECT_EQ(RopeFrequencies(config)[0], plain[0]);
  EXPECT_DOUBLE_EQ(RopeFrequencies(config)[9], plain[9] / 4.0);
  EXPECT_DOUBLE_EQ(RopeFrequencies(config)[63], plain[63] / 4.0);
  config.rope_scaling.original_max_position = 1e12;
  EXPECT_EQ(RopeFrequencies(config)[63], plain[63]);
}

TEST(RopeTableTest, TurnsAndStretches) {
  ModelConfig config = Config(16, 10000.0);
  config.rotary_dim = 8;
  config.rope_scaling.attention_factor = 1.25;
  RopeTable table(config);
  table.Ensure(10);
  const std::vector<double> f = RopeFrequencies(config);
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(table.Cos(7)[i], static_cast<float>(1.25 * std::cos(7 * f[i])));
    EXPECT_EQ(table.Sin(7)[i], static_cast<float>(1.25 * std::sin(7 * f[i])));
  }
  // What does not turn stays as long as it is.
  for (int32_t i = 4; i < 8; ++i) {
    EXPECT_EQ(table.Cos(7)[i], 1.0f);
    EXPECT_EQ(table.Sin(7)[i], 0.0f);
  }
}

TEST(RopeTableTest, HoldsCosAndSinOfEveryPosition) {
  const ModelConfig config = Config(16, 10000.0);
  const std::vector<double> f = RopeFrequencies(config);
  RopeTable table(config);
  table.Ensure(1);
  const float* const first = table.Cos(0);
  table.Ensure(3000);
  EXPECT_EQ(table.Cos(0), first);  // growing moves nothing
  for (const int32_t position : {0, 1, 255, 256, 257, 2999}) {
    for (int32_t i = 0; i < 8; ++i) {
      EXPECT_EQ(table.Cos(position)[i],
                static_cast<float>(std::cos(position * f[i])));
      EXPECT_EQ(table.Sin(position)[i],
                static_cast<float>(std::sin(position * f[i])));
    }
  }
}

}  // namespace
}  // namespace baton::engine::cpu
