// Hashes of pages on a device are xxHash's.
#include "engine/cuda/page_hash.h"

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tests/engine/cuda/device_fixture.h"

namespace baton::engine::cuda {
namespace {

class PageHashTest : public DeviceTest {
 protected:
  static std::vector<uint8_t> Bytes(int64_t count) {
    std::vector<uint8_t> bytes(count);
    uint32_t x = 12345;
    for (uint8_t& byte : bytes) {
      x = x * 1664525 + 1013904223;
      byte = static_cast<uint8_t>(x >> 24);
    }
    return bytes;
  }

  // Hashes of pages that lie in `cuts` runs each, which lie in the device's
  // memory in the opposite order, with gaps.
  void Check(int64_t page_bytes, int32_t pages,
             const std::vector<int64_t>& cuts, uint64_t seed) {
    SCOPED_TRACE(testing::Message() << page_bytes << " bytes, seed " << seed);
    ASSERT_EQ(std::accumulate(cuts.begin(), cuts.end(), int64_t{0}),
              page_bytes);
    constexpr int64_t kGap = 80;
    const std::vector<uint8_t> content = Bytes(pages * page_bytes);
    const int64_t room =
        pages * (page_bytes + kGap * static_cast<int64_t>(cuts.size()));
    std::vector<uint8_t> memory(room, 0xee);
    std::vector<HashRun> runs;
    std::vector<int32_t> first_run = {0};
    std::vector<int64_t> at;
    int64_t from = 0;
    int64_t end = room;
    for (int32_t page = 0; page < pages; ++page) {
      for (const int64_t bytes : cuts) {
        end -= bytes + kGap;
        at.push_back(end);
        std::copy_n(content.begin() + from, bytes, memory.begin() + end);
        from += bytes;
      }
      first_run.push_back(static_cast<int32_t>(at.size()));
    }
    const auto* const device = reinterpret_cast<std::byte*>(Put(memory));
    for (size_t i = 0; i < at.size(); ++i) {
      runs.push_back({device + at[i], cuts[i % cuts.size()]});
    }
    PageHashArgs args;
    args.runs = Put(runs);
    args.first_run = Put(first_run);
    args.pages = pages;
    args.page_bytes = page_bytes;
    args.first_seed = seed;
    args.hashes = Take<uint64_t>(pages + 1);
    RunPageHash(args, stream().handle());
    const auto hashes = Get(args.hashes, pages + 1);
    for (int32_t page = 0; page < pages; ++page) {
      EXPECT_EQ(hashes[page],
                XXH3_64bits_withSeed(content.data() + page * page_bytes,
                                     page_bytes, seed + page))
          << "page " << page;
    }
    EXPECT_EQ(hashes[pages], ~uint64_t{0}) << "written behind the last";
  }
};

TEST_F(PageHashTest, OfEachSizeAroundBlocks) {
  for (int64_t bytes = kShortestHashedPage; bytes <= 6 * 1024;
       bytes += kHashStripeBytes) {
    Check(bytes, 1, {bytes}, 0);
    if (HasFailure()) return;
  }
  Check(65536, 3, {65536}, 1);
}

TEST_F(PageHashTest, OfEachSeed) {
  for (const uint64_t seed : {uint64_t{1}, uint64_t{31} << 32,
                              (uint64_t{31} << 32) + 77, ~uint64_t{8}}) {
    Check(2048, 7, {2048}, seed);
  }
}

TEST_F(PageHashTest, OfPagesInPieces) {
  Check(2048, 5, {64, 1024, 896, 64}, 3);
  Check(1280, 6, {512, 64, 64, 640}, uint64_t{2} << 32);
  Check(5120, 2, std::vector<int64_t>(80, 64), 9);
}

TEST_F(PageHashTest, OfAHandOff) {
  if (!large()) GTEST_SKIP() << "for GPUs";
  // 2,048 tokens of a layer of an 8B model.
  Check(65536, 128, {65536}, uint64_t{5} << 32);
}

}  // namespace
}  // namespace baton::engine::cuda
