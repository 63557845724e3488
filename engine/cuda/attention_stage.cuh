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
// `end` exist, for one KV head. 16 slots none of which exists become zeros.
template <int kHeadDim, KvDtype kDtype>
BATON_DEVICE void FetchTile(const AttentionArgs& args, const BlockId* blocks,
                            int32_t kv_head, int32_t first, int32_t end,
                            unsigned char* stage) {
  using Stage = TileStage<kHeadDim, kDtype>;
  constexpr int32_t kRowBytes = Stage::kRowBytes;
  constexpr int32_t kRowPieces = kRowBytes / 16;
  constexpr int32_t kGroupPieces = kHeadDim / 2 * kRowPieces;  // of 16 slots
  constexpr int32_t kPieceColumns = 16 / kRowPieces;
  for (int32_t group = 0; group < kTilePositions / 16; ++group) {
    const int32_t position = first + 16 * group;
    const bool there = position < end;
    const std::byte* head = args.pages;
    int32_t slot = 0;
    if (there) {
      head += blocks[position / args.block_size] * args.page_bytes +
              kv_head * args.head_bytes;
      slot = position % args.block_size;
    }
    const std::byte* const keys =
        head + int64_t{slot / 16} * (kHeadDim / 2) * kRowBytes;
    const std::byte* const values =
        head + args.values_offset + slot / 2 * kRowBytes;
    for (int32_t i = Thread(); i < kGroupPieces; i += Threads()) {
      const int32_t column = i % kRowPieces * kPieceColumns;
      const int32_t pair = i / kRowPieces;  // of elements
      CopyAsync16(
          stage + PairPlace<kDtype>(group * kHeadDim / 2 + pair, column),
          there ? keys + i * 16 : args.pages, there);
      const int32_t panel = pair / 8;
      const int32_t slots = pair % 8;  // pair of slots
      CopyAsync16(
          stage + Stage::kValues +
              PairPlace<kDtype>(panel * 32 + group * 8 + slots, column),
          there ? values + (panel * args.block_size / 2 + slots) * kRowBytes +
                      i % kRowPieces * 16
                : args.pages,
          there);
    }
    if constexpr (Stage::kHasScales) {
      // 16 scales of keys, 16 of values.
      for (int32_t i = Thread(); i < 8; i += Threads()) {
        const bool value = i >= 4;
        CopyAsync16(stage + (value ? Stage::kValueScales : Stage::kKeyScales) +
                        group * 64 + i % 4 * 16,
                    there ? head + (value ? args.values_offset : 0) +
                                args.scales_offset + slot * 4 + i % 4 * 16
                          : args.pages,
                    there);
      }
    }
  }
}

}  // namespace baton::engine::cuda
