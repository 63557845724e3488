// How keys and values come into a block's memory for attention_group.cuh: as
// bfloat16, in the order in which tensor cores read them by themselves.
//
// KV memory has words of two neighbouring elements of a slot (keys), or of two
// neighbouring slots of an element (values); tensor cores want eight elements
// of a position, or eight positions of an element, in 16 bytes. So a thread
// reads four rows of KV memory, 16 bytes each, and writes for each of the four
// columns that these have (of bytes: eight) one piece of 16 bytes: the words
// change places without leaving the thread.
#pragma once

#include <cstdint>

#include "device_target.h"
#include "engine/cuda/attention_group.h"
#include "engine/cuda/attention_softmax.cuh"
#include "engine/cuda/attention_stage.cuh"

namespace baton::engine::cuda {

inline constexpr int32_t kFillThreads = 32 * kGroupFillWarps;

// Keys or values of a tile, in units of what a thread moves at a time. The rows
// that they become lie in blocks of 16 (slots that follow each other; elements
// of a panel), and have pieces of 16 bytes.
template <int kHeadDim, KvDtype kDtype, bool kKeys>
struct FillShape {
  static constexpr int32_t kRowBytes =
      TileStage<kHeadDim, kDtype>::kRowBytes;  // of KV memory
  static constexpr int32_t kColumns = kDtype == KvDtype::kBf16 ? 4 : 8;
  static constexpr int32_t kColumnGroups = 16 / kColumns;
  static constexpr int32_t kPieces = kKeys ? kHeadDim / 8 : kTilePositions / 8;
  static constexpr int32_t kBlocks =
      kKeys ? kTilePositions / 16 : kHeadDim / 16;
  static constexpr int32_t kUnits = kBlocks * kPieces * kColumnGroups;
  static constexpr int32_t kOfThread =
      (kUnits + kFillThreads - 1) / kFillThreads;
  static constexpr int32_t kMatrixBytes = kBlocks * 16 * 128;
};

struct FillUnit {
  int32_t columns;  // a group of them
  int32_t piece;
  int32_t block;
};

// Neighbouring lanes read what lies together in KV memory, and eight of them
// write to eight different groups of banks: those of a piece change places with
// the row's number.
template <typename Shape>
BATON_DEVICE FillUnit UnitOf(int32_t unit) {
  if constexpr (Shape::kColumns == 4) {
    const int32_t rest = unit / 16;
    return {unit % 2 + unit / 8 % 2 * 2,
            unit / 2 % 4 + rest % (Shape::kPieces / 4) * 4,
            rest / (Shape::kPieces / 4)};
  } else {
    const int32_t rest = unit / 16;
    return {unit / 8 % 2, unit % 8 + rest % (Shape::kPieces / 8) * 8,
            rest / (Shape::kPieces / 8)};
  }
}

// A thread's units of a tile's keys or values, between memories.
template <int kHeadDim, KvDtype kDtype, bool kKeys>
struct FillWords {
  using Shape = FillShape<kHeadDim, kDtype, kKeys>;
  Word4 rows[Shape::kOfThread][4];
};

// Where the 16 slots lie that a thread reads next of each of its units. What
// comes after them is looked up while they are read, and found without a
// division: else each unit would wait for the table before it asks for KV.
template <int kHeadDim, KvDtype kDtype, bool kKeys>
struct FillCursor {
  using Shape = FillShape<kHeadDim, kDtype, kKeys>;
  int32_t block[Shape::kOfThread];  // of the table
  int32_t slot[Shape::kOfThread];
  BlockId id[Shape::kOfThread];

  // Which 16 slots of a tile.
  BATON_DEVICE static int32_t Group(int i) {
    const FillUnit unit =
        UnitOf<Shape>(Thread() % kFillThreads + i * kFillThreads);
    return kKeys ? unit.block : unit.piece / 2;
  }
  BATON_DEVICE void LookUp(const BlockId* blocks, int32_t first, int32_t end) {
    BATON_UNROLL
    for (int i = 0; i < Shape::kOfThread; ++i) {
      id[i] = first + 16 * Group(i) < end ? blocks[block[i]] : 0;
    }
  }
  BATON_DEVICE void Begin(const BlockId* blocks, int32_t block_size,
                          int32_t first, int32_t end) {
    BATON_UNROLL
    for (int i = 0; i < Shape::kOfThread; ++i) {
      const uint32_t position = first + 16 * Group(i);
      block[i] = position / static_cast<uint32_t>(block_size);
      slot[i] = position % static_cast<uint32_t>(block_size);
    }
    LookUp(blocks, first, end);
  }
  // A tile, which is so many blocks and slots, on, to position `first`.
  BATON_DEVICE void Next(const BlockId* blocks, int32_t block_size,
                         int32_t step_blocks, int32_t step_slots, int32_t first,
                         int32_t end) {
    BATON_UNROLL
    for (int i = 0; i < Shape::kOfThread; ++i) {
      block[i] += step_blocks;
      slot[i] += step_slots;
      if (slot[i] >= block_size) {
        slot[i] -= block_size;
        ++block[i];
      }
    }
    LookUp(blocks, first, end);
  }
};

// Reads them, of positions [first, first + 64), of which those before `end`
// exist, and which the cursor is at. 16 slots none of which exist are zeros.
template <int kHeadDim, KvDtype kDtype, bool kKeys>
BATON_DEVICE void ReadUnits(const AttentionArgs& args,
                            const FillCursor<kHeadDim, kDtype, kKeys>& cursor,
                            int32_t kv_head, int32_t first, int32_t end,
                            FillWords<kHeadDim, kDtype, kKeys>& words) {
  using Shape = FillShape<kHeadDim, kDtype, kKeys>;
  const int32_t me = Thread() % kFillThreads;
  const std::byte* from[Shape::kOfThread];
  bool there[Shape::kOfThread];
  BATON_UNROLL
  for (int i = 0; i < Shape::kOfThread; ++i) {
    const FillUnit unit = UnitOf<Shape>(me + i * kFillThreads);
    const int32_t slots = kKeys ? unit.block : unit.piece / 2;
    there[i] =
        first + 16 * slots < end && me + i * kFillThreads < Shape::kUnits;
    const int32_t slot = cursor.slot[i];
    // Rows of KV memory: pairs of elements of 16 slots' keys; pairs of slots of
    // 16 elements of values.
    const int32_t row = kKeys ? slot / 16 * (kHeadDim / 2) + 4 * unit.piece
                              : unit.block * (args.block_size / 2) + slot / 2 +
                                    unit.piece % 2 * 4;
    from[i] = args.pages + cursor.id[i] * args.page_bytes +
              kv_head * args.head_bytes + (kKeys ? 0 : args.values_offset) +
              row * Shape::kRowBytes + unit.columns * 16;
  }
  BATON_UNROLL
  for (int i = 0; i < Shape::kOfThread; ++i) {
    BATON_UNROLL
    for (int j = 0; j < 4; ++j) {
      words.rows[i][j] =
          there[i] ? Load16(from[i] + j * Shape::kRowBytes) : Word4{};
    }
  }
  if constexpr (!kKeys && kDtype == KvDtype::kBf16) {
    if (first + kTilePositions > end) {
      BATON_UNROLL
      for (int i = 0; i < Shape::kOfThread; ++i) {
        const FillUnit unit = UnitOf<Shape>(me + i * kFillThreads);
        const int32_t slots_begin = first + 8 * unit.piece;
        BATON_UNROLL
        for (int j = 0; j < 4; ++j) {
          const uint32_t keep = KeptHalves(slots_begin + 2 * j, end);
          BATON_UNROLL
          for (int w = 0; w < 4; ++w) words.rows[i][j].x[w] &= keep;
        }
      }
    }
  }
}

// Writes them: `to` is where the tile's keys, or values, begin.
template <int kHeadDim, KvDtype kDtype, bool kKeys>
BATON_DEVICE void WriteUnits(const FillWords<kHeadDim, kDtype, kKeys>& words,
                             unsigned char* to) {
  using Shape = FillShape<kHeadDim, kDtype, kKeys>;
  const int32_t me = Thread() % kFillThreads;
  BATON_UNROLL
  for (int i = 0; i < Shape::kOfThread; ++i) {
    if (me + i * kFillThreads >= Shape::kUnits) continue;
    const FillUnit unit = UnitOf<Shape>(me + i * kFillThreads);
    BATON_UNROLL
    for (int column = 0; column < Shape::kColumns; ++column) {
      Word4 piece;
      BATON_UNROLL
      for (int j = 0; j < 4; ++j) {
        if constexpr (kDtype == KvDtype::kBf16) {
          piece.x[j] = words.rows[i][j].x[column];
        } else {
          const uint32_t two = words.rows[i][j].x[column / 2];
          piece.x[j] =
              PairOf<kDtype>(column % 2 == 0 ? two & 0xffffu : two >> 16);
        }
      }
      const int32_t row =
          16 * unit.block + Shape::kColumns * unit.columns + column;
      StoreForTensorCores16(to + unit.piece / 8 * Shape::kMatrixBytes +
                                row * 128 + (unit.piece % 8 ^ row % 8) * 16,
                            piece);
    }
  }
}

// Copies the tile's scales, those of keys first.
BATON_DEVICE void FillScales(const AttentionArgs& args, const BlockId* blocks,
                             int32_t kv_head, int32_t first, int32_t end,
                             unsigned char* to) {
  // Four scales a thread.
  const int32_t me = Thread() % kFillThreads;
  if (me >= kGroupScaleBytes / 16) return;
  const bool value = me >= kTilePositions / 4;
  const int32_t position = first + me % (kTilePositions / 4) * 4;
  Word4 scales = {};
  if (position / 16 * 16 < end) {
    const std::byte* const from =
        args.pages + blocks[position / args.block_size] * args.page_bytes +
        kv_head * args.head_bytes + (value ? args.values_offset : 0) +
        args.scales_offset + position % args.block_size * 4;
    scales = Load16(from);
  }
  Store16(to + me * 16, scales);
}

}  // namespace baton::engine::cuda
