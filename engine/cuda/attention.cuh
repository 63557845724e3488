// The kernels of attention.h, for attention.cu.
//
// A page of KV memory already holds keys as words of two neighbouring elements,
// [pairs][16 slots], and values as words of two neighbouring slots, [pairs of
// slots][16 elements]: the second operand of a product on tensor cores, word
// for word. Nothing is transposed.
//
// int8 and e4m3 become bfloat16 on their way to a product, exactly. Scales are
// a position's, so they multiply in float32 what a position has one of: its
// score, and then its weight, before that is rounded for the product with
// values. The sum of weights is of weights proper.
#pragma once

#include "device_target.h"
#include "engine/cuda/attention.h"
#include "engine/cuda/attention_merge.cuh"
#include "engine/cuda/attention_softmax.cuh"
#include "engine/cuda/attention_stage.cuh"
#include "engine/cuda/heads.cuh"
#include "engine/cuda/matmul_output.cuh"

namespace baton::engine::cuda {

// The sums of a span: of rows g and g + 8, of each eight of so many elements 2c
// and the next. States are not joined before the end.
template <int kElements>
struct SpanSums {
  float values[kElements / 8][4];
  SoftmaxState state[2];
};

// Adds positions [first, first + 64) of which those before `end` exist; they
// lie in `stage`.
//
// With several parts, as many warps have the same queries and each one does its
// part: of the scores, which the warps then hand each other in `exchange`, and
// of the sums' elements. In between all of them do the same.
//
// With kHalves of 1 rows g + 8 have no queries.
template <int kHeadDim, KvDtype kDtype, int kParts, int kHalves>
BATON_DEVICE void AddTile(const AttentionArgs& args,
                          const WarpQueries<kHeadDim>& queries, int32_t first,
                          int32_t end, unsigned char* stage,
                          unsigned char* exchange,
                          SpanSums<kHeadDim / kParts>& sums) {
  constexpr int kScoreTiles = kTilePositions / 8 / kParts;
  constexpr int kElementTiles = kHeadDim / 8 / kParts;
  static_assert(kScoreTiles % 2 == 0);
  const int32_t part = kParts == 1 ? 0 : Thread() / 32;
  using Stage = TileStage<kHeadDim, kDtype>;
  unsigned char* const values = stage + Stage::kValues;
  const int32_t c = Thread() % 4;

  // Of even and odd score tiles, the part's first.
  const unsigned char* key_lanes[2];
  BATON_UNROLL
  for (int odd = 0; odd < 2; ++odd) {
    key_lanes[odd] =
        stage + part * (kScoreTiles / 2 * (kHeadDim / 2)) * Stage::kRowBytes +
        LanePlace<kDtype>(odd);
  }
  float mine[4 * kScoreTiles] = {};
  BATON_UNROLL
  for (int s = 0; s < kHeadDim / 16; ++s) {
    BATON_UNROLL
    for (int u = 0; u < kScoreTiles; ++u) {
      const int32_t row = u / 2 * (kHeadDim / 2) + 8 * s;
      Mma(mine + 4 * u, queries.fragments[s],
          PairIn<kDtype>(key_lanes[u % 2], row),
          PairIn<kDtype>(key_lanes[u % 2], row + 4));
    }
  }
  // Behind the end are other sequences' values, and zero times these is not
  // always zero; but not where bytes are numbers, as all are.
  const bool cut = kDtype == KvDtype::kBf16 && first + kTilePositions > end;
  if (kParts > 1 && cut) {
    // A word of two slots a thread; the barrier below is for these, too.
    auto* const words = reinterpret_cast<uint32_t*>(values);
    for (int32_t i = Thread(); i < kHeadDim / 16 * 32 * 16; i += 32 * kParts) {
      const int32_t slots = first + i / 16 % 32 * 2;
      if (slots + 1 >= end) words[i] &= KeptHalves(slots, end);
    }
  }
  TileScores scores;
  if constexpr (kParts == 1) {
    BATON_UNROLL
    for (int i = 0; i < 4 * kScoreTiles; ++i) scores[i] = mine[i];
  } else {
    const auto place = [&](int32_t t) {
      return exchange + (t * 32 + Thread() % 32) * 8 * kHalves;
    };
    BATON_UNROLL
    for (int u = 0; u < kScoreTiles; ++u) {
      const int32_t t = part * kScoreTiles + u;
      if constexpr (kHalves == 2) {
        StoreSums(place(t), mine + 4 * u);
      } else {
        Store8(place(t),
               {{FloatBits(mine[4 * u]), FloatBits(mine[4 * u + 1])}});
      }
    }
    SyncBlock();
    BATON_UNROLL
    for (int t = 0; t < kTilePositions / 8; ++t) {
      if constexpr (kHalves == 2) {
        LoadSums(place(t), scores + 4 * t);
      } else {
        const Word2 two = Load8(place(t));
        scores[4 * t] = BitsFloat(two.x[0]);
        scores[4 * t + 1] = BitsFloat(two.x[1]);
        scores[4 * t + 2] = scores[4 * t + 3] = 0.0f;
      }
    }
  }

  float rescale[2];
  ToWeights<Stage::kHasScales, kHalves>(args, queries, first,
                                        Stage::KeyScales(stage), scores,
                                        sums.state, rescale);
  BATON_UNROLL
  for (int t = 0; t < kElementTiles; ++t) {
    BATON_UNROLL
    for (int i = 0; i < 2 * kHalves; ++i) {
      sums.values[t][i] = MulRn(sums.values[t][i], rescale[i / 2]);
    }
  }
  if constexpr (Stage::kHasScales) {
    ScaleWeights<kHalves>(Stage::ValueScales(stage), scores);
  }

  // Where the part's element tiles begin: two by two, if parts have pairs.
  constexpr bool kPairs = kElementTiles % 2 == 0;
  const unsigned char* value_lanes[kPairs ? 2 : kElementTiles];
  BATON_UNROLL
  for (int i = 0; i < (kPairs ? 2 : kElementTiles); ++i) {
    const int32_t t = part * kElementTiles + i;
    value_lanes[i] =
        values + t / 2 * 32 * Stage::kRowBytes + LanePlace<kDtype>(t % 2);
  }
  BATON_UNROLL
  for (int s = 0; s < kTilePositions / 16; ++s) {
    uint32_t weights[4];
    PackWeights(scores, s, weights);
    uint32_t keep[2] = {0xffffffffu, 0xffffffffu};
    if (kParts == 1 && cut) {
      BATON_UNROLL
      for (int i = 0; i < 2; ++i) {
        keep[i] = KeptHalves(first + 16 * s + 8 * i + 2 * c, end);
      }
    }
    BATON_UNROLL
    for (int u = 0; u < kElementTiles; ++u) {
      const unsigned char* const lane = value_lanes[kPairs ? u % 2 : u];
      const int32_t row = (kPairs ? u / 2 * 32 : 0) + 8 * s;
      Mma(sums.values[u], weights, PairIn<kDtype>(lane, row) & keep[0],
          PairIn<kDtype>(lane, row + 4) & keep[1]);
    }
  }
}

template <int kElements>
BATON_DEVICE void ClearSums(SpanSums<kElements>& sums) {
  BATON_UNROLL
  for (int t = 0; t < kElements / 8; ++t) {
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) sums.values[t][i] = 0.0f;
  }
  sums.state[0] = SoftmaxState();
  sums.state[1] = SoftmaxState();
}

// Of a block that runs whole tiles: a warp for 16 queries.
inline constexpr int kTileThreads = kTileQueries / 16 * 32;

// Runs positions [first, end), tile by tile and two stages deep, and calls
// finish(sums) at the end of each span. `first` is a multiple of 64. All
// threads of the block call it. Behind the two stages lies what parts exchange.
// begin() makes the queries, and keys and values from `newest` on, before which
// what is there already is asked for.
template <int kHeadDim, KvDtype kDtype, int kParts, int kHalves, typename Begin,
          typename Finish>
BATON_DEVICE void RunTiles(const AttentionArgs& args, const BlockId* blocks,
                           int32_t kv_head,
                           const WarpQueries<kHeadDim>& queries, int32_t first,
                           int32_t end, int32_t newest, unsigned char* stages,
                           const Begin& begin, const Finish& finish) {
  constexpr int32_t kStageBytes = StageBytes(kDtype, kHeadDim);
  SpanSums<kHeadDim / kParts> sums;
  ClearSums(sums);
  constexpr int kThreads = kParts == 1 ? kTileThreads : 32 * kParts;
  const bool is_there = first + kTilePositions <= newest;
  const auto fetch_first = [&] {
    FetchTile<kHeadDim, kDtype, kThreads>(args, blocks, kv_head, first, end,
                                          stages);
  };
  if (is_there) fetch_first();
  begin();
  if (!is_there) fetch_first();
  CommitCopies();
  int32_t stage = 0;
  for (int32_t at = first; at < end;) {
    const int32_t next = at + kTilePositions;
    if (next < end) {
      FetchTile<kHeadDim, kDtype, kThreads>(args, blocks, kv_head, next, end,
                                            stages + (1 - stage) * kStageBytes);
    }
    CommitCopies();
    AwaitCopies<1>();
    SyncBlock();  // the tile is there for all
    AddTile<kHeadDim, kDtype, kParts, kHalves>(args, queries, at, end,
                                               stages + stage * kStageBytes,
                                               stages + 2 * kStageBytes, sums);
    SyncBlock();  // all are done with it: the next copies may go there
    stage = 1 - stage;
    at = next;
    if (at < end && at % kSpanPositions != 0) continue;
    BATON_UNROLL
    for (int half = 0; half < 2; ++half) JoinWeights(sums.state[half]);
    finish(sums);
    ClearSums(sums);
  }
  AwaitCopies<0>();  // an empty group
}

// One span of one token, or of a few, whose warps share the work on each tile:
// of few tokens there are few spans, and each should be over soon. The last one
// to be merges all of them.
// kHalves is 1 if no more than eight heads share a KV head. With kSeveral tiles
// have up to AttentionArgs::span_rows tokens.
template <int kHeadDim, KvDtype kDtype, int kHalves, bool kSeveral>
BATON_DENSE_KERNEL(32 * SpanParts(kHeadDim), kHeadDim > 128 ? 1 : 3)
SpanAttention(AttentionArgs args) {
  constexpr int kParts = SpanParts(kHeadDim);
  // Which positions these are comes from the host, before a step's kernels.
  const QueryTile tile = args.tiles[BlockZ()];
  const int32_t first_position = tile.first_position;
  const int32_t position =
      kSeveral ? first_position + tile.rows - 1 : first_position;
  const int32_t spans =
      tile.rows == 0 ? 0 : SpansOfAll(first_position, position, args.window);
  const int32_t kv_head = BlockY();
  const int32_t visible = FirstVisible(first_position, args.window);
  const int32_t span = visible / kSpanPositions + BlockX();
  const int32_t span_begin = span * kSpanPositions;
  const int32_t tile_begin = visible / kTilePositions * kTilePositions;
  const int32_t first = span_begin > tile_begin ? span_begin : tile_begin;
  const int32_t span_end = span_begin + kSpanPositions;
  const int32_t end = span_end < position + 1 ? span_end : position + 1;
  const BlockId* const blocks = args.block_tables + tile.block_table;
  LetNextKernelBegin();
  AwaitEarlierKernels();
  if (BlockX() >= spans) return;
  unsigned char* const exchange =
      SharedMemory() + 2 * StageBytes(kDtype, kHeadDim);
  const bool makes_heads = !kSeveral && args.heads.qkv != nullptr;
  WarpQueries<kHeadDim> queries;
  const auto load_queries = [&] {
    if (!makes_heads) {
      LoadQueries<kHeadDim>(args, tile, kv_head, 0, queries);
      return;
    }
    // All blocks make the queries, and the last span's the key and value.
    static_assert(kSpanQueries * kHeadDim * 2 <= SpanExchangeBytes(kHeadDim));
    constexpr int kElements =
        kHeadDim > 32 * kHeadElements ? kLongHeadElements : kHeadElements;
    auto* const made = reinterpret_cast<uint16_t*>(exchange);
    const int32_t group = args.num_heads / args.num_kv_heads;
    const int32_t count = group + (span_end > position ? 2 : 0);
    for (int32_t i = Thread() / 32; i < count; i += kParts) {
      const int32_t head =
          i < group
              ? kv_head * group + i
              : args.num_heads + (i - group) * args.num_kv_heads + kv_head;
      FinishHead<kDtype, kElements>(args.heads, tile.first_row, position,
                                    blocks, head, made + i * kHeadDim);
    }
    SyncBlock();
    LoadQueries<kHeadDim>(
        args, tile, kv_head, 0,
        [&](int64_t, int64_t head) {
          return made + (head - kv_head * group) * kHeadDim;
        },
        queries);
  };
  const auto store = [&](const SpanSums<kHeadDim / kParts>& sums) {
    const int32_t group = args.num_heads / args.num_kv_heads;
    const int32_t part = Thread() / 32;
    const int32_t g = Thread() % 32 / 4;
    const int32_t c = Thread() % 4;
    BATON_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      int32_t query = g + 8 * half;
      int32_t piece = BlockZ();
      if constexpr (kSeveral) {
        if (query >= group * tile.rows) continue;
        piece = tile.first_output_row + query / group;
        query %= group;
      } else {
        if (query >= group) continue;
      }
      const int64_t place =
          (int64_t{piece} * args.num_heads + kv_head * group + query) *
              args.max_spans +
          BlockX();
      float* const to =
          args.span_sums + place * kHeadDim + part * (kHeadDim / kParts);
      BATON_UNROLL
      for (int t = 0; t < kHeadDim / 8 / kParts; ++t) {
        to[8 * t + 2 * c] = sums.values[t][2 * half];
        to[8 * t + 2 * c + 1] = sums.values[t][2 * half + 1];
      }
      if (c == 0 && part == 0) {
        args.span_states[2 * place] = sums.state[half].max;
        args.span_states[2 * place + 1] = sums.state[half].sum;
      }
    }
  };
  // One span: stores once.
  RunTiles<kHeadDim, kDtype, kParts, kHalves>(
      args, blocks, kv_head, queries, first, end, makes_heads ? position : end,
      SharedMemory(), load_queries, store);
  if (IsLastOf(args.span_counts + BlockZ() * args.num_kv_heads + BlockY(),
               spans, reinterpret_cast<uint32_t*>(exchange))) {
    const int32_t group = args.num_heads / args.num_kv_heads;
    if constexpr (kSeveral) {
      for (int32_t i = 0; i < tile.rows; ++i) {
        const int32_t row = tile.first_output_row + i;
        MergeSpans<kHeadDim>(args, row, row, BlockY() * group, group,
                             args.head_dim, args.head_dim, spans, exchange);
      }
    } else {
      MergeSpans<kHeadDim>(args, BlockY() * group, group, args.head_dim,
                           args.head_dim, spans, exchange);
    }
  }
}

// All spans of a tile, four warps.
template <int kHeadDim, KvDtype kDtype>
BATON_KERNEL(kTileThreads)
TileAttention(AttentionArgs args) {
  LetNextKernelBegin();
  AwaitEarlierKernels();
  const QueryTile tile = args.tiles[BlockX()];
  if (tile.rows == 0) return;
  const int32_t kv_head = BlockY();
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
  const auto load_queries = [&] {
    LoadQueries<kHeadDim>(args, tile, kv_head, first_query, queries);
  };
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
  RunTiles<kHeadDim, kDtype, /*kParts=*/1, /*kHalves=*/2>(
      args, args.block_tables + tile.block_table, kv_head, queries, begin, end,
      /*newest=*/end, SharedMemory(), load_queries, merge);
  BATON_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int32_t query = first_query + lane / 4 + 8 * half;
    PutQuery<kHeadDim>(
        args, tile, kv_head, query,
        InverseSumOf(args, kv_head, query, total[half]),
        [&](int32_t t, int32_t i) {
          return totals[(t * 4 + 2 * half + i) * Threads() + Thread()];
        });
  }
}

}  // namespace baton::engine::cuda
