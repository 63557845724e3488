#include "engine/cpu/kv_pages.h"

#include <algorithm>
#include <cstring>

#include "common/log.h"
#include "engine/model_limits.h"

namespace baton::engine::cpu {
namespace {

constexpr int64_t kCacheLine = 64;

// Elements of a tile's value panel that 16 positions take.
constexpr int64_t kSlotsElements = int64_t{kPanelColumns} * kPanelColumns;

// Stores `n` rounded values in pairs that lie kPanelColumns pairs apart: the
// pairs of a key.
template <typename T>
void ScatterPairs(const T* from, int32_t n, T* to) {
  for (int32_t i = 0; i < n; i += 2) {
    std::memcpy(to + i / 2 * kPanelPairElements, from + i, 2 * sizeof(T));
  }
}

// Stores one half of the pairs of a value's panels.
template <typename T>
void ScatterHalves(const T* from, int32_t n, int64_t panel_stride, T* to) {
  for (int32_t first = 0; first < n; first += kPanelColumns) {
    const int32_t count = std::min(kPanelColumns, n - first);
    for (int32_t i = 0; i < count; ++i) to[2 * i] = from[first + i];
    to += panel_stride;
  }
}

}  // namespace

void KvPages::WriteKey(int32_t layer, absl::Span<const BlockId> blocks,
                       int32_t position, int32_t kv_head,
                       const float* key) const {
  const int32_t slot = position % layout_.block_size;
  std::byte* const head =
      Head(layer, blocks[position / layout_.block_size], kv_head);
  const int64_t place =
      slot / kPanelColumns * kPanelColumns * layout_.stored_head_dim() +
      slot % kPanelColumns * 2;
  if (layout_.dtype == KvDtype::kBf16) {
    uint16_t rounded[kMaxHeadDim];
    kernels_.round_row(key, layout_.head_dim, rounded);
    ScatterPairs(rounded, layout_.head_dim,
                 reinterpret_cast<uint16_t*>(head) + place);
    return;
  }
  int8_t rounded[kMaxHeadDim];
  int32_t sum;
  const float scale = kernels_.quantize(key, layout_.head_dim, rounded, &sum);
  ScatterPairs(rounded, layout_.head_dim,
               reinterpret_cast<int8_t*>(head) + place);
  std::memcpy(head + layout_.KeyScalesOffset() + slot * sizeof(float), &scale,
              sizeof(float));
}

void KvPages::WriteValue(int32_t layer, absl::Span<const BlockId> blocks,
                         int32_t position, int32_t kv_head,
                         const float* value) const {
  const int32_t slot = position % layout_.block_size;
  std::byte* const head =
      Head(layer, blocks[position / layout_.block_size], kv_head);
  std::byte* const values = head + layout_.ValuesOffset();
  const int64_t place = slot / 2 * kPanelPairElements + slot % 2;
  const int64_t panel_stride = int64_t{layout_.block_size} * kPanelColumns;
  if (layout_.dtype == KvDtype::kBf16) {
    uint16_t rounded[kMaxHeadDim];
    kernels_.round_row(value, layout_.head_dim, rounded);
    ScatterHalves(rounded, layout_.head_dim, panel_stride,
                  reinterpret_cast<uint16_t*>(values) + place);
    return;
  }
  int8_t rounded[kMaxHeadDim];
  int32_t sum;
  const float scale = kernels_.quantize(value, layout_.head_dim, rounded, &sum);
  ScatterHalves(rounded, layout_.head_dim, panel_stride,
                reinterpret_cast<int8_t*>(values) + place);
  std::memcpy(head + layout_.ValueScalesOffset() + slot * sizeof(float), &scale,
              sizeof(float));
}

void KvPages::ReadSlots(const std::byte* head, int32_t slot, uint16_t* keys,
                        uint16_t* values) const {
  const int32_t stored = layout_.stored_head_dim();
  const uint16_t* const page = reinterpret_cast<const uint16_t*>(head);
  kernels_.copy(page + slot * stored, kPanelColumns * stored, keys);
  if (layout_.shares_values()) return;
  const uint16_t* from =
      reinterpret_cast<const uint16_t*>(head + layout_.ValuesOffset()) +
      slot * kPanelColumns;
  for (int32_t p = 0; p < stored / kPanelColumns; ++p) {
    kernels_.copy(from, kSlotsElements, values + p * kValuePanelStride);
    from += int64_t{layout_.block_size} * kPanelColumns;
  }
}

void KvPages::DequantizeSlots(const std::byte* head, int32_t slot,
                              uint16_t* keys, uint16_t* values) const {
  const int32_t stored = layout_.stored_head_dim();
  const float* const key_scales =
      reinterpret_cast<const float*>(head + layout_.KeyScalesOffset()) + slot;
  kernels_.dequantize_pairs(
      reinterpret_cast<const int8_t*>(head) + slot * stored,
      stored / 2 * kPanelColumns, key_scales, key_scales, keys);
  if (layout_.shares_values()) return;
  const int8_t* const from =
      reinterpret_cast<const int8_t*>(head + layout_.ValuesOffset()) +
      slot * kPanelColumns;
  const float* const value_scales =
      reinterpret_cast<const float*>(head + layout_.ValueScalesOffset()) + slot;
  for (int32_t pair = 0; pair < kPanelColumns / 2; ++pair) {
    float low[kPanelColumns];
    float high[kPanelColumns];
    std::fill_n(low, kPanelColumns, value_scales[2 * pair]);
    std::fill_n(high, kPanelColumns, value_scales[2 * pair + 1]);
    for (int32_t p = 0; p < stored / kPanelColumns; ++p) {
      kernels_.dequantize_pairs(
          from + int64_t{p} * layout_.block_size * kPanelColumns +
              pair * kPanelPairElements,
          kPanelColumns, low, high,
          values + p * kValuePanelStride + pair * kPanelPairElements);
    }
  }
}

void KvPages::ReadTile(int32_t layer, absl::Span<const BlockId> blocks,
                       int32_t kv_head, int32_t first, int32_t end,
                       uint16_t* keys, uint16_t* values) const {
  for (int32_t at = first; at < end; at += kPanelColumns) {
    const std::byte* const head =
        Head(layer, blocks[at / layout_.block_size], kv_head);
    const int32_t slot = at % layout_.block_size;
    uint16_t* const some_keys =
        keys + int64_t{at - first} * layout_.stored_head_dim();
    uint16_t* const some_values =
        values + (at - first) / 2 * kPanelPairElements;
    if (layout_.dtype == KvDtype::kBf16) {
      ReadSlots(head, slot, some_keys, some_values);
    } else {
      DequantizeSlots(head, slot, some_keys, some_values);
    }
    if (layout_.shares_values()) {
      kernels_.values_of_keys(some_keys, layout_.stored_value_dim(),
                              kValuePanelStride, some_values);
    }
  }
  // Blocks are not cleared between sequences, and zero times what may lie there
  // is not always zero.
  const int32_t whole =
      (end - first + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
  for (int32_t slot = end - first; slot < whole; ++slot) {
    for (int32_t p = 0; p < layout_.stored_value_dim() / kPanelColumns; ++p) {
      uint16_t* const row =
          values + p * kValuePanelStride + slot / 2 * kPanelPairElements;
      for (int32_t c = 0; c < kPanelColumns; ++c) row[2 * c + slot % 2] = 0;
    }
  }
}

KvPages::Slots KvPages::At(int32_t layer, absl::Span<const BlockId> blocks,
                           int32_t kv_head, int32_t position) const {
  const std::byte* const head =
      Head(layer, blocks[position / layout_.block_size], kv_head);
  const int32_t slot = position % layout_.block_size;
  Slots slots;
  slots.keys = reinterpret_cast<const uint16_t*>(head) +
               slot * layout_.stored_head_dim();
  slots.values =
      reinterpret_cast<const uint16_t*>(head + layout_.ValuesOffset()) +
      slot * kPanelColumns;
  slots.value_panel_stride = int64_t{layout_.block_size} * kPanelColumns;
  return slots;
}

void KvPages::PrefetchBehind(const Slots& slots) const {
  const int64_t elements = int64_t{kPanelColumns} * layout_.stored_head_dim();
  constexpr int64_t kLineElements = kCacheLine / sizeof(uint16_t);
  const uint16_t* const from = slots.keys + elements;
  for (int64_t i = 0; i < 2 * elements; i += kLineElements) {
    __builtin_prefetch(from + i, /*rw=*/0, /*locality=*/2);
  }
}

void KvPages::Prefetch(int32_t layer, absl::Span<const BlockId> blocks,
                       int32_t kv_head, int32_t first, int32_t end) const {
  const int32_t element_bytes = static_cast<int32_t>(layout_.element_bytes());
  const int64_t key_bytes =
      kPanelColumns * layout_.stored_head_dim() * int64_t{element_bytes};
  const int64_t panel_bytes = kSlotsElements * element_bytes;
  const auto fetch = [](const std::byte* from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += kCacheLine) {
      __builtin_prefetch(from + i, /*rw=*/0, /*locality=*/2);
    }
  };
  for (int32_t at = first; at < end; at += kPanelColumns) {
    const std::byte* const head =
        Head(layer, blocks[at / layout_.block_size], kv_head);
    const int32_t slot = at % layout_.block_size;
    fetch(head + slot / kPanelColumns * key_bytes, key_bytes);
    if (layout_.shares_values()) continue;
    const std::byte* values =
        head + layout_.ValuesOffset() + slot / kPanelColumns * panel_bytes;
    for (int32_t p = 0; p < layout_.stored_head_dim() / kPanelColumns; ++p) {
      fetch(values, panel_bytes);
      values += panel_bytes * (layout_.block_size / kPanelColumns);
    }
  }
}

}  // namespace baton::engine::cpu
