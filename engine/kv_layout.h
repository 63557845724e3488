// Where a token's keys and values lie in a worker's KV memory.
//
// KV memory is one arena: for each layer, `num_blocks` pages of `page_bytes()`
// each, page b of layer l at PageOffset(l, b). A page holds one block of one
// layer, head after head; a slice of heads is therefore one contiguous run, and
// a page is the unit that a hand-off sends. A head's part holds
//
//   keys     for every 16 slots: [stored_head_dim / 2][16 slots][2 elements]
//   scales   float32 [block_size], not of kBf16: key = scale * stored
//   values   for every 16 elements: [block_size / 2][16 elements][2 slots]
//   scales   float32 [block_size], not of kBf16
//
// which is how the two products of attention read them: the CPU backend then
// moves whole cache lines and transposes nothing. stored_head_dim() is head_dim
// rounded up to 16; what is between is zero or not read.
//
// Models with latent attention (LatentConfig, model_config.h) have one head, of
// whose key the first `shared_value_dim` elements are the value, too. They are
// stored once: there are keys and their scales alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/ids.h"

namespace baton::engine {

// How keys and values are stored.
enum class KvDtype {
  kBf16,
  kInt8,  // with one float32 scale per token, head and key or value
  kFp8,   // e4m3 (engine/e4m3.h), with scales as kInt8
};

inline constexpr KvDtype kKvDtypes[] = {KvDtype::kBf16, KvDtype::kInt8,
                                        KvDtype::kFp8};

// "bf16", "int8", "fp8".
constexpr const char* KvDtypeName(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kBf16:
      return "bf16";
    case KvDtype::kInt8:
      return "int8";
    case KvDtype::kFp8:
      return "fp8";
  }
  return "";
}

// None when there is no such dtype.
constexpr std::optional<KvDtype> ParseKvDtype(std::string_view name) {
  for (const KvDtype dtype : kKvDtypes) {
    if (name == KvDtypeName(dtype)) return dtype;
  }
  return std::nullopt;
}

constexpr bool HasScales(KvDtype dtype) { return dtype != KvDtype::kBf16; }

struct KvLayout {
  int32_t num_layers = 0;
  int32_t num_blocks = 0;   // blocks in the pool
  int32_t block_size = 16;  // tokens per block, a multiple of 16
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // of keys
  KvDtype dtype = KvDtype::kBf16;
  // When not 0: values are so many of the first elements of keys.
  int32_t shared_value_dim = 0;

  bool has_scales() const { return HasScales(dtype); }
  int64_t element_bytes() const { return dtype == KvDtype::kBf16 ? 2 : 1; }
  int32_t stored_head_dim() const { return (head_dim + 15) / 16 * 16; }
  bool shares_values() const { return shared_value_dim > 0; }
  int32_t value_dim() const {
    return shares_values() ? shared_value_dim : head_dim;
  }
  int32_t stored_value_dim() const { return (value_dim() + 15) / 16 * 16; }
  // Within a head's part of a page.
  int64_t KeyScalesOffset() const {
    return int64_t{block_size} * stored_head_dim() * element_bytes();
  }
  int64_t ValuesOffset() const {
    const int64_t scale_bytes = has_scales() ? 4 : 0;
    return KeyScalesOffset() + block_size * scale_bytes;
  }
  int64_t ValueScalesOffset() const {
    return ValuesOffset() + KeyScalesOffset();
  }
  // Bytes of one KV head in a page.
  int64_t head_bytes() const {
    return (shares_values() ? 1 : 2) * ValuesOffset();
  }
  int64_t page_bytes() const { return num_kv_heads * head_bytes(); }
  int64_t layer_bytes() const { return num_blocks * page_bytes(); }
  int64_t total_bytes() const { return num_layers * layer_bytes(); }
  // Bytes of one block over all layers.
  int64_t block_bytes() const { return num_layers * page_bytes(); }
  int64_t PageOffset(int32_t layer, BlockId block) const {
    return layer * layer_bytes() + block * page_bytes();
  }
  // Blocks that hold `num_tokens` tokens.
  int32_t BlocksFor(int64_t num_tokens) const {
    return static_cast<int32_t>((num_tokens + block_size - 1) / block_size);
  }
};

}  // namespace baton::engine
