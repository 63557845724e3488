// How large what a pass of the model needs is, on one rank (forward_pass.h).
// Plain values; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/cuda/matmul.h"
#include "engine/cuda/rank_kv_stage.h"
#include "engine/cuda/shard.h"
#include "engine/kv_layout.h"
#include "engine/model_config.h"

namespace baton::engine::cuda {

struct ForwardPassOptions {
  // Most rows of a pass; longer steps are cut.
  int32_t max_rows = 4096;
  // Bytes for the sums of spans that run apart; with latent attention, of each
  // block of heads (LatentBlocks).
  int64_t span_bytes = int64_t{128} << 20;
  // Bytes for logits and their edited copies, which bound the rows that are
  // sampled at a time.
  int64_t logit_bytes = int64_t{256} << 20;
  // Left to CUDA, for graphs and for what its allocator rounds, when KV memory
  // is a share of what is free; and as much to NCCL, for ranks that talk to
  // each other, and once more for transports that go from device to device.
  int64_t spare_bytes = int64_t{512} << 20;
  // What is there from the beginning for a step's arrays, and for positions of
  // the table of rotations, of which there may be fewer. A step that needs more
  // takes it then, and CUDA may wait for all devices, which may wait for others
  // (kFirstUploadBytesBesidePeers).
  int64_t first_upload_bytes = int64_t{1} << 20;
  int32_t first_rope_positions = 4096;
  bool use_graphs = true;
  // Of staged KV (rank_kv_stage.h).
  int32_t most_copy_runs = kMostCopyRuns;
  // Kernels besides those that all devices have. Null, for CudaEngine: the
  // device's, where these agree (device_kernels.h).
  std::optional<DeviceKernels> kernels;
  int32_t kernel_trials = 20;
  // DeviceLoras::rank; CudaEngine knows it.
  int32_t lora_rank = 0;
  // Most rows whose products with gate and up are stored at a time, for
  // adapters to add to: a multiple of kStagedRows.
  int32_t stored_rows = 512;
};

// Beside transports whose kernels wait for other processes, and where graphs
// are recorded at start: the block tables of 256 sequences of 128K tokens in
// blocks of 16, and more than the rest takes.
inline constexpr int64_t kFirstUploadBytesBesidePeers = int64_t{32} << 20;

// Sizes that follow from the model. A part is what the rank computes of a
// row; without others it is all.
struct PassSizes {
  int32_t heads = 0;  // the rank's
  int32_t kv_heads = 0;
  int32_t hidden = 0;
  int32_t hidden_part = 0;
  int32_t padded_hidden = 0;
  int32_t q_size = 0;
  int32_t q_part = 0;
  int32_t padded_q = 0;
  int32_t qkv_part = 0;  // with latent attention, what its first product makes
  int32_t stored_q = 0;  // the rank's heads * stored head_dim
  int32_t intermediate_part = 0;
  int32_t padded_intermediate = 0;
  int32_t experts_per_token = 0;
  int32_t expert_part = 0;  // of what one has between its matrices
  int32_t padded_expert = 0;
  // Products of many rows with experts take staged ones.
  bool experts_staged = false;
  int64_t places = 0;  // at most: expert_matmul.h
  // Of products with gate and up that are stored, when adapters add to them:
  // rows at a time, and elements of each.
  int32_t stored_rows = 0;
  int64_t stored_gate_up = 0;
  int32_t vocabulary_part = 0;
  int64_t logit_stride = 0;
  int32_t logit_rows = 0;  // at a time
  int64_t span_bytes = 0;
  int64_t span_pieces = 0;
  // Of a head's sums of a span, and a token's blocks that count their spans.
  int32_t span_elements = 0;
  int32_t span_blocks = 0;
  // No inputs of the layers' products are padded.
  bool whole_slices = false;
  // What a rank sends at a time; 0 when there is nobody to send to.
  int64_t sent_bytes = 0;

  PassSizes(const ModelConfig& config, const Shard& shard,
            const KvLayout& layout, const ForwardPassOptions& options);
};

}  // namespace baton::engine::cuda
