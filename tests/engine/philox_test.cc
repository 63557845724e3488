#include "engine/philox.h"

#include <cmath>

#include <gtest/gtest.h>

namespace baton::engine {
namespace {

using Counter = std::array<uint32_t, 4>;

// Known answers published with Random123 (kat_vectors, "philox4x32 10").
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                       {0xa4093822, 0x299f31d0}),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(UniformDrawTest, UsesAllOfSeedAndIndexAndStaysBelowOne) {
  EXPECT_EQ(UniformDraw(1, 2), UniformDraw(1, 2));
  EXPECT_NE(UniformDraw(1, 2), UniformDraw(1, 3));
  EXPECT_NE(UniformDraw(1, 2), UniformDraw(uint64_t{1} << 32 | 1, 2));
  EXPECT_NE(UniformDraw(1, 2), UniformDraw(1, uint64_t{1} << 32 | 2));
  double sum = 0.0;
  for (uint64_t i = 0; i < 10000; ++i) {
    const double u = UniformDraw(42, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  // Five standard deviations of a mean of 10000.
  EXPECT_NEAR(sum / 10000, 0.5, 5.0 / std::sqrt(12.0 * 10000));
}

}  // namespace
}  // namespace baton::engine
