// Which part of a model each rank of a tensor-parallel engine has.
//
// Same answer everywhere, also with another number of ranks: every matrix is
// cut by its outputs, so that each of them is one sum, on one rank, in the
// order that one rank alone has (matmul.h). What ranks computed is gathered,
// never added up. Attention is cut by KV heads, the logits by tokens of the
// vocabulary. Latent attention, which has one key for all heads, is cut by
// heads: each rank makes that key, with the same bits, and has all of KV
// memory.
//
// Plain values; any thread.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kv_layout.h"
#include "engine/model_config.h"

namespace baton::engine::cuda {

struct Shard {
  int32_t rank = 0;
  int32_t ranks = 1;

  // The shares of all ranks are equal, but for that of the vocabulary, where
  // the last ones may have less, or nothing.
  int32_t Heads(const ModelConfig& c) const { return c.num_heads / ranks; }
  int32_t KvHeads(const ModelConfig& c) const {
    return c.IsLatent() ? c.num_kv_heads : c.num_kv_heads / ranks;
  }
  int32_t Hidden(const ModelConfig& c) const { return c.hidden_size / ranks; }
  int32_t Intermediate(const ModelConfig& c) const {
    return c.intermediate_size / ranks;
  }
  int32_t ExpertIntermediate(const ModelConfig& c) const {
    return c.experts.intermediate_size / ranks;
  }
  int32_t Vocabulary(const ModelConfig& c) const {
    return (c.vocab_size + ranks - 1) / ranks;
  }
};

// InvalidArgument, naming the field of the model that so many ranks cannot
// share. Unimplemented: there are more experts, or groups of them, or tokens
// pass through more of them, than kernels take.
absl::Status CheckShards(const ModelConfig& config, int32_t ranks);

// Whether each rank has whole pages, and not some heads of them.
inline bool RanksHaveWholePages(const KvLayout& layout) {
  return layout.shares_values();
}

// A rank's part of KV memory: the same blocks with its heads alone.
inline KvLayout ShardLayout(const KvLayout& layout, const Shard& shard) {
  KvLayout part = layout;
  if (!RanksHaveWholePages(layout)) {
    part.num_kv_heads = layout.num_kv_heads / shard.ranks;
  }
  return part;
}

// What a block takes of the memory of all ranks.
inline int64_t BlockBytesOfAll(const KvLayout& layout, int32_t ranks) {
  return layout.block_bytes() * (RanksHaveWholePages(layout) ? ranks : 1);
}

}  // namespace baton::engine::cuda
