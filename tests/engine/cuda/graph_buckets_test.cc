#include "engine/cuda/graph_buckets.h"

#include <algorithm>
#include <set>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/cuda/attention.h"

namespace baton::engine::cuda {
namespace {

constexpr int64_t kManyPieces = 1 << 20;

struct Less {
  bool operator()(const GraphBucket& a, const GraphBucket& b) const {
    return std::tie(a.rows, a.full_spans, a.sliding_spans) <
           std::tie(b.rows, b.full_spans, b.sliding_spans);
  }
};

TEST(GraphBucketsTest, TheSmallestThatFits) {
  EXPECT_EQ(BucketFor(1, 1, 0, 256, kManyPieces), (GraphBucket{1, 1, 0}));
  EXPECT_EQ(BucketFor(3, 5, 0, 256, kManyPieces), (GraphBucket{4, 6, 0}));
  EXPECT_EQ(BucketFor(3, 7, 0, 256, kManyPieces), (GraphBucket{4, 8, 0}));
  EXPECT_EQ(BucketFor(16, 32, 2, 256, kManyPieces), (GraphBucket{16, 32, 2}));
  EXPECT_EQ(BucketFor(17, 33, 3, 256, kManyPieces), (GraphBucket{32, 40, 4}));
  EXPECT_EQ(BucketFor(250, 1, 0, 256, kManyPieces), (GraphBucket{256, 1, 0}));
}

TEST(GraphBucketsTest, EveryStepFitsInItsBucket) {
  for (int32_t rows = 1; rows <= 256; ++rows) {
    for (const int32_t spans : {1, 2, 3, 31, 33, 500}) {
      const auto bucket = BucketFor(rows, spans, spans, 256, kManyPieces);
      ASSERT_TRUE(bucket.has_value());
      EXPECT_GE(bucket->rows, rows);
      // A row is at most doubled, and from 16 on 15 at most are added.
      EXPECT_LE(bucket->rows, std::max(2 * rows - 1, 1));
      EXPECT_LT(bucket->rows - rows, 16);
      EXPECT_GE(bucket->full_spans, spans);
      // Likewise doubled, and from 8 on a quarter at most is added.
      EXPECT_LT(bucket->full_spans, 2 * spans);
      if (spans > 8) {
        EXPECT_LE(4 * bucket->full_spans, 5 * spans);
      }
      EXPECT_EQ(bucket->sliding_spans, bucket->full_spans);
    }
  }
}

TEST(GraphBucketsTest, NoneForWhatIsTooLarge) {
  EXPECT_FALSE(BucketFor(257, 1, 0, 1000, kManyPieces));
  EXPECT_FALSE(BucketFor(100, 1, 0, 96, kManyPieces));
  // 16 rows of 64 spans; 65 are 80.
  EXPECT_TRUE(BucketFor(16, 64, 0, 256, 1024));
  EXPECT_FALSE(BucketFor(16, 64, 0, 256, 1023));
  EXPECT_FALSE(BucketFor(16, 1, 65, 256, 1024));
}

TEST(GraphBucketsTest, AllThatStepsComeTo) {
  EXPECT_THAT(BucketsUpTo(3, 2 * kSpanPositions + 1, 0, 256, kManyPieces),
              ::testing::ElementsAre(GraphBucket{1, 1, 0}, GraphBucket{1, 2, 0},
                                     GraphBucket{1, 4, 0}, GraphBucket{2, 1, 0},
                                     GraphBucket{2, 2, 0}, GraphBucket{2, 4, 0},
                                     GraphBucket{4, 1, 0}, GraphBucket{4, 2, 0},
                                     GraphBucket{4, 4, 0}));
  // Rows of any length, alone and with a longest one, whose windows lie alike.
  for (const int32_t window : {0, 200, 1024, 4000}) {
    const auto all = BucketsUpTo(64, 9000, window, 256, 1 << 14);
    EXPECT_TRUE(std::is_sorted(
        all.begin(), all.end(),
        [](const auto& a, const auto& b) { return a.rows < b.rows; }));
    EXPECT_EQ(std::set(all.begin(), all.end(), Less()).size(), all.size());
    for (const int32_t rows : {1, 2, 5, 16, 17, 63, 64}) {
      for (int32_t position = 0; position < 9000; position += 7) {
        const auto bucket =
            BucketFor(rows, SpansOf(position, 0),
                      window > 0 ? SpansOf(position, window) : 0, 256, 1 << 14);
        if (!bucket) continue;
        EXPECT_THAT(all, ::testing::Contains(*bucket)) << position;
      }
    }
  }
  // No more rows, positions and pieces than that.
  EXPECT_THAT(
      BucketsUpTo(300, 1, 0, 32, kManyPieces),
      ::testing::ElementsAre(GraphBucket{1, 1, 0}, GraphBucket{2, 1, 0},
                             GraphBucket{4, 1, 0}, GraphBucket{8, 1, 0},
                             GraphBucket{16, 1, 0}, GraphBucket{32, 1, 0}));
  EXPECT_THAT(BucketsUpTo(2, 300, 0, 256, 2),
              ::testing::ElementsAre(GraphBucket{1, 1, 0}, GraphBucket{1, 2, 0},
                                     GraphBucket{2, 1, 0}));
}

TEST(GraphBucketsTest, FewBucketsInAll) {
  int32_t count = 0;
  GraphBucket last;
  for (int32_t rows = 1; rows <= 256; ++rows) {
    const GraphBucket bucket = *BucketFor(rows, 1, 0, 256, kManyPieces);
    if (!(bucket == last)) ++count;
    last = bucket;
  }
  EXPECT_EQ(count, 5 + 15);  // 1 to 16, then 32 to 256
}

TEST(GraphRoomTest, CountsWhatGraphsTakeAndNotWhatOthersDo) {
  constexpr int64_t kMiB = 1 << 20;
  GraphRoom room(/*most=*/40 * kMiB, /*least=*/1000 * kMiB, 9000 * kMiB);
  EXPECT_TRUE(room.has_room());
  room.Recorded(8980 * kMiB);  // 20
  // Another process takes its KV memory, and one gives its own back.
  room.Recorded(5000 * kMiB);
  EXPECT_TRUE(room.has_room());
  room.Recorded(8000 * kMiB);
  EXPECT_TRUE(room.has_room());
  room.Recorded(7980 * kMiB);  // 40
  EXPECT_TRUE(room.has_room());
  room.Recorded(7979 * kMiB);
  EXPECT_FALSE(room.has_room());
}

TEST(GraphRoomTest, LeavesWhatOthersNeed) {
  GraphRoom room(/*most=*/1000, /*least=*/500, 600);
  room.Recorded(500);
  EXPECT_TRUE(room.has_room());
  room.Recorded(499);
  EXPECT_FALSE(room.has_room());
  EXPECT_FALSE(GraphRoom(1000, 500, 499).has_room());
}

}  // namespace
}  // namespace baton::engine::cuda
