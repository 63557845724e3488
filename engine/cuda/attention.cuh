// The kernels of attention.h, for attention.cu.
//
// A warp has 16 queries: rows g and g + 8 of a product lie with the four lanes
// 4g to 4g + 3. A page of KV memory already holds keys as words of two
// neighbouring elements, [pairs][16 slots], and values as words of two
// neighbouring slots, [pairs of slots][16 elements]: the second operand of a
// product on tensor cores, word for word. Nothing is transposed.
//
// int8 and e4m3 become bfloat16 on their way to a product, exactly. Scales are
// a position's, so they multiply in float32 what a position has one of: its
// score, and then its weight, before that is rounded for the product with
// values. The sum of weights is of weights proper.
//
// Never ran on a GPU: run on the emulated device only (docs/gpu.md).
#pragma once

#include <limits>

#include "device_target.h"
#include "engine/cuda/attention.h"
#include "engine/cuda/attention_stage.cuh"

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
  const float max = total.max > span.max ? total.max : span.max;
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
// Adding zero makes zeros positive.
BATON_DEVICE uint16_t FinishSum(float total, float inverse_sum) {
  return static_cast<uint16_t>(
      PackBf16(AddRn(MulRn(total, inverse_sum), 0.0f), 0.0f));
}

// What a warp knows of its queries.
template <int kHeadDim>
struct WarpQueries {
  uint32_t fragments[kHeadDim / 16][4];
  // Of rows g and g + 8: the position, -1 for a row without a query.
  int32_t position[2];
  int32_t first_visible[2];
};

template <int kHeadDim>
BATON_DEVICE void LoadQueries(const AttentionArgs& args, const QueryTile& tile,
                              int32_t kv_head, int32_t first_query,
                              WarpQueries<kHeadDim>& queries) {
  const int32_t group = args.num_heads / args.num_kv_heads;
  const int32_t g = Thread() % 32 / 4;
  const int32_t c = Thread() % 4;
  BATON_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int32_t query = first_query + g + 8 * half;
    const int32_t token = query / group;
    const bool there = token < tile.rows;
    queries.position[half] = there ? tile.first_position + token : -1;
    queries.first_visible[half] =
        there ? FirstVisible(tile.first_position + token, args.window) : 0;
    const int64_t row = there ? tile.first_row + token : 0;
    const int64_t head = kv_head * group + query % group;
    const uint32_t* const from = reinterpret_cast<const uint32_t*>(
        args.queries + (row * args.num_heads + head) * kHeadDim);
    BATON_UNROLL
    for (int s = 0; s < kHeadDim / 16; ++s) {
      queries.fragments[s][half] = there ? from[8 * s + c] : 0;
      queries.fragments[s][2 + half] = there ? from[8 * s + 4 + c] : 0;
    }
  }
}

// The sums of a span: of rows g and g + 8, elements 8t + 2c and the next for
// each t. A state's sum is that of the lane's own columns until it is joined.
template <int kHeadDim>
struct SpanSums {
  float values[kHeadDim / 8][4];
  SoftmaxState state[2];
};

// Multiplies each position's weights with the position's scale. No weight stays
// none, whatever lies in a slot that is not seen.
BATON_DEVICE void ScaleWeights(const float* scales,
                               float (&weights)[kTilePositions / 8][4]) {
  const int32_t c = Thread() % 4;
  BATON_UNROLL
  for (int t = 0; t < kTilePositions / 8; ++t) {
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) {
      float& weight = weights[t][i];
      weight =
          weight == 0.0f ? 0.0f : MulRn(weight, scales[8 * t + 2 * c + i % 2]);
    }
  }
}

// Adds positions [first, first + 64) of which those before `end` exist; they
// lie in `stage`.
template <int kHeadDim, KvDtype kDtype>
BATON_DEVICE void AddTile(const AttentionArgs& args,
                          const WarpQueries<kHeadDim>& queries, int32_t first,
                          int32_t end, const unsigned char* stage,
                          SpanSums<kHeadDim>& sums) {
  using Stage = TileStage<kHeadDim, kDtype>;
  const unsigned char* const keys = stage;
  const unsigned char* const values = stage + Stage::kValues;
  const int32_t g = Thread() % 32 / 4;
  const int32_t c = Thread() % 4;

  float scores[kTilePositions / 8][4] = {};
  BATON_UNROLL
  for (int s = 0; s < kHeadDim / 16; ++s) {
    BATON_UNROLL
    for (int t = 0; t < kTilePositions / 8; ++t) {
      const int32_t row = t / 2 * (kHeadDim / 2) + 8 * s + c;
      const int32_t column = t % 2 * 8 + g;
      Mma(scores[t], queries.fragments[s], PairAt<kDtype>(keys, row, column),
          PairAt<kDtype>(keys, row + 4, column));
    }
  }

  float max[2] = {kNoScore, kNoScore};
  BATON_UNROLL
  for (int t = 0; t < kTilePositions / 8; ++t) {
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int32_t position = first + 8 * t + 2 * c + i % 2;
      const bool visible = position <= queries.position[i / 2] &&
                           position >= queries.first_visible[i / 2];
      float score = scores[t][i];
      if constexpr (Stage::kHasScales) {
        score = MulRn(score, Stage::KeyScales(stage)[position - first]);
      }
      score = visible ? MulRn(score, args.score_factor) : kNoScore;
      scores[t][i] = score;
      max[i / 2] = score > max[i / 2] ? score : max[i / 2];
    }
  }
  BATON_UNROLL
  for (int half = 0; half < 2; ++half) {
    SoftmaxState& state = sums.state[half];
    BATON_UNROLL
    for (int mask = 1; mask <= 2; mask *= 2) {
      const float other = ShuffleXor(max[half], mask);
      max[half] = other > max[half] ? other : max[half];
    }
    const float now = max[half] > state.max ? max[half] : state.max;
    const float rescale = Rescale(state.max, now);
    const float base = now == kNoScore ? 0.0f : now;
    float sum = 0.0f;
    BATON_UNROLL
    for (int t = 0; t < kTilePositions / 8; ++t) {
      BATON_UNROLL
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[t][i] = Exp2(SubRn(scores[t][i], base));
        sum = AddRn(sum, scores[t][i]);
      }
    }
    state.sum = AddRn(MulRn(state.sum, rescale), sum);
    state.max = now;
    BATON_UNROLL
    for (int t = 0; t < kHeadDim / 8; ++t) {
      sums.values[t][2 * half] = MulRn(sums.values[t][2 * half], rescale);
      sums.values[t][2 * half + 1] =
          MulRn(sums.values[t][2 * half + 1], rescale);
    }
  }

  if constexpr (Stage::kHasScales) {
    ScaleWeights(Stage::ValueScales(stage), scores);
  }
  // Slots behind the end hold what other sequences left there, and zero times
  // that is not always zero; but it is where bytes are numbers, as all are.
  const bool cut = kDtype == KvDtype::kBf16 && first + kTilePositions > end;
  BATON_UNROLL
  for (int s = 0; s < kTilePositions / 16; ++s) {
    const uint32_t weights[4] = {
        PackBf16(scores[2 * s][0], scores[2 * s][1]),
        PackBf16(scores[2 * s][2], scores[2 * s][3]),
        PackBf16(scores[2 * s + 1][0], scores[2 * s + 1][1]),
        PackBf16(scores[2 * s + 1][2], scores[2 * s + 1][3])};
    uint32_t keep[2] = {0xffffffffu, 0xffffffffu};
    if (cut) {
      BATON_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int32_t position = first + 16 * s + 8 * i + 2 * c;
        keep[i] = position + 1 < end ? 0xffffffffu
                  : position < end   ? 0x0000ffffu
                                     : 0u;
      }
    }
    BATON_UNROLL
    for (int t = 0; t < kHeadDim / 8; ++t) {
      const int32_t row = t / 2 * 32 + 8 * s + c;
      const int32_t column = t % 2 * 8 + g;
      Mma(sums.values[t], weights,
          PairAt<kDtype>(values, row, column) & keep[0],
          PairAt<kDtype>(values, row + 4, column) & keep[1]);
    }
  }
}

template <int kHeadDim>
BATON_DEVICE void ClearSums(SpanSums<kHeadDim>& sums) {
  BATON_UNROLL
  for (int t = 0; t < kHeadDim / 8; ++t) {
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) sums.values[t][i] = 0.0f;
  }
  sums.state[0] = SoftmaxState();
  sums.state[1] = SoftmaxState();
}

// Runs positions [first, end), tile by tile and two stages deep, and calls
// finish(sums) at the end of each span. `first` is a multiple of 64. All
// threads of the block call it.
template <int kHeadDim, KvDtype kDtype, typename Finish>
BATON_DEVICE void RunTiles(const AttentionArgs& args, const BlockId* blocks,
                           int32_t kv_head,
                           const WarpQueries<kHeadDim>& queries, int32_t first,
                           int32_t end, unsigned char* stages,
                           const Finish& finish) {
  constexpr int32_t kStageBytes = StageBytes(kDtype, kHeadDim);
  SpanSums<kHeadDim> sums;
  ClearSums<kHeadDim>(sums);
  FetchTile<kHeadDim, kDtype>(args, blocks, kv_head, first, end, stages);
  CommitCopies();
  int32_t stage = 0;
  for (int32_t at = first; at < end;) {
    const int32_t next = at + kTilePositions;
    if (next < end) {
      FetchTile<kHeadDim, kDtype>(args, blocks, kv_head, next, end,
                                  stages + (1 - stage) * kStageBytes);
    }
    CommitCopies();
    AwaitCopies<1>();
    SyncBlock();  // the tile is there for all
    AddTile<kHeadDim, kDtype>(args, queries, at, end,
                              stages + stage * kStageBytes, sums);
    SyncBlock();  // all are done with it: the next copies may go there
    stage = 1 - stage;
    at = next;
    if (at < end && at % kSpanPositions != 0) continue;
    BATON_UNROLL
    for (int half = 0; half < 2; ++half) {
      float& sum = sums.state[half].sum;
      sum = AddRn(sum, ShuffleXor(sum, 1));
      sum = AddRn(sum, ShuffleXor(sum, 2));
    }
    finish(sums);
    ClearSums<kHeadDim>(sums);
  }
  AwaitCopies<0>();  // an empty group
}

// One span of one token.
template <int kHeadDim, KvDtype kDtype>
BATON_KERNEL(32)
SpanAttention(AttentionArgs args) {
  AwaitEarlierKernels();
  const QueryTile tile = args.tiles[BlockZ()];
  if (tile.rows == 0) return;
  const int32_t position = tile.first_position;
  if (BlockX() >= SpansOf(position, args.window)) return;
  const int32_t kv_head = BlockY();
  const int32_t visible = FirstVisible(position, args.window);
  const int32_t span = visible / kSpanPositions + BlockX();
  const int32_t span_begin = span * kSpanPositions;
  const int32_t tile_begin = visible / kTilePositions * kTilePositions;
  const int32_t first = span_begin > tile_begin ? span_begin : tile_begin;
  const int32_t span_end = span_begin + kSpanPositions;
  const int32_t end = span_end < position + 1 ? span_end : position + 1;
  WarpQueries<kHeadDim> queries;
  LoadQueries<kHeadDim>(args, tile, kv_head, 0, queries);
  const auto store = [&](const SpanSums<kHeadDim>& sums) {
    const int32_t group = args.num_heads / args.num_kv_heads;
    const int32_t g = Thread() % 32 / 4;
    const int32_t c = Thread() % 4;
    BATON_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int32_t query = g + 8 * half;
      if (query >= group) continue;
      const int64_t place =
          (int64_t{BlockZ()} * args.num_heads + kv_head * group + query) *
              args.max_spans +
          BlockX();
      float* const to = args.span_sums + place * kHeadDim;
      BATON_UNROLL
      for (int t = 0; t < kHeadDim / 8; ++t) {
        to[8 * t + 2 * c] = sums.values[t][2 * half];
        to[8 * t + 2 * c + 1] = sums.values[t][2 * half + 1];
      }
      if (c == 0) {
        args.span_states[2 * place] = sums.state[half].max;
        args.span_states[2 * place + 1] = sums.state[half].sum;
      }
    }
  };
  // One span: stores once.
  RunTiles<kHeadDim, kDtype>(args, args.block_tables + tile.block_table,
                             kv_head, queries, first, end, SharedMemory(),
                             store);
}

// Merges the spans of one token and head, a thread per element.
BATON_KERNEL(128)
MergeSpans(AttentionArgs args) {
  AwaitEarlierKernels();
  const QueryTile tile = args.tiles[BlockX()];
  if (tile.rows == 0 || Thread() >= args.head_dim) return;
  const int32_t head = BlockY();
  const int32_t spans = SpansOf(tile.first_position, args.window);
  const int64_t first =
      (int64_t{BlockX()} * args.num_heads + head) * args.max_spans;
  SoftmaxState total;
  float sum = 0.0f;
  for (int32_t span = 0; span < spans; ++span) {
    const int64_t place = first + span;
    const SoftmaxState state = {args.span_states[2 * place],
                                args.span_states[2 * place + 1]};
    const MergeFactors factors = Merge(total, state);
    sum = MergeSum(sum, args.span_sums[place * args.stored_head_dim + Thread()],
                   factors);
  }
  args.out[PlaceOfInput(args.out_order, tile.first_output_row,
                        head * args.head_dim + Thread(), args.out_stride)] =
      FinishSum(sum, DivRn(1.0f, total.sum));
}

// All spans of a tile, four warps.
template <int kHeadDim, KvDtype kDtype>
BATON_KERNEL(128)
TileAttention(AttentionArgs args) {
  AwaitEarlierKernels();
  const QueryTile tile = args.tiles[BlockX()];
  if (tile.rows == 0) return;
  const int32_t kv_head = BlockY();
  const int32_t group = args.num_heads / args.num_kv_heads;
  const int32_t lane = Thread() % 32;
  const int32_t first_query = Thread() / 32 * 16;
  const int32_t end = tile.first_position + tile.rows;
  const int32_t begin = FirstVisible(tile.first_position, args.window) /
                        kTilePositions * kTilePositions;
  // Each thread's own: element i at [i][thread].
  float* const totals = reinterpret_cast<float*>(
      SharedMemory() + 2 * StageBytes(kDtype, kHeadDim));
  constexpr int32_t kElements = kHeadDim / 8 * 4;
  for (int32_t i = 0; i < kElements; ++i) {
    totals[i * Threads() + Thread()] = 0.0f;
  }
  SoftmaxState total[2];
  WarpQueries<kHeadDim> queries;
  LoadQueries<kHeadDim>(args, tile, kv_head, first_query, queries);
  const auto merge = [&](const SpanSums<kHeadDim>& sums) {
    const MergeFactors factors[2] = {Merge(total[0], sums.state[0]),
                                     Merge(total[1], sums.state[1])};
    BATON_UNROLL
    for (int t = 0; t < kHeadDim / 8; ++t) {
      BATON_UNROLL
      for (int i = 0; i < 4; ++i) {
        float& to = totals[(t * 4 + i) * Threads() + Thread()];
        to = MergeSum(to, sums.values[t][i], factors[i / 2]);
      }
    }
  };
  RunTiles<kHeadDim, kDtype>(args, args.block_tables + tile.block_table,
                             kv_head, queries, begin, end, SharedMemory(),
                             merge);
  BATON_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int32_t query = first_query + lane / 4 + 8 * half;
    if (query / group >= tile.rows) continue;
    const float inverse = DivRn(1.0f, total[half].sum);
    const int32_t row = tile.first_output_row + query / group;
    const int32_t first = (kv_head * group + query % group) * args.head_dim;
    for (int32_t t = 0; t < kHeadDim / 8; ++t) {
      for (int32_t i = 0; i < 2; ++i) {
        const int32_t element = 8 * t + 2 * (lane % 4) + i;
        if (element >= args.head_dim) continue;
        args.out[PlaceOfInput(args.out_order, row, first + element,
                              args.out_stride)] =
            FinishSum(totals[(t * 4 + 2 * half + i) * Threads() + Thread()],
                      inverse);
      }
    }
  }
}

}  // namespace baton::engine::cuda
