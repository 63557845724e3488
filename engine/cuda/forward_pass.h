// The model's forward pass on a device: all new tokens of a pass are the rows
// of one matrix. A row's result depends on its token, its position and the KV
// of its sequence alone, to the bit.
//
// Nothing waits for the device inside a pass but for what comes out of it: the
// arrays of the step go up in one copy, kernels follow each other on one
// stream, and the sampled tokens come back in one copy. A pass that is one new
// token per sequence is recorded once per size (graph_buckets.h) and launched
// as one.
//
// Called by the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/cpu/rope_table.h"
#include "engine/cuda/attention.h"
#include "engine/cuda/device_kv_stage.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/device_weights.h"
#include "engine/cuda/graph_buckets.h"
#include "engine/cuda/sample.h"
#include "engine/cuda/step_layout.h"
#include "engine/cuda/step_upload.h"
#include "engine/engine.h"
#include "engine/kv_layout.h"
#include "engine/model_config.h"
#include "scheduling/step_plan.h"

namespace baton::engine::cuda {

struct ForwardPassOptions {
  // Most rows of a pass; longer steps are cut.
  int32_t max_rows = 4096;
  // Bytes for the sums of spans that run apart.
  int64_t span_bytes = int64_t{128} << 20;
  // Bytes for logits and their edited copies, which bound the rows that are
  // sampled at a time.
  int64_t logit_bytes = int64_t{256} << 20;
  bool use_graphs = true;
};

class ForwardPass final {
 public:
  // Allocates what passes need: ResourceExhausted. All arguments but `options`
  // must outlive the object. `kv_memory` is the device's, of `layout`.
  static absl::StatusOr<std::unique_ptr<ForwardPass>> Create(
      const ModelConfig& config, const DeviceWeights& weights,
      const KvLayout& layout, std::byte* kv_memory, Stream& stream,
      const ForwardPassOptions& options);

  // Bytes of device memory that Create takes.
  static int64_t DeviceBytes(const ModelConfig& config, const KvLayout& layout,
                             const ForwardPassOptions& options);

  // What copies the KV of steps to the host while they run; it outlives the
  // object. Null: nothing.
  void SetStage(DeviceKvStage* stage) { stage_ = stage; }

  // REQUIRES: the plan is well-formed (engine.h).
  scheduling::StepResult Run(const scheduling::StepPlan& plan,
                             Engine::LayerHook on_layer_done);

 private:
  // Sizes that follow from the model.
  struct Sizes {
    int32_t hidden = 0;
    int32_t padded_hidden = 0;
    int32_t q_size = 0;
    int32_t padded_q = 0;
    int32_t qkv_size = 0;
    int32_t stored_q = 0;  // heads * stored head_dim
    int32_t padded_intermediate = 0;
    int64_t logit_stride = 0;
    int32_t logit_rows = 0;  // at a time
    int64_t span_pieces = 0;

    Sizes(const ModelConfig& config, const KvLayout& layout,
          const ForwardPassOptions& options);
  };

  // A set of tiles on the device.
  struct DeviceTiles {
    const QueryTile* whole = nullptr;
    int32_t num_whole = 0;
    const QueryTile* single = nullptr;
    int32_t num_single = 0;
    int32_t max_spans = 0;
  };

  // What the kernels of a pass read.
  struct PassArrays {
    int32_t rows = 0;
    const TokenId* tokens = nullptr;
    const RowPlace* places = nullptr;
    const BlockId* block_tables = nullptr;
    DeviceTiles full;
    DeviceTiles sliding;
    DeviceTiles last;
    // Rows that have logits, when they are not all rows; else null.
    const int32_t* kept_rows = nullptr;
    int32_t num_logit_rows = 0;
    const SampleRow* how = nullptr;  // [logit rows]
    // All edits of the step lie behind this, where SampleRow::first_edit says.
    const LogitEdit* edits = nullptr;
    const TokenId* targets = nullptr;  // [logit rows]
  };

  ForwardPass(const ModelConfig& config, const DeviceWeights& weights,
              const KvLayout& layout, std::byte* kv_memory, Stream& stream,
              const ForwardPassOptions& options);
  absl::Status Allocate();

  LayoutOptions LayoutOf() const;
  // A pass for which there is a bucket. Waits for its end.
  void RunDecode(const scheduling::StepPlan& plan, const StepLayout& layout,
                 const GraphBucket& bucket);
  // Begins to copy what the stage takes of a pass, whose layers' events are
  // recorded.
  void StageLayers();
  // Once layers are done, and the host has what it takes of them.
  void CallHook(Engine::LayerHook hook);
  // When RunDecode has returned: layers have no events of their own then.
  void CallHookAfterDecode(Engine::LayerHook hook);
  // Any pass. Waits for its end; with `hook`, calls that as layers are done.
  void RunAny(const scheduling::StepPlan& plan, const StepLayout& layout,
              const Engine::LayerHook* hook);
  // Positions [0, end) of the table of rotations are on the device.
  void EnsureRope(int32_t end);
  // Makes room for a step's arrays; graphs are void when memory moves.
  void EnsureUpload(int64_t bytes);
  // Fills the arrays that say how rows are drawn.
  void PlanSamples(const scheduling::StepPlan& plan, const StepLayout& layout);
  // The kernels of all layers, up to the normalized rows of logits. With
  // `events`, records that each layer's KV is written.
  void RunLayers(const PassArrays& arrays, bool events);
  void Attend(const PassArrays& arrays, const DeviceTiles& tiles,
              int32_t layer);
  void FeedForward(const DeviceLayer& layer, float* residual, int32_t rows);
  // Logits [first, first + count) and what is drawn from them.
  void RunLogits(const PassArrays& arrays, int32_t first, int32_t count);
  // Takes the outcomes of logit rows [first, first + count), whose logits are
  // the last that RunLogits made, once the device is done.
  void TakeOutcomes(const scheduling::StepPlan& plan, const StepLayout& layout,
                    int32_t first, int32_t count);
  // Puts arrays into the upload; with `rows`, as many, the rest not there.
  const QueryTile* UploadTiles(const std::vector<QueryTile>& tiles,
                               int64_t rows);
  DeviceTiles UploadTileSet(const TileSet& tiles);
  void UploadRows(const StepLayout& layout, int64_t rows, PassArrays* arrays);
  void UploadSamples(const StepLayout& layout, int64_t rows,
                     PassArrays* arrays);
  // Bytes that the arrays of a layout take at most.
  static int64_t UploadBytes(const StepLayout& layout, int64_t rows,
                             int64_t edits);

  const ModelConfig& config_;
  const DeviceWeights& weights_;
  const KvLayout layout_;
  std::byte* const kv_memory_;
  Stream& stream_;
  const ForwardPassOptions options_;
  const Sizes sizes_;

  DeviceKvStage* stage_ = nullptr;

  cpu::RopeTable rope_table_;
  int32_t rope_positions_ = 0;
  StepUpload upload_;
  std::vector<std::unique_ptr<Event>> layer_events_;
  // Empty: the bucket ran once, which loads its kernels; the next run records.
  absl::flat_hash_map<GraphBucket, Graph> graphs_;

  // Device memory. What pads rows is zero from the beginning on.
  DeviceBuffer rope_;      // [positions][head_dim]
  DeviceBuffer residual_;  // float32 [rows][hidden]
  DeviceBuffer kept_;      // float32 [rows][hidden], for the last layer
  DeviceBuffer normed_;    // bfloat16 [rows][padded hidden]
  DeviceBuffer qkv_;       // float32 [rows][qkv_size]
  DeviceBuffer queries_;   // bfloat16 [rows][stored_q]
  DeviceBuffer attended_;  // bfloat16 [rows][padded q]
  DeviceBuffer gated_;     // bfloat16 [rows][padded intermediate]
  DeviceBuffer logits_;    // float32 [logit rows][vocab]
  DeviceBuffer edited_;    // the same
  DeviceBuffer span_sums_;
  DeviceBuffer span_states_;
  DeviceBuffer outcomes_;  // SampleOutcome [logit rows]
  DeviceBuffer picked_;    // float32 [logit rows]
  PinnedBuffer host_outcomes_;
  PinnedBuffer host_picked_;
  PinnedBuffer host_logits_;  // one row

  // The current step.
  scheduling::StepResult result_;
  std::vector<int32_t> sampled_index_;  // of each sequence
  std::vector<int32_t> target_index_;
  std::vector<SampleRow> how_;  // of each logit row of the pass
  std::vector<LogitEdit> edits_;
  std::vector<TokenId> targets_;
  bool any_targets_ = false;
};

}  // namespace baton::engine::cuda
