#include "kv_transfer/transports/local/payload_copy.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/log.h"

namespace baton::kv_transfer::payload_copy_test {
namespace {

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

void Copy(ByteSpan from, absl::Span<std::byte> to) {
  std::copy(from.begin(), from.end(), to.begin());
}

TEST(PayloadCopyTest, GivesEveryByteOnceAndInOrder) {
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
    std::vector<std::byte> given;
    uint64_t copied = 0;
    while (!copy.done()) {
      const uint64_t more = copy.Advance(
          1 + random() % 100000, [&](ByteSpan from, absl::Span<std::byte> to) {
            EXPECT_FALSE(from.empty());
            ASSERT_EQ(from.size(), to.size());
            given.insert(given.end(), from.begin(), from.end());
            Copy(from, to);
          });
      ASSERT_GT(more, 0u);
      copied += more;
      ASSERT_EQ(given.size(), copied);
    }
    EXPECT_EQ(copied, bytes);
    EXPECT_TRUE(given == sent);
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

TEST(PayloadCopyTest, StopsAboutWhereItIsTold) {
  constexpr uint64_t kBytes = uint64_t{8} << 20;
  const std::vector<std::byte> from = Noise(kBytes, 1);
  std::vector<std::byte> to(kBytes);
  PayloadCopy copy({absl::MakeConstSpan(from)}, {absl::MakeSpan(to)});
  const uint64_t copied = copy.Advance(2500000, Copy);
  EXPECT_GE(copied, 2500000u);
  EXPECT_LT(copied, 2500000u + (1 << 20));
  EXPECT_FALSE(copy.done());
  EXPECT_TRUE(std::equal(to.begin(), to.begin() + copied, from.begin()));
  EXPECT_EQ(to[copied], std::byte{0});
  EXPECT_EQ(copy.Advance(kBytes, Copy), kBytes - copied);
  EXPECT_TRUE(copy.done());
  EXPECT_TRUE(to == from);
}

TEST(PayloadCopyTest, SizesMustAgree) {
  std::vector<std::byte> from(100), to(101);
  EXPECT_DEATH(PayloadCopy({absl::MakeConstSpan(from)}, {absl::MakeSpan(to)}),
               "larger than its payload");
  EXPECT_DEATH(
      PayloadCopy({absl::MakeConstSpan(from)}, {absl::MakeSpan(to).first(99)}),
      "smaller than its payload");
}

}  // namespace
}  // namespace baton::kv_transfer::payload_copy_test
