// Keys and values in KV memory: written token by token, read in tiles of
// neighbouring positions as the right-hand sides of attention's two products.
//
// Writing different tokens from several threads is safe; so is reading what
// nobody writes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "engine/cpu/kernels.h"
#include "engine/kv_layout.h"

namespace baton::engine::cpu {

class KvPages final {
 public:
  // Positions of a tile.
  static constexpr int32_t kTilePositions = 64;
  // bfloat16 values between the value panels of a tile.
  static constexpr int64_t kValuePanelStride =
      int64_t{kTilePositions} / 2 * kPanelPairElements;

  // `memory` is the arena of `layout`; both must outlive the object.
  KvPages(const Kernels& kernels, const KvLayout& layout, std::byte* memory)
      : kernels_(kernels), layout_(layout), memory_(memory) {}

  const KvLayout& layout() const { return layout_; }

  // Stores the key or the value of the token at `position` of a sequence,
  // head_dim values, rounded to the dtype of the layout.
  void WriteKey(int32_t layer, absl::Span<const BlockId> blocks,
                int32_t position, int32_t kv_head, const float* key) const;
  void WriteValue(int32_t layer, absl::Span<const BlockId> blocks,
                  int32_t position, int32_t kv_head, const float* value) const;

  // Reads positions [first, end) of a KV head as bfloat16, whether or not the
  // layout has values of their own: keys into panels of
  // 16 positions and head_dim / 2 pairs, one after another (16 *
  // stored_head_dim values each); values into a panel per 16 elements of a
  // value, kValuePanelStride apart, with a pair of positions per row. Values
  // from `end` to the end of the last 16 positions are zero; keys there are
  // anything.
  // REQUIRES: first is a multiple of 16, end - first <= kTilePositions.
  void ReadTile(int32_t layer, absl::Span<const BlockId> blocks,
                int32_t kv_head, int32_t first, int32_t end, uint16_t* keys,
                uint16_t* values) const;

  // Values of one head's keys, or values, in a tile.
  int64_t TileElements() const {
    return int64_t{kTilePositions} * layout_.stored_head_dim();
  }

  // The same for the 16 positions from `position` on, in place: one panel of
  // keys, and values in panels `value_panel_stride` apart. Where a sequence
  // ends before the 16th, what follows is anything.
  // REQUIRES: the dtype is kBf16, there are values of their own; position is a
  // multiple of 16.
  struct Slots {
    const uint16_t* keys = nullptr;
    const uint16_t* values = nullptr;
    int64_t value_panel_stride = 0;
  };
  Slots At(int32_t layer, absl::Span<const BlockId> blocks, int32_t kv_head,
           int32_t position) const;

  // Asks for what lies behind the keys of `slots`, as much as a head has in 16
  // slots: with blocks of 16 tokens that is its values and the next head's
  // keys, or the next block's where a sequence has neighbouring blocks.
  void PrefetchBehind(const Slots& slots) const;

  // Asks for the positions [first, end) of one KV head to be brought near: the
  // pages of one head lie apart, so the CPU does not guess where to read next.
  void Prefetch(int32_t layer, absl::Span<const BlockId> blocks,
                int32_t kv_head, int32_t first, int32_t end) const;

 private:
  // The part of a page that belongs to a head.
  std::byte* Head(int32_t layer, BlockId block, int32_t kv_head) const {
    return memory_ + layout_.PageOffset(layer, block) +
           kv_head * layout_.head_bytes();
  }
  // Copies 16 positions, slots [slot, slot + 16) of a block.
  void ReadSlots(const std::byte* head, int32_t slot, uint16_t* keys,
                 uint16_t* values) const;
  void DequantizeSlots(const std::byte* head, int32_t slot, uint16_t* keys,
                       uint16_t* values) const;

  const Kernels& kernels_;
  const KvLayout& layout_;
  std::byte* const memory_;
};

}  // namespace baton::engine::cpu
