// Attention of prompts on tensor cores of Hopper (wgmma), for
// attention_group.cu.
//
// Two groups of four warps have 64 queries each. Queries and weights are in
// registers, keys and values in the block's memory, from where tensor cores
// read them by themselves: once for 64 queries, where mma.sync reads them once
// for 16. A third group brings them there (attention_fill.cuh); barriers say
// which stages are full, and which nobody reads any more.
//
// The products of a group run beside the softmax of the other. Values of a tile
// are multiplied while keys of the next one are.
#pragma once

#include "device_target.h"
#include "engine/cuda/attention_fill.cuh"
#include "engine/cuda/attention_group.h"
#include "engine/cuda/attention_softmax.cuh"

namespace baton::engine::cuda {

// The block's memory.
template <int kHeadDim>
struct GroupAttentionMemory {
  BATON_DEVICE GroupAttentionMemory() {
    const uint32_t start = SharedAddress(SharedMemory());
    const uint32_t skip =
        (kGroupAttentionAlignment - start % kGroupAttentionAlignment) %
        kGroupAttentionAlignment;
    address = start + skip;
    stages = SharedMemory() + skip;
    scales = stages + kGroupAttentionStages * GroupKvBytes(kHeadDim);
    totals = reinterpret_cast<float*>(scales +
                                      kGroupAttentionStages * kGroupScaleBytes);
    full = reinterpret_cast<Barrier*>(totals + kGroupTileQueries * kHeadDim);
    empty = full + kGroupAttentionStages;
  }

  uint32_t address;  // of the stages, for GroupMatrix
  unsigned char* stages;
  unsigned char* scales;
  // Element i of thread t at 256 i + t.
  float* totals;
  // Of each stage: its keys and values are there; nobody reads it any more.
  Barrier* full;
  Barrier* empty;
};

// Which stage is next, and the parity of its barriers' phase.
struct StageTurn {
  int32_t stage = 0;
  int32_t parity = 0;

  BATON_DEVICE void Next() {
    if (++stage == kGroupAttentionStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// What the warps do that bring keys and values of positions [begin, end): a
// tile's are on their way while they wait for an empty stage.
template <int kHeadDim, KvDtype kDtype>
BATON_DEVICE void FillStages(const AttentionArgs& args, const BlockId* blocks,
                             int32_t kv_head, int32_t begin, int32_t end,
                             const GroupAttentionMemory<kHeadDim>& memory) {
  FillWords<kHeadDim, kDtype, /*kKeys=*/true> keys;
  FillWords<kHeadDim, kDtype, /*kKeys=*/false> values;
  FillCursor<kHeadDim, kDtype, /*kKeys=*/true> key_cursor;
  FillCursor<kHeadDim, kDtype, /*kKeys=*/false> value_cursor;
  const int32_t size = args.block_size;
  const int32_t step_blocks = kTilePositions / size;
  const int32_t step_slots = kTilePositions % size;
  key_cursor.Begin(blocks, size, begin, end);
  value_cursor.Begin(blocks, size, begin, end);
  const auto read = [&](int32_t first) {
    ReadUnits(args, key_cursor, kv_head, first, end, keys);
    ReadUnits(args, value_cursor, kv_head, first, end, values);
    const int32_t next = first + kTilePositions;
    key_cursor.Next(blocks, size, step_blocks, step_slots, next, end);
    value_cursor.Next(blocks, size, step_blocks, step_slots, next, end);
  };
  StageTurn turn;
  read(begin);
  for (int32_t first = begin; first < end; first += kTilePositions) {
    // What would be the phase before the first has ended.
    AwaitBarrier(&memory.empty[turn.stage], turn.parity ^ 1);
    unsigned char* const to =
        memory.stages + turn.stage * GroupKvBytes(kHeadDim);
    WriteUnits(keys, to);
    WriteUnits(values, to + GroupKeyBytes(kHeadDim));
    if constexpr (TileStage<kHeadDim, kDtype>::kHasScales) {
      FillScales(args, blocks, kv_head, first, end,
                 memory.scales + turn.stage * kGroupScaleBytes);
    }
    FenceForTensorCores();
    SyncWarp();
    if (Thread() % 32 == 0) Arrive(&memory.full[turn.stage]);
    turn.Next();
    // Behind the fence, which waits for what was asked for before it.
    if (first + kTilePositions < end) read(first + kTilePositions);
  }
}

// What the warps do that have queries: [begin, end) is what the block's other
// warps bring.
template <int kHeadDim, KvDtype kDtype>
BATON_DEVICE void AttendToStages(const AttentionArgs& args,
                                 const QueryTile& tile, int32_t kv_head,
                                 int32_t begin, int32_t end,
                                 const GroupAttentionMemory<kHeadDim>& memory) {
  constexpr bool kHasScales = TileStage<kHeadDim, kDtype>::kHasScales;
  constexpr int kElements = kHeadDim / 2;  // of a thread
  constexpr int32_t kThreads = 32 * kGroupAttentionWarps;
  const int32_t group = args.num_heads / args.num_kv_heads;
  const int32_t first_query = Thread() / 32 * 16;
  // What the four warps see: the tokens of 64 queries.
  const int32_t group_query = Thread() / 128 * 64;
  const int32_t first_token = group_query / group;
  const int32_t last_token = (group_query + 63) / group < tile.rows
                                 ? (group_query + 63) / group
                                 : tile.rows - 1;
  const bool any = first_token < tile.rows;
  const int32_t seen_end = any ? tile.first_position + last_token + 1 : begin;
  const int32_t seen_begin =
      any ? FirstVisible(tile.first_position + first_token, args.window) /
                kTilePositions * kTilePositions
          : begin;

  WarpQueries<kHeadDim> queries;
  LoadQueries<kHeadDim>(args, tile, kv_head, first_query, queries);
  float* const totals = memory.totals + Thread();
  for (int i = 0; i < kElements; ++i) totals[i * kThreads] = 0.0f;
  SoftmaxState total[2];

  float sums[kElements] = {};  // of a span
  SoftmaxState state[2];
  TileScores scores;
  uint32_t weights[kTilePositions / 16][4];
  float rescale[2];
  const auto merge = [&](SoftmaxState(&span)[2]) {
    BATON_UNROLL
    for (int half = 0; half < 2; ++half) JoinWeights(span[half]);
    const MergeFactors factors[2] = {Merge(total[0], span[0]),
                                     Merge(total[1], span[1])};
    BATON_UNROLL
    for (int i = 0; i < kElements; ++i) {
      float& to = totals[i * kThreads];
      to = MergeSum(to, sums[i], factors[i % 4 / 2]);
      sums[i] = 0.0f;
    }
  };
  const auto address_of = [&](int32_t stage) {
    return memory.address +
           static_cast<uint32_t>(stage * GroupKvBytes(kHeadDim));
  };
  const auto start_scores = [&](uint32_t stage) {
    GroupMmaBegin(queries.fragments, scores);
    BATON_UNROLL
    for (int s = 0; s < kHeadDim / 16; ++s) {
      GroupMma(scores, queries.fragments[s],
               GroupMatrix(stage + s / 4 * (kTilePositions * 128) + s % 4 * 32),
               /*add=*/s > 0);
    }
    GroupMmaCommit();
  };
  const auto start_values = [&](uint32_t stage) {
    GroupMmaBegin(weights, sums);
    BATON_UNROLL
    for (int s = 0; s < kTilePositions / 16; ++s) {
      GroupMma(sums, weights[s],
               GroupMatrix(stage + GroupKeyBytes(kHeadDim) + s * 32),
               /*add=*/true);
    }
    GroupMmaCommit();
  };
  const auto to_weights = [&](int32_t first, int32_t stage) {
    const float* const scales = reinterpret_cast<const float*>(
        memory.scales + stage * kGroupScaleBytes);
    ToWeights<kHasScales, /*kHalves=*/2>(args, queries, first, scales, scores,
                                         state, rescale);
    if constexpr (kHasScales) ScaleWeights<2>(scales + kTilePositions, scores);
  };
  const auto pack = [&] {
    BATON_UNROLL
    for (int s = 0; s < kTilePositions / 16; ++s) {
      PackWeights(scores, s, weights[s]);
    }
  };

  StageTurn turn;
  // The warp reads a stage no more.
  const auto release = [&](int32_t stage) {
    SyncWarp();
    if (Thread() % 32 == 0) Arrive(&memory.empty[stage]);
  };
  const auto skip = [&](int32_t from, int32_t to) {
    for (; from < to; from += kTilePositions) {
      AwaitBarrier(&memory.full[turn.stage], turn.parity);
      release(turn.stage);
      turn.Next();
    }
  };
  skip(begin, seen_begin);
  int32_t at = seen_begin;
  if (at < seen_end) {
    AwaitBarrier(&memory.full[turn.stage], turn.parity);
    start_scores(address_of(turn.stage));
    GroupMmaAwait(scores);
    to_weights(at, turn.stage);
    pack();
    for (; at + kTilePositions < seen_end;) {
      const int32_t now = turn.stage;
      at += kTilePositions;
      turn.Next();
      AwaitBarrier(&memory.full[turn.stage], turn.parity);
      start_scores(address_of(turn.stage));
      start_values(address_of(now));
      GroupMmaAwaitOlder(scores);
      const bool span_ends = at % kSpanPositions == 0;
      SoftmaxState ended[2] = {state[0], state[1]};
      BATON_UNROLL
      for (int half = 0; half < 2; ++half) {
        if (span_ends) state[half] = SoftmaxState();
      }
      to_weights(at, turn.stage);
      // The next tile has to be there in any case; and a loop is what no
      // instruction is moved across: ptxas would else wait for the sums before
      // the exponentials above.
      if (at + kTilePositions < seen_end) {
        StageTurn next = turn;
        next.Next();
        AwaitBarrier(&memory.full[next.stage], next.parity);
      }
      GroupMmaAwait(sums);
      release(now);
      if (span_ends) merge(ended);
      BATON_UNROLL
      for (int i = 0; i < kElements; ++i) {
        sums[i] = MulRn(sums[i], rescale[i % 4 / 2]);
      }
      pack();
    }
    start_values(address_of(turn.stage));
    GroupMmaAwait(sums);
    release(turn.stage);
    turn.Next();
    at += kTilePositions;
    merge(state);
  }
  skip(at, end);
  BATON_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int32_t query = first_query + Thread() % 32 / 4 + 8 * half;
    PutQuery<kHeadDim>(args, tile, kv_head, query,
                       InverseSumOf(args, kv_head, query, total[half]),
                       [&](int32_t t, int32_t i) {
                         return totals[(t * 4 + 2 * half + i) * kThreads];
                       });
  }
}

// All spans of a tile of kGroupTileQueries.
template <int kHeadDim, KvDtype kDtype>
BATON_DENSE_KERNEL(kGroupAttentionThreads, 1)
GroupAttention(AttentionArgs args) {
  LetNextKernelBegin();
  AwaitEarlierKernels();
  // The last tiles, which see most, first: what is left at the end is short.
  const QueryTile tile = args.tiles[args.num_tiles - 1 - BlockY()];
  if (tile.rows == 0) return;
  const GroupAttentionMemory<kHeadDim> memory;
  if (Thread() == 0) {
    for (int s = 0; s < kGroupAttentionStages; ++s) {
      InitBarrier(&memory.full[s], kGroupFillWarps);
      InitBarrier(&memory.empty[s], kGroupAttentionWarps);
    }
    FenceBarriers();
  }
  SyncBlock();
  const int32_t kv_head = BlockX();
  const int32_t end = tile.first_position + tile.rows;
  const int32_t begin = FirstVisible(tile.first_position, args.window) /
                        kTilePositions * kTilePositions;
  // Each branch by itself to its end: what comes behind both has the registers
  // of the one that has few.
  if (Thread() / 32 >= kGroupAttentionWarps) {
    if constexpr (kHeadDim > 64) GiveRegisters<kGroupFillRegisters>();
    FillStages<kHeadDim, kDtype>(args, args.block_tables + tile.block_table,
                                 kv_head, begin, end, memory);
  } else {
    if constexpr (kHeadDim > 64) TakeRegisters<kGroupAttentionRegisters>();
    AttendToStages<kHeadDim, kDtype>(args, tile, kv_head, begin, end, memory);
  }
}

}  // namespace baton::engine::cuda
