// The model's forward pass on a device: all new tokens of a pass are the rows
// of one matrix. A row's result depends on its token, its position and the KV
// of its sequence alone, to the bit.
//
// Where several devices share the model, each runs this with its shard of the
// weights and of KV (shard.h), at the same time with the same plan: what the
// ranks computed of a row is gathered on all of them, after attention, SwiGLU,
// and the products that give hidden elements, and in the end the logits. All
// draw tokens, the same ones; the host takes those of rank 0.
//
// Nothing waits for the device inside a pass but for what comes out of it: the
// arrays of the step go up in one copy, kernels follow each other on one
// stream, and the sampled tokens come back in one copy. A pass that is one new
// token per sequence, or one and guesses at the next, is recorded once per size
// (graph_buckets.h) and launched as one. Behind one without guesses another may
// be given before its tokens are known (RunAhead): they come from where the
// first one left them on the device.
//
// Called by the rank's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "engine/cpu/rope_table.h"
#include "engine/cuda/attention.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/device_weights.h"
#include "engine/cuda/experts.h"
#include "engine/cuda/graph_buckets.h"
#include "engine/cuda/latent_pass.h"
#include "engine/cuda/lora.h"
#include "engine/cuda/matmul.h"
#include "engine/cuda/pass_sizes.h"
#include "engine/cuda/rank_group.h"
#include "engine/cuda/rank_kv_stage.h"
#include "engine/cuda/rank_threads.h"
#include "engine/cuda/sample.h"
#include "engine/cuda/sample_plan.h"
#include "engine/cuda/shard.h"
#include "engine/cuda/step_layout.h"
#include "engine/cuda/step_upload.h"
#include "engine/engine.h"
#include "engine/kv_layout.h"
#include "engine/model_config.h"
#include "scheduling/step_plan.h"

namespace baton::engine::cuda {

class ForwardPass final {
 public:
  // Which part of the model this is.
  struct Place {
    Shard shard;
    // Of all ranks; null when there is one.
    RankGroup* group = nullptr;
    RankMeeting* meeting = nullptr;
  };

  // Allocates what passes need: ResourceExhausted. What arguments name, but
  // `options`, must outlive the object. `config` is the whole model's;
  // `weights`, `layout` and `kv_memory` (the device's) are the shard's.
  static absl::StatusOr<std::unique_ptr<ForwardPass>> Create(
      const ModelConfig& config, const Place& place,
      const DeviceWeights& weights, const KvLayout& layout,
      std::byte* kv_memory, Stream& stream, const ForwardPassOptions& options);

  // Waits for a step that was given and not awaited.
  ~ForwardPass();

  // Bytes of device memory that Create takes. `layout` is the shard's.
  static int64_t DeviceBytes(const ModelConfig& config, const Shard& shard,
                             const KvLayout& layout,
                             const ForwardPassOptions& options);

  // What decode steps of up to so many sequences come to, with up to `drafts`
  // guesses each, by rising rows; none without graphs. The same for all ranks.
  std::vector<GraphBucket> DecodeBuckets(int32_t sequences,
                                         int32_t drafts) const;
  // Records the graph of that size, so that no step is the first of it; with
  // `run`, once its kernels have run: what they take when they run first is no
  // graph's. What makes graphs void later (a step with more arrays or positions
  // than there is room for) has them recorded as they come. All ranks do this
  // at the same time. False: the device has no memory for it.
  bool RecordGraph(const GraphBucket& bucket, bool run);

  // What copies the KV of steps to the host while they run; it outlives the
  // object. Null: nothing.
  void SetStage(RankKvStage* stage) { stage_ = stage; }

  // Calls `meanwhile` once, when the device has its work. REQUIRES: the plan is
  // well-formed (engine.h). The result is empty but for rank 0.
  scheduling::StepResult Run(const scheduling::StepPlan& plan,
                             Engine::LayerHook on_layer_done,
                             absl::FunctionRef<void()> meanwhile);

  // As Engine has them: for steps that there is a graph for, behind another.
  // All ranks give the same answer; the result is as Run's.
  bool RunAhead(const scheduling::StepPlan& plan);
  scheduling::StepResult Await(absl::FunctionRef<void()> meanwhile);

  // What the device drew in the step that was run or awaited last, row by row
  // of its logits: the same on all ranks, or they have lost each other.
  const std::vector<TokenId>& drawn() const { return drawn_; }

 private:
  // A set of tiles on the device.
  struct DeviceTiles {
    const QueryTile* whole = nullptr;
    int32_t num_whole = 0;
    const QueryTile* single = nullptr;
    int32_t num_single = 0;
    int32_t max_spans = 0;
    int32_t span_rows = 1;
    int32_t tile_queries = kTileQueries;  // of the whole ones
  };

  // How the logit rows of a pass are drawn.
  struct Draws {
    std::vector<SampleRow> how;
    DrawLists lists;
    std::vector<TokenId> targets;
    bool any_targets = false;
    bool any_top = false;  // the likeliest tokens of any row are wanted
  };

  // A pass that the device has and whose outcomes the host has not taken: a row
  // of logits for each of its sequences.
  struct Given {
    std::vector<SequenceId> sequences;
    std::vector<SampleRow> how;
    int slot = 0;  // of host_outcomes_
  };

  // What the kernels of a pass read.
  struct PassArrays {
    int32_t rows = 0;
    TokenId* tokens = nullptr;
    const RowPlace* places = nullptr;
    const BlockId* block_tables = nullptr;
    DeviceTiles full;
    DeviceTiles sliding;
    DeviceTiles last;
    // Rows that have logits, when they are not all rows; else null.
    const int32_t* kept_rows = nullptr;
    int32_t num_logit_rows = 0;
    const SampleRow* how = nullptr;  // [logit rows]
    // All edits and masks of the step lie behind these, where SampleRow says.
    const LogitEdit* edits = nullptr;
    const uint32_t* masks = nullptr;
    const TokenId* targets = nullptr;  // [logit rows]
    // All rows are single tokens: attention makes their heads.
    bool heads_in_attention = false;
    // Those that have adapters, and of the last layer, behind its keys and
    // values.
    LoraRows adapted;
    LoraRows adapted_last;
  };

  ForwardPass(const ModelConfig& config, const Place& place,
              const DeviceWeights& weights, const KvLayout& layout,
              std::byte* kv_memory, Stream& stream,
              const ForwardPassOptions& options);
  absl::Status Allocate();
  // Calls what is to be done meanwhile, once in a step.
  void UseTime();

  LayoutOptions LayoutOf() const;
  // Most tokens of a sequence that share a block of attention in a decode pass.
  int32_t SpanRows() const;
  // Whether passes of so many rows run other kernels where sequences have
  // several of them.
  bool KnowsSeveral(int32_t rows) const;
  // The graph that a pass may have.
  std::optional<GraphBucket> BucketOf(const scheduling::StepPlan& plan,
                                      const Pass& pass,
                                      const StepLayout& layout) const;
  // A pass for which there is a bucket. Waits for its end.
  void RunDecode(const scheduling::StepPlan& plan, const StepLayout& layout,
                 const Draws& draws, const GraphBucket& bucket);
  // Puts its arrays into the upload.
  PassArrays PutDecode(const StepLayout& layout, const Draws& draws,
                       const GraphBucket& bucket);
  // Has the last logits' outcomes copied to the host, and how many experts were
  // read, and the likeliest tokens if they are wanted, into the slot whose turn
  // it is: which one.
  int FetchOutcomes(int32_t count, bool with_top);
  // What is there, once that is over.
  const SampleOutcome* HostOutcomes(int slot) const;
  const TopLogit* HostTops(int slot, int32_t row) const;
  // Adds which experts a pass of so many rows has read.
  void NoteExperts(int64_t rows, int64_t logit_rows, int slot,
                   scheduling::StepResult& result) const;
  // On the device, behind the number of experts that were read.
  SampleOutcome* outcomes() const { return outcomes_.as<SampleOutcome>() + 1; }
  // What a graph of that size runs.
  void RunBucket(const PassArrays& arrays, const GraphBucket& bucket);
  // A graph of that; empty where a device has no memory for it: what NCCL does
  // is either in a graph on all ranks or on none.
  Graph RecordBucket(const PassArrays& arrays, const GraphBucket& bucket);
  // What they name is no more.
  void ForgetGraphs();
  static Given GivenOf(const scheduling::StepPlan& plan,
                       const StepLayout& layout, const Draws& draws, int slot);
  // Begins to copy what the stage takes of a pass, whose layers' events are
  // recorded.
  void StageLayers();
  // Once layers are done, and the host has what it takes of them.
  void CallHook(Engine::LayerHook hook);
  // When RunDecode has returned: layers have no events of their own then.
  void CallHookAfterDecode(Engine::LayerHook hook);
  // Any pass. Waits for its end; with `hook`, calls that as layers are done.
  void RunAny(const scheduling::StepPlan& plan, const StepLayout& layout,
              const Draws& draws, const Engine::LayerHook* hook);
  // Positions [0, end) of the tables of rotations are on the device
  // (forward_pass_rope.cc).
  absl::Status EnsureRope(int32_t end);
  absl::Status CopyTable(const std::vector<float>& values, const char* what,
                         DeviceBuffer* table);
  // That of a layer.
  const float* RopeOf(int32_t layer) const;
  // Between what a pass makes ready (memory, graphs) and what it runs: while a
  // device waits for others, nothing is asked of CUDA that may wait for it.
  // Returns whether all say yes.
  bool MeetOthers(bool yes = true);
  // Makes room for a step's arrays; graphs are void when memory moves.
  void EnsureUpload(int64_t bytes);
  Draws PlanDraws(const scheduling::StepPlan& plan,
                  const StepLayout& layout) const;
  // The kernels of all layers, up to the normalized rows of logits. With
  // `events`, records that each layer's KV is written.
  void RunLayers(const PassArrays& arrays, bool events);
  // From normalized rows to queries, and keys and values in KV memory, unless
  // attention makes them: `heads`, but for what is the layer's.
  void MakeHeads(const PassArrays& arrays, int32_t layer,
                 FinishHeadsArgs& heads);
  // Attention up to what the output projection takes, whole on all ranks.
  // `rows` have queries.
  void AttendRows(const PassArrays& arrays, const FinishHeadsArgs& heads,
                  const DeviceTiles& tiles, int32_t layer, int32_t rows);
  // `rows` have queries; `heads` are the layer's.
  void Attend(const PassArrays& arrays, const FinishHeadsArgs& heads,
              const DeviceTiles& tiles, int32_t layer, int32_t rows,
              uint16_t* out, int64_t out_stride);
  // Where kernels put what the rank computes of rows, `part` elements of each:
  // in `whole`, whose rows are `stride` elements apart, when that is all of
  // them, else in what is sent.
  template <typename T>
  struct PartOf {
    T* data = nullptr;
    int64_t stride = 0;
  };
  template <typename T>
  PartOf<T> Part(const DeviceBuffer& whole, int64_t stride, int32_t part);
  DeviceKernels kernels() const {
    return options_.kernels.value_or(DeviceKernels{});
  }
  // How products of so many rows want their inputs.
  InputOrder OrderOf(int32_t rows) const;
  // Of what logits are made of, of so many rows in all: these are made of some
  // rows at a time, and of few mostly.
  InputOrder LogitOrder(int32_t rows) const;
  // The same of a part of them: parts are sent as they come.
  InputOrder PartOrderOf(int32_t rows) const;
  // Has what all ranks send, so many bytes each, in gathered_.
  void Gather(int64_t bytes);
  // Has there what the next Normalize adds to the residual's rows.
  void GatherAdded(int32_t rows, const float* norm = nullptr);
  // The next Normalize adds `values`, parts of `part_size` elements a row, by
  // RMSNorm with `norm`, unless that is null.
  void LeaveAdded(const DeviceBuffer& values, int32_t part_size,
                  const float* norm);
  // After kernels have: with others, gathers the parts and joins them in
  // `whole`, to `size` elements of each row, in that order.
  template <typename T>
  void Complete(const DeviceBuffer& whole, int64_t stride, int32_t part,
                int32_t size, int32_t rows,
                InputOrder order = InputOrder::kNatural);
  // residual += w x. With others, what is added is left to the next Normalize;
  // `norm` is what that does before, or null.
  void AddProduct(const DeviceMatrix& w, const DeviceBuffer& x,
                  int64_t x_stride, float* residual, int32_t rows,
                  const float* norm);
  void Normalize(float* residual, const float* weight, int32_t rows,
                 InputOrder order);
  // residual += what each row's experts say. The rows, which are normalized in
  // the natural order, are there where these places have positions; null: all
  // are. `first`: of the pass's layers with experts. With others, what is added
  // is left to the next Normalize.
  void MixExperts(const DeviceLayer& layer, const RowPlace* row_places,
                  float* residual, int32_t rows, bool first);
  // What adapters add to products of a layer (forward_pass_lora.cc). First
  // their inputs, of so many rows, go through A.
  void NarrowLora(const LoraRows& adapted, int32_t layer, LoraInput input,
                  const DeviceBuffer& x, int64_t x_stride, InputOrder order);
  // Then B adds to `out`. REQUIRES: NarrowLora of the same was the last.
  void AddLora(const LoraRows& adapted, int32_t layer, LoraInput input,
               float* out, int64_t out_stride);
  // AddProduct, with what adapters add; where a norm comes before the residual
  // stream has it, StoreProduct, unless parts are sent as they are.
  void AddAdaptedProduct(const LoraRows& adapted, int32_t layer,
                         LoraInput input, const DeviceMatrix& w,
                         const DeviceBuffer& x, int64_t x_stride,
                         float* residual, int32_t rows, const float* norm);
  // product_ = w x, with what adapters add, all of it on all ranks; the next
  // Normalize adds it, by `norm`.
  void StoreProduct(const LoraRows& adapted, int32_t layer, LoraInput input,
                    const DeviceMatrix& w, const DeviceBuffer& x,
                    int64_t x_stride, int32_t rows, const float* norm);
  // What the product with gate and up gives by itself where there are none.
  void GateAdapted(const LoraRows& adapted, int32_t layer, int32_t rows,
                   const PartOf<uint16_t>& gated);
  // Logits [first, first + count) and what is drawn from them.
  void RunLogits(const PassArrays& arrays, int32_t first, int32_t count);
  // Whether what comes out of a pass is for this rank to take.
  bool takes_outcomes() const { return place_.shard.rank == 0; }
  void NoteDrawn(const SampleOutcome* outcomes, int32_t count);
  // Of the last logits that were made, a row, on the host.
  absl::Span<float> FetchLogits(int32_t row);
  // What comes of a target, whose outcome is the slot's at `place`.
  void TakeTarget(const scheduling::PlannedSequence& s, const LogitRow& row,
                  int32_t place, const SampleOutcome& outcome, int slot);
  // Takes the outcomes of logit rows [first, first + count), which are in that
  // slot. Their logits are the last that RunLogits made, unless there is a step
  // ahead.
  void TakeOutcomes(const scheduling::StepPlan& plan, const StepLayout& layout,
                    const Draws& draws, int32_t first, int32_t count, int slot);
  // Puts arrays into the upload; with `rows`, as many, the rest not there.
  const QueryTile* UploadTiles(const std::vector<QueryTile>& tiles,
                               int64_t rows);
  DeviceTiles UploadTileSet(const TileSet& tiles);
  // With `tiles`, so many, the rest not there, and of as many rows.
  LoraRows UploadLoraRows(const LoraGroups& groups, int64_t tiles,
                          int64_t rows);
  void UploadRows(const StepLayout& layout, int64_t rows, PassArrays* arrays);
  void UploadSamples(const StepLayout& layout, const Draws& draws, int64_t rows,
                     PassArrays* arrays);
  // Bytes that the arrays of a layout take at most.
  static int64_t UploadBytes(const StepLayout& layout, int64_t rows,
                             const DrawLists& lists);

  const ModelConfig& config_;
  const Place place_;
  const DeviceWeights& weights_;
  const KvLayout layout_;
  std::byte* const kv_memory_;
  Stream& stream_;
  const ForwardPassOptions options_;
  const PassSizes sizes_;

  std::optional<LatentPass> latent_;  // of models that have it
  RankKvStage* stage_ = nullptr;

  cpu::RopeTable rope_table_;
  cpu::RopeTable sliding_rope_table_;  // used with sliding_rope_theta
  int32_t rope_positions_ = 0;
  StepUpload upload_;
  std::vector<std::unique_ptr<Event>> layer_events_;
  std::vector<TokenId> drawn_;
  // Empty: the bucket ran once; the next run records.
  absl::flat_hash_map<GraphBucket, Graph> graphs_;
  // A device had no memory for more: so many that would be recorded run kernel
  // by kernel.
  int64_t graphs_wait_ = 0;
  // Which another rank has not.
  Graph unused_graph_;

  static constexpr int64_t kTopBytes = kTopPlaces * int64_t{sizeof(TopLogit)};

  // Device memory. What pads rows is zero from the beginning on.
  DeviceBuffer rope_;  // [positions][head_dim]
  // The same, of no rotation at all: where there are layers without.
  DeviceBuffer still_;
  DeviceBuffer sliding_rope_;  // with sliding_rope_theta
  DeviceBuffer residual_;      // float32 [rows][hidden]
  DeviceBuffer kept_;          // float32 [rows][hidden], for the last layer
  DeviceBuffer product_;       // float32 [rows][hidden], with post_norms
  DeviceBuffer normed_;        // bfloat16 [rows][padded hidden]
  DeviceBuffer qkv_;           // float32 [rows][qkv_part]
  DeviceBuffer queries_;       // bfloat16 [rows][stored_q]
  DeviceBuffer attended_;      // bfloat16 [rows][padded q]
  DeviceBuffer gated_;         // bfloat16 [rows][padded intermediate]
  // Of layers with experts; a place is a row's turn with one (expert_matmul.h).
  DeviceBuffer router_logits_;  // float32 [rows][experts]
  DeviceBuffer choices_;        // ExpertChoice [places]
  DeviceBuffer place_rows_;     // int32 [places]
  DeviceBuffer expert_in_;      // bfloat16, staged; where products take that
  DeviceBuffer row_tiles_;      // RowTile [tiles]
  DeviceBuffer expert_gated_;   // bfloat16 [places][padded_expert]
  DeviceBuffer expert_out_;     // float32 [places][hidden_part]
  DeviceBuffer narrow_;         // bfloat16, as LoraNarrowArgs
  DeviceBuffer stored_;         // float32 [stored_rows][stored_gate_up]
  DeviceBuffer logits_;         // float32 [logit rows][vocab]
  DeviceBuffer edited_;         // the same
  DeviceBuffer span_sums_;
  DeviceBuffer span_states_;
  DeviceBuffer span_counts_;  // zero between steps
  DeviceBuffer outcomes_;     // SampleOutcome [1 + logit rows]
  DeviceBuffer picked_;       // float32 [logit rows]
  DeviceBuffer tops_;         // TopLogit [logit rows][kTopPlaces]
  DeviceBuffer sent_;         // [rows][part] of something
  DeviceBuffer gathered_;     // [ranks][rows][part]
  // What the next Normalize adds to the residual, as LeaveAdded has it.
  struct ToBeAdded {
    const float* values = nullptr;  // null: nothing
    int32_t part_size = 0;
    const float* norm = nullptr;
  };
  ToBeAdded to_be_added_;
  // Steps take turns: of one, and of the step ahead.
  PinnedBuffer host_outcomes_[2];
  PinnedBuffer host_tops_[2];
  std::unique_ptr<Event> outcomes_there_[2];
  int slot_ = 0;  // the last one
  PinnedBuffer host_picked_;
  PinnedBuffer host_logits_;  // one row

  // The current step.
  scheduling::StepResult result_;
  const absl::FunctionRef<void()>* meanwhile_ = nullptr;  // null: done
  bool in_last_pass_ = false;
  std::vector<int32_t> sampled_index_;  // of each sequence
  std::vector<int32_t> target_index_;
  // While `meanwhile` may give another step behind it.
  std::optional<Given> running_;
  std::optional<Given> ahead_;
};

}  // namespace baton::engine::cuda
