#include "engine/cuda/graph_buckets.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace baton::engine::cuda {
namespace {

constexpr int64_t kManyPieces = 1 << 20;

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

}  // namespace
}  // namespace baton::engine::cuda
