// What the kernels of attention.h share, whatever multiplies: the queries of a
// warp, the softmax over a tile's scores, and how spans are merged. Operation
// for operation the same, so that results are the same to the bit.
//
// A warp has 16 queries: rows g and g + 8 of a product lie with the four lanes
// 4g to 4g + 3.
#pragma once

#include <limits>

#include "device_target.h"
#include "engine/cuda/attention.h"

namespace baton::engine::cuda {

inline constexpr float kNoScore = -std::numeric_limits<float>::infinity();

// A running softmax of one query: the greatest score, and the weights' sum.
struct SoftmaxState {
  float max = kNoScore;
  float sum = 0.0f;
};

// What the sums so far are multiplied by when a score of `now` comes in. `now`
// may be -infinity: then nothing was seen yet.
BATON_DEVICE float Rescale(float before, float now) {
  return Exp2(SubRn(before, now == kNoScore ? 0.0f : now));
}

// The factors by which the sums of `total` and of `span` are merged; `total`
// becomes their state together.
struct MergeFactors {
  float total;
  float span;
};
BATON_DEVICE MergeFactors Merge(SoftmaxState& total, SoftmaxState span) {
  const float max = GreaterOf(total.max, span.max);
  const MergeFactors factors = {Rescale(total.max, max),
                                Rescale(span.max, max)};
  total.sum =
      AddRn(MulRn(total.sum, factors.total), MulRn(span.sum, factors.span));
  total.max = max;
  return factors;
}
BATON_DEVICE float MergeSum(float total, float span, MergeFactors factors) {
  return AddRn(MulRn(total, factors.total), MulRn(span, factors.span));
}
// What the sums of a head are multiplied by in the end.
BATON_DEVICE float InverseSum(const AttentionArgs& args, int32_t head,
                              const SoftmaxState& state) {
  // Where the sink is far above all scores, infinite: nothing is left.
  const float sink =
      args.sinks == nullptr ? 0.0f : Exp2(SubRn(args.sinks[head], state.max));
  return DivRn(1.0f, AddRn(state.sum, sink));
}
// The same of query `query` of a tile, which may not be there.
BATON_DEVICE float InverseSumOf(const AttentionArgs& args, int32_t kv_head,
                                int32_t query, const SoftmaxState& state) {
  const int32_t group = args.num_heads / args.num_kv_heads;
  return InverseSum(args, kv_head * group + query % group, state);
}
// Two elements, the first in the low half. Adding zero makes zeros positive.
BATON_DEVICE uint32_t FinishSums(float first, float second, float inverse_sum) {
  return PackBf16(AddRn(MulRn(first, inverse_sum), 0.0f),
                  AddRn(MulRn(second, inverse_sum), 0.0f));
}
BATON_DEVICE uint16_t FinishSum(float total, float inverse_sum) {
  return static_cast<uint16_t>(FinishSums(total, 0.0f, inverse_sum));
}

// What a warp's queries see.
struct QueryRows {
  // Of rows g and g + 8: the position, -1 for a row without a query.
  int32_t position[2];
  int32_t first_visible[2];

  // Sets those of row g + 8 * half, which has query `query` of a tile; whether
  // that is there.
  BATON_DEVICE bool Set(const AttentionArgs& args, const QueryTile& tile,
                        int32_t query, int half) {
    const int32_t token = query / (args.num_heads / args.num_kv_heads);
    const bool there = token < tile.rows;
    position[half] = there ? tile.first_position + token : -1;
    first_visible[half] =
        there ? FirstVisible(tile.first_position + token, args.window) : 0;
    return there;
  }
};

// What a warp knows of its queries.
template <int kHeadDim>
struct WarpQueries : QueryRows {
  uint32_t fragments[kHeadDim / 16][4];
};

// query_of(row, head) is where that query lies.
template <int kHeadDim, typename QueryOf>
BATON_DEVICE void LoadQueries(const AttentionArgs& args, const QueryTile& tile,
                              int32_t kv_head, int32_t first_query,
                              const QueryOf& query_of,
                              WarpQueries<kHeadDim>& queries) {
  const int32_t group = args.num_heads / args.num_kv_heads;
  const int32_t g = Thread() % 32 / 4;
  const int32_t c = Thread() % 4;
  BATON_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int32_t query = first_query + g + 8 * half;
    const bool there = queries.Set(args, tile, query, half);
    const int64_t row = there ? tile.first_row + query / group : 0;
    const int64_t head = kv_head * group + query % group;
    const uint32_t* const from =
        reinterpret_cast<const uint32_t*>(query_of(row, head));
    BATON_UNROLL
    for (int s = 0; s < kHeadDim / 16; ++s) {
      queries.fragments[s][half] = there ? from[8 * s + c] : 0;
      queries.fragments[s][2 + half] = there ? from[8 * s + 4 + c] : 0;
    }
  }
}

// From where they were written to.
template <int kHeadDim>
BATON_DEVICE void LoadQueries(const AttentionArgs& args, const QueryTile& tile,
                              int32_t kv_head, int32_t first_query,
                              WarpQueries<kHeadDim>& queries) {
  LoadQueries<kHeadDim>(
      args, tile, kv_head, first_query,
      [&](int64_t row, int64_t head) {
        return args.queries + (row * args.num_heads + head) * kHeadDim;
      },
      queries);
}

// The scores of a warp's queries for a tile, and then their weights: element
// 4t + i is d[i] of Mma for positions 8t to 8t + 7.
using TileScores = float[kTilePositions / 2];

// Multiplies each position's weights with the position's scale. No weight stays
// none, whatever lies in a slot that is not seen. Of rows g, or with kHalves of
// 2, of rows g + 8, too.
template <int kHalves>
BATON_DEVICE void ScaleWeights(const float* scales, TileScores& weights) {
  const int32_t c = Thread() % 4;
  BATON_UNROLL
  for (int t = 0; t < kTilePositions / 8; ++t) {
    BATON_UNROLL
    for (int i = 0; i < 2 * kHalves; ++i) {
      float& weight = weights[4 * t + i];
      weight =
          weight == 0.0f ? 0.0f : MulRn(weight, scales[8 * t + 2 * c + i % 2]);
    }
  }
}

// A number that is known when a function is compiled for it.
template <int kCount>
struct Count {
  BATON_DEVICE constexpr int operator()() const { return kCount; }
};

// Makes the scores of positions [first, first + 64) weights, which `state` then
// has, too. Sums so far are to be multiplied by `rescale`, of rows g and g + 8.
// `key_scales` are those of the tile, if there are any. With kHalves of 1, rows
// g + 8 have no queries, and nothing is done for them.
template <bool kHasScales, int kHalves>
BATON_DEVICE void ToWeights(const AttentionArgs& args, const QueryRows& queries,
                            int32_t first, const float* key_scales,
                            TileScores& scores,
                            SoftmaxState (&state)[2], float (&rescale)[2]) {
  const int32_t c = Thread() % 4;
  BATON_UNROLL
  for (int t = 0; t < kTilePositions / 8; ++t) {
    BATON_UNROLL
    for (int i = 0; i < 2 * kHalves; ++i) {
      float& score = scores[4 * t + i];
      if constexpr (kHasScales) {
        score = MulRn(score, key_scales[8 * t + 2 * c + i % 2]);
      }
      score = MulRn(score, args.score_factor);
    }
  }
  BATON_UNROLL
  for (int half = 0; half < kHalves; ++half) {
    // Of most tiles all positions are seen.
    if (first + kTilePositions - 1 <= queries.position[half] &&
        first >= queries.first_visible[half]) {
      continue;
    }
    BATON_UNROLL
    for (int t = 0; t < kTilePositions / 8; ++t) {
      BATON_UNROLL
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        const int32_t position = first + 8 * t + 2 * c + i % 2;
        const bool visible = position <= queries.position[half] &&
                             position >= queries.first_visible[half];
        if (!visible) scores[4 * t + i] = kNoScore;
      }
    }
  }
  BATON_UNROLL
  for (int half = 0; half < kHalves; ++half) {
    // The greatest, whatever the order, in few steps one after another.
    float some[kTilePositions / 4];
    BATON_UNROLL
    for (int t = 0; t < kTilePositions / 4; ++t) {
      some[t] = scores[t / 2 * 4 + 2 * half + t % 2];
    }
    const auto halve = [&](auto count) {
      BATON_UNROLL
      for (int t = 0; t < count(); ++t) {
        some[t] = GreaterOf(some[t], some[t + count()]);
      }
    };
    static_assert(kTilePositions == 64);
    halve(Count<8>());
    halve(Count<4>());
    halve(Count<2>());
    halve(Count<1>());
    float max = GreaterOf(some[0], kNoScore);
    BATON_UNROLL
    for (int mask = 1; mask <= 2; mask *= 2) {
      max = GreaterOf(max, ShuffleXor(max, mask));
    }
    const float now = GreaterOf(max, state[half].max);
    rescale[half] = Rescale(state[half].max, now);
    const float base = now == kNoScore ? 0.0f : now;
    float sum = 0.0f;
    BATON_UNROLL
    for (int t = 0; t < kTilePositions / 8; ++t) {
      BATON_UNROLL
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[4 * t + i] = Exp2(SubRn(scores[4 * t + i], base));
        sum = AddRn(sum, scores[4 * t + i]);
      }
    }
    state[half].sum = AddRn(MulRn(state[half].sum, rescale[half]), sum);
    state[half].max = now;
  }
}

// At the end of a span: until then a lane has the weights of its own columns.
BATON_DEVICE void JoinWeights(SoftmaxState& state) {
  state.sum = AddRn(state.sum, ShuffleXor(state.sum, 1));
  state.sum = AddRn(state.sum, ShuffleXor(state.sum, 2));
}

// The weights of 16 positions, from 16s on, as `a` of Mma.
BATON_DEVICE void PackWeights(const TileScores& weights, int s,
                              uint32_t (&words)[4]) {
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) {
    words[i] = PackBf16(weights[8 * s + 2 * i], weights[8 * s + 2 * i + 1]);
  }
}

// Which of two neighbouring positions' halves of a word count: those before
// `end`. Slots behind it hold what other sequences left there, and zero times
// that is not always zero.
BATON_DEVICE uint32_t KeptHalves(int32_t position, int32_t end) {
  return position + 1 < end ? 0xffffffffu : position < end ? 0x0000ffffu : 0u;
}

// Puts a query's results where they belong: elements 2c and 2c + 1 of each
// eight, which sum_of(t, i) gives.
template <int kHeadDim, typename SumOf>
BATON_DEVICE void PutQuery(const AttentionArgs& args, const QueryTile& tile,
                           int32_t kv_head, int32_t query, float inverse_sum,
                           const SumOf& sum_of) {
  const int32_t group = args.num_heads / args.num_kv_heads;
  if (query / group >= tile.rows) return;
  const int32_t row = tile.first_output_row + query / group;
  const int32_t first = (kv_head * group + query % group) * args.head_dim;
  if constexpr (kHeadDim % kSliceInputs == 0) {
    if (args.out_order == InputOrder::kStaged && args.head_dim == kHeadDim) {
      // Then what a thread has of 32 elements is one piece of a slice.
      const int32_t c = Thread() % 4;
      uint16_t* const slices =
          args.out +
          (PlaceOfInput(InputOrder::kStaged, row, first, args.out_stride) &
           ~int64_t{kSliceInputs - 1});
      BATON_UNROLL
      for (int a = 0; a < kHeadDim / 32; ++a) {
        Word4 words;
        BATON_UNROLL
        for (int w = 0; w < 4; ++w) {
          words.x[w] = FinishSums(sum_of(4 * a + w, 0), sum_of(4 * a + w, 1),
                                  inverse_sum);
        }
        Store16(slices + a / 2 * (kStagedRows * kSliceInputs) +
                    ((a % 2 * 4 + c) ^ row % 8) * 8,
                words);
      }
      return;
    }
  }
  for (int32_t t = 0; t < kHeadDim / 8; ++t) {
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t element = 8 * t + 2 * (Thread() % 4) + i;
      if (element >= args.head_dim) continue;
      args.out[PlaceOfInput(args.out_order, row, first + element,
                            args.out_stride)] =
          FinishSum(sum_of(t, i), inverse_sum);
    }
  }
}

}  // namespace baton::engine::cuda
