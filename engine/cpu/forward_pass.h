// The model's forward pass over one step: all new tokens of all sequences are
// the rows of one matrix, and each operation runs over all rows.
//
// Called by the engine's thread. A row's result depends on its token, its
// position and the KV of its sequence alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "engine/cpu/aligned_buffer.h"
#include "engine/cpu/attention.h"
#include "engine/cpu/cpu_weights.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/rope_table.h"
#include "engine/cpu/thread_team.h"
#include "engine/engine.h"
#include "engine/kv_layout.h"
#include "engine/model_config.h"
#include "scheduling/step_plan.h"

namespace baton::engine::cpu {

class ForwardPass final {
 public:
  // All arguments must outlive the object. `kv_memory` is the arena of
  // `layout`.
  ForwardPass(const Kernels& kernels, ThreadTeam& team,
              const ModelConfig& config, const CpuWeights& weights,
              const KvLayout& layout, std::byte* kv_memory);

  // REQUIRES: the plan is well-formed (engine.h).
  scheduling::StepResult Run(const scheduling::StepPlan& plan,
                             Engine::LayerHook on_layer_done);

 private:
  // One new token of the step.
  struct Row {
    TokenId token = 0;
    int32_t position = 0;
    absl::Span<const BlockId> blocks;
  };

  void LayOutRows(const scheduling::StepPlan& plan);
  void ReserveScratch();
  // Runs body(row) for each of the current rows, spread over the team;
  // `row_work` is roughly the number of values that a row touches.
  void ForRows(int64_t row_work, absl::FunctionRef<void(int32_t row)> body);
  // The steps of the pass, in order.
  void Embed();
  void ProjectQkv(const CpuLayerWeights& layer);
  void FinishQkvRow(const CpuLayerWeights& layer, int32_t layer_index,
                    int32_t row);
  void WriteKv(int32_t layer_index, int32_t row, const float* keys,
               const float* values);
  void Attend(int32_t layer_index);
  // Drops the rows whose result nobody needs: after the KV of the last layer
  // is written, all that are not sampled.
  void KeepSampledRows();
  void FeedForward(const CpuLayerWeights& layer);
  // Adds the product in wide_ (and a bias) to the residual stream, and
  // normalizes the sum as the input of what comes next.
  void AddAndNorm(const std::vector<float>& bias,
                  const std::vector<float>& norm);
  scheduling::StepResult SampleRows(const scheduling::StepPlan& plan);

  // The bfloat16 input of a product has an even number of elements; the last
  // one is zero where the size is odd.
  void PadInput(int32_t row, int32_t size);
  uint16_t* input(int32_t row) { return input_.data() + row * input_stride_; }
  float* wide(int32_t row) { return wide_.data() + row * wide_stride_; }
  float* residual(int32_t row) {
    return residual_.data() + int64_t{row} * config_.hidden_size;
  }

  const Kernels& kernels_;
  ThreadTeam& team_;
  const ModelConfig& config_;
  const CpuWeights& weights_;
  const KvLayout layout_;
  std::byte* const kv_memory_;
  const int32_t q_size_;
  const int32_t kv_size_;
  const int64_t input_stride_;
  const int64_t wide_stride_;
  RopeTable rope_;
  Attention attention_;

  // The current step.
  int32_t num_rows_ = 0;
  std::vector<Row> rows_;
  std::vector<QueryTile> tiles_;
  std::vector<int32_t> sampled_rows_;

  // Scratch, as large as the largest step so far.
  AlignedBuffer<float> residual_;    // [rows][hidden]
  AlignedBuffer<uint16_t> input_;    // [rows]: input of the next product
  AlignedBuffer<float> wide_;        // [rows]: result of a product
  AlignedBuffer<uint16_t> queries_;  // [rows][q_size]
  AlignedBuffer<float> logits_;      // [some rows][vocab, padded]
};

}  // namespace baton::engine::cpu
