// Where a token's keys and values lie in a worker's KV memory.
//
// KV memory is one arena: for each layer, `num_blocks` pages of `page_bytes()`
// each, page b of layer l at PageOffset(l, b). A page holds one block of one
// layer: for each KV head, block_size keys of head_dim values, then block_size
// values of head_dim values. A slice of heads is therefore one contiguous run,
// and a page is the unit that a hand-off sends.
//
//   page:  | head 0: K[block_size][head_dim] V[block_size][head_dim] | head 1 ...
#pragma once

#include <cstdint>

#include "common/ids.h"

namespace baton::engine {

// How keys and values are stored.
enum class KvDtype {
  kBf16,
  kInt8,  // with one float32 scale per token, KV head and K or V
};

// "bf16", "int8".
const char* KvDtypeName(KvDtype dtype);

struct KvLayout {
  int32_t num_layers = 0;
  int32_t num_blocks = 0;  // blocks in the pool
  int32_t block_size = 16;  // tokens per block
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  KvDtype dtype = KvDtype::kBf16;

  int64_t element_bytes() const { return 2; }
  // Bytes of one KV head in a page (its K, then its V).
  int64_t head_bytes() const {
    return int64_t{2} * block_size * head_dim * element_bytes();
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
