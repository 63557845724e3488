#include "engine/cuda/graph_buckets.h"

#include <algorithm>
#include <bit>
#include <set>
#include <tuple>
#include <utility>

#include "common/log.h"
#include "engine/cuda/attention.h"

namespace baton::engine::cuda {
namespace {

int32_t ToPowerOfTwo(int32_t n) {
  return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(n)));
}

// Powers of two to 16, where each is a product kernel of its own or half of
// one; then multiples of 16: more rows cost attention and sampling only.
int32_t BucketRows(int32_t rows) {
  if (rows <= 16) return ToPowerOfTwo(rows);
  return (rows + 15) / 16 * 16;
}

// Powers of two to 8, and 6, as contexts of a little more than 1,024 are
// common; then four sizes to the next: blocks for spans that are not there
// begin and end, and a context that is a little longer than a power would have
// as many of them as of others.
int32_t BucketSpans(int32_t spans) {
  if (spans == 5 || spans == 6) return 6;
  const int32_t power = ToPowerOfTwo(spans);
  if (power <= 8) return power;
  const int32_t step = power / 8;
  return (spans + step - 1) / step * step;
}

}  // namespace

std::optional<GraphBucket> BucketFor(int32_t rows, int32_t full_spans,
                                     int32_t sliding_spans, int32_t max_rows,
                                     int64_t max_span_pieces) {
  CHECK_GT(rows, 0);
  CHECK_GT(full_spans, 0);
  GraphBucket bucket;
  bucket.rows = BucketRows(rows);
  bucket.full_spans = BucketSpans(full_spans);
  bucket.sliding_spans = sliding_spans > 0 ? BucketSpans(sliding_spans) : 0;
  const int64_t spans = std::max(bucket.full_spans, bucket.sliding_spans);
  if (bucket.rows > std::min(max_rows, kMaxGraphRows) ||
      bucket.rows * spans > max_span_pieces) {
    return std::nullopt;
  }
  return bucket;
}

std::vector<GraphBucket> BucketsUpTo(int32_t rows, int32_t context,
                                     int32_t window, int32_t max_rows,
                                     int64_t max_span_pieces) {
  CHECK_GT(rows, 0);
  CHECK_GT(context, 0);
  // Of layers that see everything, and of those that slide: of a sequence that
  // is so long, and of the one before which takes most.
  std::set<std::pair<int32_t, int32_t>> spans;
  int32_t most_sliding = 0;
  for (int32_t position = 0; position < context; ++position) {
    const int32_t full = SpansOf(position, /*window=*/0);
    const int32_t sliding = window > 0 ? SpansOf(position, window) : 0;
    most_sliding = std::max(most_sliding, sliding);
    spans.insert({full, sliding});
    spans.insert({full, most_sliding});
  }
  std::vector<GraphBucket> buckets;
  const int32_t largest = BucketRows(std::min(rows, kMaxGraphRows));
  for (int32_t size = 1; size <= largest; ++size) {
    for (const auto& [full, sliding] : spans) {
      const auto bucket =
          BucketFor(size, full, sliding, max_rows, max_span_pieces);
      if (bucket && bucket->rows == size) buckets.push_back(*bucket);
    }
  }
  std::sort(buckets.begin(), buckets.end(),
            [](const GraphBucket& a, const GraphBucket& b) {
              return std::tie(a.rows, a.full_spans, a.sliding_spans) <
                     std::tie(b.rows, b.full_spans, b.sliding_spans);
            });
  buckets.erase(std::unique(buckets.begin(), buckets.end()), buckets.end());
  return buckets;
}

void GraphRoom::Recorded(int64_t free) {
  // With what CUDA sets aside for several.
  constexpr int64_t kMostOfAGraph = int64_t{32} << 20;
  const int64_t lost = free_ - free;
  if (lost > 0 && lost <= kMostOfAGraph) taken_ += lost;
  free_ = free;
}

}  // namespace baton::engine::cuda
