// A tile of keys and values in a block's memory, for attention.cuh: how it
// comes there, and how lanes read it.
//
// Rows are as KV memory has them (kv_layout.h): 16 pairs of neighbouring
// elements of 16 slots' keys, or of neighbouring slots of 16 elements of
// values.
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

// A pair as two bfloat16, of a row that is a multiple of 4, plus c, and of
// column g, or g + 8: `lane` is the lane's place in the first of such rows
// (LanePlace), so that rows are distances that the compiler knows.
template <KvDtype kDtype>
BATON_DEVICE int32_t LanePlace(int32_t second_columns) {
  return PairPlace<kDtype>(Thread() % 4,
                           Thread() % 32 / 4 + 8 * second_columns);
}
template <KvDtype kDtype>
BATON_DEVICE uint32_t PairIn(const unsigned char* lane, int32_t row) {
  const unsigned char* const at = lane + PairPlace<kDtype>(row, 0);
  if constexpr (kDtype == KvDtype::kBf16) {
    return *reinterpret_cast<const uint32_t*>(at);
  } else {
    return PairOf<kDtype>(*reinterpret_cast<const uint16_t*>(at));
  }
}

// Starts the copies of positions [first, first + 64), of which those before
// `end` exist, for one KV head. 16 slots none of which exist become zeros. By
// all kThreads threads of a block: a warp has 16 slots, and looks up once where
// they lie; rows are then as far from each other as the compiler can say.
template <int kHeadDim, KvDtype kDtype, int kThreads>
BATON_DEVICE void FetchTile(const AttentionArgs& args, const BlockId* blocks,
                            int32_t kv_head, int32_t first, int32_t end,
                            unsigned char* stage) {
  using Stage = TileStage<kHeadDim, kDtype>;
  constexpr int32_t kRowBytes = Stage::kRowBytes;
  constexpr int32_t kRowPieces = kRowBytes / 16;
  constexpr int32_t kRows = 32 / kRowPieces;    // that a warp copies at a time
  constexpr int32_t kGroupRows = kHeadDim / 2;  // of 16 slots' keys, or values
  static_assert(kRows % 8 == 0);
  const int32_t lane = Thread() % 32;
  const int32_t row = lane / kRowPieces;
  const int32_t column = lane % kRowPieces * (16 / kRowPieces);
  const int32_t panel_bytes = args.block_size / 2 * kRowBytes;
  BATON_UNROLL
  for (int k = 0; k < kTilePositions / 16 / (kThreads / 32); ++k) {
    const int32_t group = Thread() / 32 + k * (kThreads / 32);
    const int32_t position = first + 16 * group;
    const bool there = position < end;
    const int32_t block = position / args.block_size;
    const int32_t slot = position - block * args.block_size;
    const std::byte* const head =
        args.pages + (there ? blocks[block] * args.page_bytes : 0) +
        kv_head * args.head_bytes;
    const std::byte* const keys =
        head + (slot / 16 * kGroupRows * kRowBytes + lane * 16);
    unsigned char* const keys_to =
        stage + group * kGroupRows * kRowBytes + PairPlace<kDtype>(row, column);
    // Eight rows of each panel.
    const std::byte* values =
        head + args.values_offset +
        (row / 8 * panel_bytes + (slot / 2 + row % 8) * kRowBytes +
         lane % kRowPieces * 16);
    unsigned char* const values_to = stage + Stage::kValues +
                                     (row / 8 * 32 + group * 8) * kRowBytes +
                                     PairPlace<kDtype>(row % 8, column);
    BATON_UNROLL
    for (int i = 0; i < (kGroupRows + kRows - 1) / kRows; ++i) {
      if (kGroupRows % kRows != 0 && row + i * kRows >= kGroupRows) continue;
      CopyAsync16(keys_to + i * kRows * kRowBytes, keys + i * kRows * kRowBytes,
                  there);
      CopyAsync16(values_to + i * (kRows / 8 * 32) * kRowBytes, values, there);
      values += kRows / 8 * panel_bytes;
    }
    if constexpr (Stage::kHasScales) {
      // 16 scales of keys, 16 of values.
      if (lane < 8) {
        const bool value = lane >= 4;
        CopyAsync16(stage + (value ? Stage::kValueScales : Stage::kKeyScales) +
                        group * 64 + lane % 4 * 16,
                    head + (value ? args.values_offset : 0) +
                        args.scales_offset + slot * 4 + lane % 4 * 16,
                    there);
      }
    }
  }
}

}  // namespace baton::engine::cuda
