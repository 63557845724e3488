#include "engine/cpu/ceilings.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/cpu/ceiling_loops.h"
#include "engine/cpu/kernel_choice.h"

namespace baton::engine::cpu {
namespace {

// Short: that there is a number, not which.
CeilingOptions Quick(absl::string_view isa, int32_t threads) {
  CeilingOptions options;
  options.isa = isa;
  options.num_threads = threads;
  options.time_each = absl::Milliseconds(1);
  options.memory_bytes = int64_t{20} << 20;
  return options;
}

TEST(CeilingsTest, AreFoundForEachSetOfKernels) {
  for (const Kernels* kernels : AvailableKernels()) {
    const auto ceilings = MeasureCeilings(Quick(kernels->name, 2));
    ASSERT_TRUE(ceilings.ok()) << ceilings.status();
    EXPECT_GT(ceilings->bf16_gflops, 0) << kernels->name;
    EXPECT_GT(ceilings->int8_gops, 0) << kernels->name;
    EXPECT_GT(ceilings->memory_gbs, 0) << kernels->name;
    // Far beyond any machine: the work was not left out.
    EXPECT_LT(ceilings->bf16_gflops, 1e7) << kernels->name;
    EXPECT_LT(ceilings->int8_gops, 1e7) << kernels->name;
    EXPECT_LT(ceilings->memory_gbs, 1e5) << kernels->name;
  }
}

TEST(CeilingsTest, RefuseASetThatThereIsNot) {
  const auto ceilings = MeasureCeilings(Quick("abacus", 1));
  EXPECT_EQ(ceilings.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(ceilings.status().message(), testing::HasSubstr("abacus"));
}

TEST(CeilingLoopsTest, SumsCountTheRounds) {
  // The sums begin at 0, 1, 2, ... in each lane; every round adds a product of
  // ones per multiplication.
  const CeilingLoops& loops = kPortableCeilingLoops;
  EXPECT_EQ(loops.bf16_operations % 12, 0);
  // (x + x) / 2 is x: 4 lanes of 0 + 1 + ... + 11.
  EXPECT_EQ(loops.bf16(7), 4 * 66.0f);
  alignas(64) uint64_t data[128] = {};
  data[5] = 40;
  data[127] = 2;
  EXPECT_EQ(loops.read(data, sizeof(data)), 42u);
}

}  // namespace
}  // namespace baton::engine::cpu
