// SwiGLU and GeGLU of every instruction set that this CPU has, against
// arithmetic in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/cpu/kernel_choice.h"
#include "engine/cpu/kernels.h"

namespace baton::engine::cpu::swiglu_test {
namespace {

// Lengths around the vector widths (4, 8, 16), and of a group of inputs.
constexpr int32_t kLengths[] = {1,  2,  3,  7,  8,  9,  15,
                                16, 17, 31, 32, 33, 64, 255};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class SwigluTest : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels() const { return *GetParam(); }
  std::vector<float> Row(int32_t n, float scale) {
    std::vector<float> row(n);
    for (float& x : row) x = scale * normal_(bits_);
    return row;
  }

 private:
  std::mt19937 bits_{11};
  std::normal_distribution<float> normal_;
};

INSTANTIATE_TEST_SUITE_P(
    Isa, SwigluTest,
    testing::ValuesIn(AvailableKernels().begin(), AvailableKernels().end()),
    [](const testing::TestParamInfo<const Kernels*>& info) {
      return std::string(info.param->name);
    });

TEST_P(SwigluTest, IsCloseToDouble) {
  for (const int32_t n : kLengths) {
    std::vector<float> gate = Row(n, 10.0f);
    const std::vector<float> up = Row(n, 1.0f);
    std::vector<float> y(n);
    kernels().swiglu(gate.data(), up.data(), n, y.data());
    for (int32_t i = 0; i < n; ++i) {
      const double expected =
          gate[i] / (1.0 + std::exp(-double{gate[i]})) * up[i];
      ASSERT_NEAR(y[i], expected, std::abs(expected) * 1e-5 + 1e-30);
    }
    kernels().swiglu(gate.data(), up.data(), n, gate.data());
    EXPECT_EQ(gate, y);
  }
}

TEST_P(SwigluTest, LimitedIsCloseToDouble) {
  for (const int32_t n : kLengths) {
    std::vector<float> gate = Row(n, 6.0f);
    const std::vector<float> up = Row(n, 6.0f);
    for (const float limit : {0.5f, 7.0f}) {
      std::vector<float> y(n);
      kernels().limited_swiglu(gate.data(), up.data(), limit, n, y.data());
      for (int32_t i = 0; i < n; ++i) {
        const double g = std::min(gate[i], limit);
        const double u = std::clamp(up[i], -limit, limit);
        const double expected = g / (1.0 + std::exp(-1.702 * g)) * (u + 1.0);
        ASSERT_NEAR(y[i], expected, std::abs(expected) * 1e-5 + 1e-6);
      }
    }
  }
}

TEST_P(SwigluTest, GegluIsCloseToDouble) {
  for (const int32_t n : kLengths) {
    std::vector<float> gate = Row(n, 3.0f);
    const std::vector<float> up = Row(n, 1.0f);
    std::vector<float> y(n);
    kernels().geglu(gate.data(), up.data(), n, y.data());
    for (int32_t i = 0; i < n; ++i) {
      // As the papers have it, with a tanh; far below zero that is less exact.
      const double x = gate[i];
      const double cubic =
          std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
      const double expected = 0.5 * x * (1 + std::tanh(cubic)) * up[i];
      ASSERT_NEAR(y[i], expected,
                  std::abs(expected) * 2e-5 + 1e-14 * std::abs(x * up[i]));
    }
    kernels().geglu(gate.data(), up.data(), n, gate.data());
    EXPECT_EQ(gate, y);
  }
}

TEST_P(SwigluTest, GegluOfExtremes) {
  const std::vector<float> gate = {-1e30f, -1000.0f, -12.0f, 0.0f,
                                   12.0f,  1000.0f,  1e30f,  kNaN};
  const std::vector<float> up(gate.size(), 1.0f);
  std::vector<float> y(gate.size());
  kernels().geglu(gate.data(), up.data(), static_cast<int32_t>(gate.size()),
                  y.data());
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(y[i], 0.0f, 1e-30);
  EXPECT_EQ(y[3], 0.0f);
  for (size_t i = 4; i < 7; ++i) EXPECT_FLOAT_EQ(y[i], gate[i]);
  EXPECT_TRUE(std::isnan(y[7]));
}

TEST_P(SwigluTest, LimitedOfExtremes) {
  const std::vector<float> gate = {-1000.0f, -1e30f, 0.0f, 1e30f, 1e30f, kNaN};
  const std::vector<float> up = {1.0f, 1.0f, 9.0f, 1e30f, -1e30f, 1.0f};
  std::vector<float> y(gate.size());
  kernels().limited_swiglu(gate.data(), up.data(), 7.0f,
                           static_cast<int32_t>(gate.size()), y.data());
  EXPECT_NEAR(y[0], 0.0f, 1e-30);
  EXPECT_NEAR(y[1], 0.0f, 1e-30);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_NEAR(y[3], 56.0f, 1e-2);
  EXPECT_NEAR(y[4], -42.0f, 1e-2);
  EXPECT_TRUE(std::isnan(y[5]));
}

TEST_P(SwigluTest, OfExtremes) {
  const std::vector<float> gate = {-1000.0f, -100.0f, -87.5f, 0.0f,
                                   87.5f,    100.0f,  1e30f,  kNaN};
  const std::vector<float> up(gate.size(), 1.0f);
  std::vector<float> y(gate.size());
  kernels().swiglu(gate.data(), up.data(), static_cast<int32_t>(gate.size()),
                   y.data());
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(y[i], 0.0f, 1e-30);
  EXPECT_EQ(y[3], 0.0f);
  for (size_t i = 4; i < 7; ++i) EXPECT_FLOAT_EQ(y[i], gate[i]);
  EXPECT_TRUE(std::isnan(y[7]));
}

}  // namespace
}  // namespace baton::engine::cpu::swiglu_test
