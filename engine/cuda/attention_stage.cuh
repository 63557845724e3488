// A tile of keys and values in a block's memory, for attention.cuh: how it
// comes there, and how lanes read it.
//
// Rows are as KV memory has them (kv_layout.h): 16 pairs of neighbouring
// elements of 16 slots' keys, or of neighbouring slots of 16 elements of
// values.
//
// Never ran on a GPU: run on the emulated device only (docs/gpu.md).
#pragma once

#include <cstdint>

#include "device_target.h"
#include "engine/cuda/attention.h"
#include "engine/cuda/weight_words.cuh"

namespace baton::engine::cuda {

// Keys first, [4][kHeadDim / 2] rows, then values, [kHeadDim / 16][32] rows;
// where there are scales also these, 64 of keys and 64 of values.
template <int kHeadDim, KvDtype kDtype>
struct TileStage {
  static constexpr bool kHasScales = HasScales(kDtype);
  static constexpr int32_t kRowBytes = kDtype == KvDtype::kBf16 ? 64 : 32;
  static constexpr int32_t kValues =
      kTilePositions / 16 * (kHeadDim / 2) * kRowBytes;
  static constexpr int32_t kKeyScales = 2 * kValues;
  static constexpr int32_t kValueScales = kKeyScales + kTilePositions * 4;

  static BATON_DEVICE const float* KeyScales(const unsigned char* stage) {
    return reinterpret_cast<const float*>(stage + kKeyScales);
  }
  static BATON_DEVICE const float* ValueScales(const unsigned char* stage) {
    return reinterpret_cast<const float*>(stage + kValueScales);
  }
};

// Where a pair lies behind the first row, in bytes. Lanes that read together
// (rows c, c < 4, and eight columns) use different banks: rows of bytes as they
// follow each other, those of bfloat16 because pairs of rows change places.
template <KvDtype kDtype>
BATON_DEVICE int32_t PairPlace(int32_t row, int32_t column) {
  if constexpr (kDtype == KvDtype::kBf16) {
    return (row * 16 + (column ^ (row / 2 % 2 * 8))) * 4;
  } else {
    return (row * 16 + column) * 2;
  }
}

// Two stored bytes, the low half of a word, as two bfloat16: numbers, whatever
// the bytes: e4m3's NaN, which has a scale that is NaN, too, becomes 480.
template <KvDtype kDtype>
BATON_DEVICE uint32_t PairOf(uint32_t bytes) {
  const uint32_t apart = bytes | bytes << 8;  // byte 1 goes to byte 2
  if constexpr (kDtype == KvDtype::kInt8) {
    return Int8Pair(apart);
  } else {
    return Fp8Pair(apart << 8);
  }
}

// A pair as two bfloat16.
template <KvDtype kDtype>
BATON_DEVICE uint32_t PairAt(const unsigned char* rows, int32_t row,
                             int32_t column) {
  const unsigned char* const at = rows + PairPlace<kDtype>(row, column);
  if constexpr (kDtype == KvDtype::kBf16) {
    return *reinterpret_cast<const uint32_t*>(at);
  } else {
    return PairOf<kDtype>(*reinterpret_cast<const uint16_t*>(at));
  }
}

// Starts the copies of positions [first, first + 64), of which those before
// `end` exist, for one KV head. 16 slots none of which exist become zeros. By
// all kThreads threads of a block.
template <int kHeadDim, KvDtype kDtype, int kThreads>
BATON_DEVICE void FetchTile(const AttentionArgs& args, const BlockId* blocks,
                            int32_t kv_head, int32_t first, int32_t end,
                            unsigned char* stage) {
  using Stage = TileStage<kHeadDim, kDtype>;
  constexpr int32_t kRowBytes = Stage::kRowBytes;
  constexpr int32_t kRowPieces = kRowBytes / 16;
  constexpr int32_t kGroups = kTilePositions / 16;
  constexpr int32_t kGroupPieces = kHeadDim / 2 * kRowPieces;  // of 16 slots
  constexpr int32_t kPieceColumns = 16 / kRowPieces;
  // Where each 16 slots lie: all looked up before any is used.
  const std::byte* heads[kGroups];
  int32_t slots[kGroups];
  int32_t block = first / args.block_size;
  int32_t slot = first - block * args.block_size;
  BATON_UNROLL
  for (int group = 0; group < kGroups; ++group) {
    const bool there = first + 16 * group < end;
    heads[group] = there ? args.pages + blocks[block] * args.page_bytes +
                               kv_head * args.head_bytes
                         : nullptr;
    slots[group] = slot;
    slot += 16;
    if (slot >= args.block_size) {
      slot = 0;
      ++block;
    }
  }
  BATON_UNROLL
  for (int group = 0; group < kGroups; ++group) {
    const bool there = heads[group] != nullptr;
    const std::byte* const head = there ? heads[group] : args.pages;
    const int32_t at = there ? slots[group] : 0;
    const std::byte* const keys =
        head + int64_t{at / 16} * (kHeadDim / 2) * kRowBytes;
    const std::byte* const values =
        head + (there ? args.values_offset : 0) + at / 2 * kRowBytes;
    BATON_UNROLL
    for (int k = 0; k < (kGroupPieces + kThreads - 1) / kThreads; ++k) {
      const int32_t i = Thread() + k * kThreads;
      if (kGroupPieces % kThreads != 0 && i >= kGroupPieces) continue;
      const int32_t column = i % kRowPieces * kPieceColumns;
      const int32_t pair = i / kRowPieces;  // of elements
      CopyAsync16(
          stage + PairPlace<kDtype>(group * kHeadDim / 2 + pair, column),
          there ? keys + i * 16 : head, there);
      const int32_t panel = pair / 8;
      const int32_t pairs = pair % 8;  // of slots
      CopyAsync16(
          stage + Stage::kValues +
              PairPlace<kDtype>(panel * 32 + group * 8 + pairs, column),
          there ? values + (panel * args.block_size / 2 + pairs) * kRowBytes +
                      i % kRowPieces * 16
                : head,
          there);
    }
    if constexpr (Stage::kHasScales) {
      // 16 scales of keys, 16 of values.
      const int32_t i = Thread();
      if (i < 8) {
        const bool value = i >= 4;
        CopyAsync16(stage + (value ? Stage::kValueScales : Stage::kKeyScales) +
                        group * 64 + i % 4 * 16,
                    there ? head + (value ? args.values_offset : 0) +
                                args.scales_offset + at * 4 + i % 4 * 16
                          : head,
                    there);
      }
    }
  }
}

}  // namespace baton::engine::cuda
