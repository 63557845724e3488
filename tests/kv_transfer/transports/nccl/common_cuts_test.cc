#include "kv_transfer/transports/nccl/common_cuts.h"

#include <cstddef>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::kv_transfer {
namespace {

using ::testing::ElementsAre;
using Spans = std::vector<absl::Span<std::byte>>;
using Lengths = std::vector<uint32_t>;

// The next bytes of `memory`, in spans of these lengths.
Spans SpansOf(std::vector<std::byte>& memory, const Lengths& lengths) {
  Spans spans;
  size_t at = 0;
  for (uint32_t length : lengths) {
    spans.push_back(absl::MakeSpan(memory).subspan(at, length));
    at += length;
  }
  return spans;
}

TEST(CommonCutsTest, CutsWhereEitherSideDoes) {
  std::vector<std::byte> memory(100);
  EXPECT_THAT(LengthsOf(CutAlike(SpansOf(memory, {100}), Lengths{100})),
              ElementsAre(100));
  EXPECT_THAT(LengthsOf(CutAlike(SpansOf(memory, {100}), Lengths{30, 70})),
              ElementsAre(30, 70));
  EXPECT_THAT(LengthsOf(CutAlike(SpansOf(memory, {30, 70}), Lengths{100})),
              ElementsAre(30, 70));
  EXPECT_THAT(LengthsOf(CutAlike(SpansOf(memory, {30, 70}), Lengths{30, 70})),
              ElementsAre(30, 70));
  EXPECT_THAT(
      LengthsOf(CutAlike(SpansOf(memory, {40, 60}), Lengths{10, 20, 70})),
      ElementsAre(10, 20, 10, 60));
}

TEST(CommonCutsTest, BothSidesComeToTheSameAndLoseNothing) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    constexpr uint32_t kBytes = 1000;
    const auto draw = [&] {
      Lengths lengths;
      for (uint32_t left = kBytes; left > 0;) {
        const uint32_t n = lengths.size() == 63 ? left : 1 + random() % left;
        lengths.push_back(n);
        left -= n;
      }
      return lengths;
    };
    const Lengths mine = draw(), theirs = draw();
    std::vector<std::byte> memory(kBytes), memory_there(kBytes);
    const Spans pieces = CutAlike(SpansOf(memory, mine), theirs);
    EXPECT_EQ(LengthsOf(pieces),
              LengthsOf(CutAlike(SpansOf(memory_there, theirs), mine)));
    EXPECT_LT(pieces.size(), mine.size() + theirs.size());
    size_t at = 0;
    for (absl::Span<std::byte> piece : pieces) {
      EXPECT_EQ(piece.data(), memory.data() + at);
      at += piece.size();
    }
    EXPECT_EQ(at, kBytes);
  }
}

TEST(CommonCutsDeathTest, SumsMustBeEqual) {
  std::vector<std::byte> memory(10);
  EXPECT_DEATH(CutAlike(SpansOf(memory, {10}), Lengths{9}), "shorter");
  EXPECT_DEATH(CutAlike(SpansOf(memory, {10}), Lengths{11}), "longer");
}

}  // namespace
}  // namespace baton::kv_transfer
