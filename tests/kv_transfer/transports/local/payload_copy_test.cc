#include "kv_transfer/transports/local/payload_copy.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/log.h"
#include "kv_transfer/transports/local/piece_copy.h"

namespace baton::kv_transfer {
namespace {

using Stores = PayloadCopy::Stores;

std::vector<std::byte> Noise(size_t n, uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<std::byte> out(n);
  for (std::byte& b : out) b = static_cast<std::byte>(random() >> 7);
  return out;
}

// `bytes` cut into spans of about `length`, from behind to the front, with
// gaps: a span is never followed by the one that comes next to it in memory.
template <typename T>
std::vector<absl::Span<T>> Cut(absl::Span<T> memory, uint64_t bytes,
                               size_t length, std::minstd_rand& random) {
  std::vector<absl::Span<T>> out;
  size_t end = memory.size();
  while (bytes > 0) {
    const size_t n =
        std::min<uint64_t>(bytes, 1 + (length + random() % 97) % (2 * length));
    const size_t gap = 1 + random() % 5;
    CHECK_GE(end, n + gap);
    end -= n + gap;
    out.push_back(memory.subspan(end, n));
    bytes -= n;
  }
  return out;
}

class PayloadCopyTest : public ::testing::TestWithParam<Stores> {};

TEST_P(PayloadCopyTest, LandsAndShowsEveryByteInOrder) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    std::minstd_rand random(seed);
    random.discard(3);
    const uint64_t bytes = 1 + random() % 300000;
    const size_t source_length = 1 + random() % 40000;
    const size_t target_length = 1 + random() % 40000;
    SCOPED_TRACE(testing::Message()
                 << seed << ": " << bytes << " bytes, " << source_length
                 << " to " << target_length);
    // Room for what Cut leaves out.
    const std::vector<std::byte> from =
        Noise(10 * bytes + 3 * source_length + 100, seed);
    std::vector<std::byte> to(10 * bytes + 3 * target_length + 100,
                              std::byte{0xaa});
    const auto source =
        Cut(absl::MakeConstSpan(from), bytes, source_length, random);
    const auto target = Cut(absl::MakeSpan(to), bytes, target_length, random);
    std::vector<std::byte> sent;
    for (const ByteSpan& s : source)
      sent.insert(sent.end(), s.begin(), s.end());

    PayloadCopy copy(source, target);
    std::vector<std::byte> shown;
    uint64_t copied = 0;
    while (!copy.done()) {
      const uint64_t more =
          copy.Advance(1 + random() % 100000, GetParam(), [&](ByteSpan piece) {
            EXPECT_FALSE(piece.empty());
            shown.insert(shown.end(), piece.begin(), piece.end());
          });
      ASSERT_GT(more, 0u);
      copied += more;
      ASSERT_EQ(shown.size(), copied);
    }
    EXPECT_EQ(copied, bytes);
    EXPECT_TRUE(shown == sent);
    std::vector<std::byte> expected(to.size(), std::byte{0xaa});
    size_t at = 0;
    for (const absl::Span<std::byte>& t : target) {
      std::copy_n(sent.begin() + at, t.size(),
                  expected.begin() + (t.data() - to.data()));
      at += t.size();
    }
    EXPECT_TRUE(to == expected) << "also beside the landing";
  }
}

TEST_P(PayloadCopyTest, StopsAboutWhereItIsTold) {
  constexpr uint64_t kBytes = 1 << 20;
  const std::vector<std::byte> from = Noise(kBytes, 1);
  std::vector<std::byte> to(kBytes);
  PayloadCopy copy({absl::MakeConstSpan(from)}, {absl::MakeSpan(to)});
  const uint64_t copied = copy.Advance(200000, GetParam(), [](ByteSpan) {});
  EXPECT_GE(copied, 200000u);
  EXPECT_LT(copied, 300000u);
  EXPECT_FALSE(copy.done());
  EXPECT_TRUE(std::equal(to.begin(), to.begin() + copied, from.begin()));
  EXPECT_EQ(copy.Advance(kBytes, GetParam(), [](ByteSpan) {}), kBytes - copied);
  EXPECT_TRUE(copy.done());
  EXPECT_TRUE(to == from);
}

// A peer that writes to its memory at the wrong time changes what lands, but
// what is shown is what landed: whoever hashes it notices.
TEST_P(PayloadCopyTest, ShowsWhatLandsWhateverThePeerDoes) {
  constexpr uint64_t kBytes = 500000;
  std::vector<std::byte> from = Noise(kBytes, 1);
  std::vector<std::byte> to(kBytes + 3);
  std::vector<std::byte> shown;
  PayloadCopy copy({absl::MakeConstSpan(from)},
                   {absl::MakeSpan(to).subspan(3)});
  int changes = 0;
  while (!copy.done()) {
    copy.Advance(100000, GetParam(), [&](ByteSpan piece) {
      ++changes;
      for (std::byte& b : from) b ^= static_cast<std::byte>(changes);
      shown.insert(shown.end(), piece.begin(), piece.end());
    });
  }
  EXPECT_GT(changes, 5);
  EXPECT_TRUE(std::equal(shown.begin(), shown.end(), to.begin() + 3));
}

TEST_P(PayloadCopyTest, SizesMustAgree) {
  std::vector<std::byte> from(100), to(101);
  EXPECT_DEATH(PayloadCopy({absl::MakeConstSpan(from)}, {absl::MakeSpan(to)}),
               "larger than its payload");
  EXPECT_DEATH(
      PayloadCopy({absl::MakeConstSpan(from)}, {absl::MakeSpan(to).first(99)}),
      "smaller than its payload");
}

INSTANTIATE_TEST_SUITE_P(Stores, PayloadCopyTest,
                         ::testing::Values(Stores::kCached, Stores::kStreaming),
                         [](const auto& info) {
                           return info.param == Stores::kCached ? "Cached"
                                                                : "Streaming";
                         });

TEST(StreamingCopyTest, CopiesToBothAtAnyAlignment) {
  const std::vector<std::byte> from = Noise(2000, 3);
  for (size_t n : {0, 1, 15, 63, 64, 65, 127, 128, 129, 191, 1000}) {
    for (size_t offset = 0; offset < 70; ++offset) {
      std::vector<std::byte> cached(1200), streamed(1200);
      CopyAndStream(from.data() + offset / 3, cached.data() + offset / 7,
                    streamed.data() + offset, n);
      FinishStreaming();
      std::vector<std::byte> expected_cached(1200), expected_streamed(1200);
      std::copy_n(from.data() + offset / 3, n,
                  expected_cached.data() + offset / 7);
      std::copy_n(from.data() + offset / 3, n,
                  expected_streamed.data() + offset);
      ASSERT_TRUE(cached == expected_cached) << n << " at " << offset;
      ASSERT_TRUE(streamed == expected_streamed) << n << " at " << offset;
    }
  }
}

}  // namespace
}  // namespace baton::kv_transfer
