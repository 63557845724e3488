#include "kv_transfer/checksum.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include "common/log.h"
#include "common/shared_memory.h"
#include "kv_transfer/hashed_copy.h"
#include "tests/kv_transfer/kv_fixture.h"

namespace baton::kv_transfer {
namespace {

std::vector<std::byte> Noise(size_t n, uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<std::byte> out(n);
  for (std::byte& b : out) b = static_cast<std::byte>(random() >> 7);
  return out;
}

// Memory of `n` bytes that begins `past` bytes behind a cache line's first, and
// what lies beside it.
class Aligned final {
 public:
  Aligned(size_t n, size_t past) : storage_(n + past + 256, kUntouched) {
    void* start = storage_.data() + 1;
    size_t room = storage_.size() - 1;
    CHECK(std::align(64, n + past, start, room) != nullptr);
    memory_ = absl::MakeSpan(static_cast<std::byte*>(start) + past, n);
  }

  absl::Span<std::byte> get() { return memory_; }
  bool TouchedBeside() const {
    const size_t first = memory_.data() - storage_.data();
    for (size_t i = 0; i < storage_.size(); ++i) {
      const bool inside = i >= first && i < first + memory_.size();
      if (!inside && storage_[i] != kUntouched) return true;
    }
    return false;
  }

 private:
  static constexpr std::byte kUntouched{0xaa};
  std::vector<std::byte> storage_;
  absl::Span<std::byte> memory_;
};

constexpr Stores kBothStores[] = {Stores::kCached, Stores::kStreaming};

TEST(ChecksumTest, DependsOnContentAndPlaceNotOnOrder) {
  const auto a = KvMemory::Content(1, 0, 0, 256);
  const auto b = KvMemory::Content(1, 0, 1, 256);
  EXPECT_EQ(PageChecksum(a, 0, 0) + PageChecksum(b, 0, 1),
            PageChecksum(b, 0, 1) + PageChecksum(a, 0, 0));
  EXPECT_NE(PageChecksum(a, 0, 0) + PageChecksum(b, 0, 1),
            PageChecksum(b, 0, 0) + PageChecksum(a, 0, 1));
  EXPECT_NE(PageChecksum(a, 0, 1), PageChecksum(a, 1, 0));
  auto altered = a;
  altered[17] ^= std::byte{1};
  EXPECT_NE(PageChecksum(a, 0, 0), PageChecksum(altered, 0, 0));
}

TEST(ChecksumTest, PiecesOfAnySizeGiveTheSameSum) {
  constexpr int64_t kPage = 1000;
  std::vector<std::byte> pages;
  uint64_t expected = 0;
  for (int32_t i = 0; i < 5; ++i) {
    const auto page = KvMemory::Content(3, 2, i, kPage);
    pages.insert(pages.end(), page.begin(), page.end());
    expected += PageChecksum(page, 2, 7 + i);
  }
  for (size_t piece : {1, 7, 999, 1000, 1001, 2500, 5000}) {
    PagesChecksum checksum(2, 7, kPage);
    EXPECT_FALSE(checksum.begun());
    for (size_t at = 0; at < pages.size(); at += piece) {
      checksum.Add(absl::MakeSpan(pages).subspan(at, piece));
      EXPECT_TRUE(checksum.begun());
    }
    EXPECT_EQ(checksum.sum(), expected) << piece;
  }
  PagesChecksum half(2, 7, kPage);
  half.Add(absl::MakeSpan(pages).first(10));
  EXPECT_DEATH(half.sum(), "Check failed");
}

TEST(HashedCopyTest, IsXxh3AndACopy) {
  if (HashedCopies().empty()) GTEST_SKIP() << "none on this CPU";
  // All numbers of stripes in the last block, and many blocks.
  std::vector<size_t> sizes = {12288, 65536, 262144 + 64};
  for (size_t n = 256; n <= 2048 + 1024; n += 64) sizes.push_back(n);
  for (size_t n : sizes) {
    for (size_t past : {0, 1, 8, 63}) {
      const std::vector<std::byte> noise = Noise(n + past, n + past);
      const ByteSpan from = absl::MakeConstSpan(noise).subspan(past);
      for (uint64_t seed : {uint64_t{0}, uint64_t{7}, ~uint64_t{0} - n}) {
        const uint64_t expected =
            XXH3_64bits_withSeed(from.data(), from.size(), seed);
        for (size_t i = 0; i < HashedCopies().size(); ++i) {
          for (Stores stores : kBothStores) {
            Aligned to(n, 0);
            ASSERT_TRUE(CanHashCopy(to.get().data(), n));
            const uint64_t sum = HashedCopies()[i](from.data(), to.get().data(),
                                                   n, seed, stores);
            FinishStreaming();
            ASSERT_EQ(sum, expected) << n << ", copy " << i;
            ASSERT_EQ(std::memcmp(to.get().data(), from.data(), n), 0);
            ASSERT_FALSE(to.TouchedBeside()) << n << ", copy " << i;
          }
        }
      }
    }
  }
}

TEST(HashedCopyTest, RefusesWhatItDoesNotDo) {
  Aligned to(1024, 0);
  EXPECT_TRUE(CanHashCopy(to.get().data(), 256));
  EXPECT_FALSE(CanHashCopy(to.get().data(), 192));  // hashed in another way
  EXPECT_FALSE(CanHashCopy(to.get().data(), 300));
  EXPECT_FALSE(CanHashCopy(to.get().data() + 32, 256));
}

TEST(CopiedChecksumTest, CopiesAndSumsPagesAndPiecesOfAnySize) {
  for (int64_t page : {64, 192, 256, 1000, 12288, 40000}) {
    const size_t total = 5 * page;
    const std::vector<std::byte> from = Noise(total, page);
    uint64_t expected = 0;
    for (int32_t i = 0; i < 5; ++i) {
      expected += PageChecksum(
          absl::MakeConstSpan(from).subspan(i * page, page), 2, 7 + i);
    }
    for (size_t past : {0, 16}) {
      for (int64_t piece : {page / 3, page - 1, page, page + 64, 5 * page}) {
        for (Stores stores : kBothStores) {
          Aligned to(total, past);
          PagesChecksum checksum(2, 7, page);
          for (size_t at = 0; at < total; at += piece) {
            const ByteSpan part = absl::MakeConstSpan(from).subspan(at, piece);
            checksum.AddCopied(part, to.get().subspan(at, piece), stores);
          }
          EXPECT_EQ(checksum.sum(), expected) << page << " by " << piece;
          ASSERT_EQ(std::memcmp(to.get().data(), from.data(), total), 0)
              << page << " by " << piece;
          EXPECT_FALSE(to.TouchedBeside()) << page << " by " << piece;
        }
      }
    }
  }
}

// Another process that writes to the source all the time changes what is
// stored, but what is summed is what is stored: whoever compares sums notices.
TEST(CopiedChecksumTest, SumsWhatIsStoredWhateverThePeerDoes) {
  constexpr int64_t kPage = 12288, kPages = 8;
  constexpr size_t kTotal = kPage * kPages;
  absl::StatusOr<SharedMemory> shared = SharedMemory::Create(kTotal, "a test");
  ASSERT_TRUE(shared.ok()) << shared.status();
  const absl::Span<std::byte> from = shared->memory();
  const pid_t writer = fork();
  ASSERT_GE(writer, 0);
  if (writer == 0) {
    volatile std::byte* const bytes = from.data();
    for (unsigned round = 1;; ++round) {
      for (size_t i = 0; i < kTotal; i += 8) {
        bytes[i] = static_cast<std::byte>(round);
      }
    }
  }
  int changed = 0;
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  // Page by page and in pieces that are no pages.
  for (int round = 0; changed < 50 && absl::Now() < deadline; ++round) {
    Aligned to(kTotal, 0);
    const std::vector<std::byte> before(from.begin(), from.end());
    PagesChecksum checksum(0, 0, kPage);
    const size_t piece = round % 2 == 0 ? kTotal : kPage - 64;
    for (size_t at = 0; at < kTotal; at += piece) {
      checksum.AddCopied(from.subspan(at, piece), to.get().subspan(at, piece),
                         kBothStores[round / 2 % 2]);
    }
    uint64_t stored = 0;
    for (int64_t i = 0; i < kPages; ++i) {
      stored += PageChecksum(to.get().subspan(i * kPage, kPage), 0, i);
    }
    EXPECT_EQ(checksum.sum(), stored) << round;
    changed += std::memcmp(before.data(), to.get().data(), kTotal) != 0;
  }
  kill(writer, SIGKILL);
  waitpid(writer, nullptr, 0);
  EXPECT_EQ(changed, 50) << "the writer did not get to write";
}

}  // namespace
}  // namespace baton::kv_transfer
