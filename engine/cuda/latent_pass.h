// Latent attention within a pass (forward_pass.h): the kernels of a layer
// between its first norm and attention, and between attention and the output
// projection, with the memory that they need.
//
// Rows of heads are multiplied some at a time, as there are many of them; how
// many changes no bit.
//
// Called by the rank's thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/ids.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/device_weights.h"
#include "engine/cuda/heads.h"
#include "engine/cuda/latent.h"
#include "engine/cuda/matmul.h"
#include "engine/cuda/shard.h"
#include "engine/kv_layout.h"
#include "engine/model_config.h"

namespace baton::engine::cuda {

class LatentPass final {
 public:
  // Of passes of up to `max_rows` rows, with the shard's heads. `config` must
  // outlive the object. REQUIRES: config.IsLatent().
  LatentPass(const ModelConfig& config, const Shard& shard,
             const KvLayout& layout, int32_t max_rows);

  // Bytes of device memory that Allocate takes.
  int64_t DeviceBytes() const;
  // ResourceExhausted.
  absl::Status Allocate(Stream& stream);

  // What the kernels of a layer read and write beside its weights.
  struct Layer {
    const RowPlace* places = nullptr;
    const BlockId* block_tables = nullptr;
    std::byte* pages = nullptr;
    const float* rope = nullptr;  // [positions][head_dim]
    // bfloat16 [rows][stride], in the order that products of so many rows take.
    const uint16_t* normed = nullptr;
    int64_t normed_stride = 0;
    InputOrder order = InputOrder::kNatural;
    float* made = nullptr;        // float32 [rows][what `down` makes]
    uint16_t* queries = nullptr;  // bfloat16 [rows][heads][stored head_dim]
  };

  // At the beginning of a pass, and of what is recorded as a graph.
  void Begin() { table_rows_ = 0; }
  // From normalized rows to queries and, in KV memory, keys.
  void Project(const DeviceLatent& w, const Layer& layer, int32_t rows,
               const DeviceKernels& kernels, Stream& stream);
  // Where attention puts its results: AttentionArgs has these names.
  uint16_t* out() const { return sums_.as<uint16_t>(); }
  int64_t out_stride() const { return int64_t{heads_} * out_step(); }
  int32_t out_step() const { return PaddedInputs(config_.latent.rank); }
  // From there to what the output projection takes of these heads.
  void Finish(const DeviceLatent& w, int32_t rows, uint16_t* attended,
              int64_t attended_stride, InputOrder order, Stream& stream);

 private:
  // The product of each head's rows of `x`, [rows][heads][stride], with its own
  // matrix, whose first one `w` is; rounded to where `round` says.
  void MultiplyHeads(const DeviceMatrix& w, const uint16_t* x, int64_t stride,
                     RoundHeadsArgs round, int32_t rows, Stream& stream);

  const ModelConfig& config_;
  const int32_t heads_;  // the rank's
  const KvLayout layout_;
  const int32_t max_rows_;

  DeviceBuffer query_latent_;  // bfloat16 [rows][padded query_rank]
  DeviceBuffer head_queries_;  // float32 [rows][heads][query_dim]
  DeviceBuffer nope_;          // bfloat16 [rows][heads][padded nope_dim]
  DeviceBuffer sums_;          // bfloat16 [rows][heads][padded rank]
  // Of some rows at a time.
  DeviceBuffer head_made_;  // float32 [heads][rows][rank or value_dim]
  DeviceBuffer tiles_;      // RowTile
  DeviceBuffer x_rows_;     // int32 [heads][rows]
  // Of how many rows the tables are, and of a tile; 0: there are none.
  int32_t table_rows_ = 0;
  int32_t table_tile_rows_ = 0;
};

}  // namespace baton::engine::cuda
