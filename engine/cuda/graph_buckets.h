// Which recorded graph a decode step runs. A graph has a fixed number of rows
// and of spans; a step runs the smallest that it fits in, and what it has less
// is rows that are not there and spans that end at once. And how many are
// recorded ahead. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace baton::engine::cuda {

struct GraphBucket {
  int32_t rows = 0;
  int32_t full_spans = 0;     // of layers that see everything
  int32_t sliding_spans = 0;  // of layers that slide; 0 when none does
  bool adapted = false;       // rows may have adapters
  // Sequences may have several, each of which sees those before it, where other
  // kernels run for that (ForwardPass::KnowsSeveral).
  bool several_rows = false;

  friend bool operator==(const GraphBucket&, const GraphBucket&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const GraphBucket& b) {
    return H::combine(std::move(h), b.rows, b.full_spans, b.sliding_spans,
                      b.adapted, b.several_rows);
  }
};

// Most rows of a graph.
inline constexpr int32_t kMaxGraphRows = 256;

// For `rows` rows whose longest attention takes so many spans. None when there
// are too many rows, or more pieces (rows * spans) than max_span_pieces.
// REQUIRES: rows > 0, full_spans > 0.
std::optional<GraphBucket> BucketFor(int32_t rows, int32_t full_spans,
                                     int32_t sliding_spans, int32_t max_rows,
                                     int64_t max_span_pieces);

// Those of steps of up to `rows` rows whose sequences have up to `context`
// positions, `window` of them seen by layers that slide (0: none does): by
// rising rows, then spans. REQUIRES: rows > 0, context > 0.
std::vector<GraphBucket> BucketsUpTo(int32_t rows, int32_t context,
                                     int32_t window, int32_t max_rows,
                                     int64_t max_span_pieces);

// Whether a device has room for one more graph, of those that are recorded
// before they are needed. It tells how much is free, to whichever process that
// shares it.
class GraphRoom final {
 public:
  // Graphs take `most` bytes or little more, and leave `least` of the device's.
  // `free` are now.
  GraphRoom(int64_t most, int64_t least, int64_t free)
      : most_(most), least_(least), free_(free) {}

  bool has_room() const { return free_ >= least_ && taken_ <= most_; }
  // A graph was recorded, and so much is free now. What is more than a graph
  // takes was taken by others.
  void Recorded(int64_t free);

 private:
  const int64_t most_;
  const int64_t least_;
  int64_t free_;
  int64_t taken_ = 0;
};

}  // namespace baton::engine::cuda
