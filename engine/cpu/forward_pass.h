// The model's forward pass over one step: all new tokens of all sequences are
// the rows of one matrix, and each operation runs over all rows.
//
// Called by the engine's thread. A row's result depends on its token, its
// position, its adapter and the KV of its sequence alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "engine/cpu/activations.h"
#include "engine/cpu/aligned_buffer.h"
#include "engine/cpu/attention.h"
#include "engine/cpu/cpu_weights.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/kv_pages.h"
#include "engine/cpu/lora_products.h"
#include "engine/cpu/lora_weights.h"
#include "engine/cpu/matmul.h"
#include "engine/cpu/rope_table.h"
#include "engine/cpu/thread_team.h"
#include "engine/engine.h"
#include "engine/kv_layout.h"
#include "engine/model_config.h"
#include "scheduling/step_plan.h"

namespace baton::engine::cpu {

// Rows that experts compute at a time: bounds what lies between their products.
inline constexpr int32_t kExpertRows = 1024;

class ForwardPass final {
 public:
  // All arguments must outlive the object. `kv_memory` is the arena of
  // `layout`.
  ForwardPass(const Kernels& kernels, ThreadTeam& team,
              const ModelConfig& config, const CpuWeights& weights,
              const CpuLoras& loras, const KvLayout& layout,
              std::byte* kv_memory);

  // REQUIRES: the plan is well-formed (engine.h).
  scheduling::StepResult Run(const scheduling::StepPlan& plan,
                             Engine::LayerHook on_layer_done);

 private:
  // One new token of the step.
  struct Row {
    TokenId token = 0;
    int32_t position = 0;
    int32_t adapter = scheduling::kNoAdapter;
    absl::Span<const BlockId> blocks;
  };

  // One row of logits: whose, and what for.
  struct LogitRow {
    int32_t row = 0;
    int32_t sequence = 0;  // of the plan
    int32_t token = 0;     // of the sequence's new tokens
  };

  // One of the experts that a row passes through.
  struct Choice {
    int32_t expert = 0;
    float weight = 0;
    int32_t place = 0;  // among the rows that experts compute
  };

  void LayOutRows(const scheduling::StepPlan& plan);
  // Which of the plan's sequences comes at which place: those of an adapter one
  // behind another, so that its weights are read once a step.
  void OrderSequences(const scheduling::StepPlan& plan);
  // Tells lora_ who the current rows are: row i is rows_[row_of(i)].
  void SetLoraRuns(absl::FunctionRef<int32_t(int32_t i)> row_of);
  void ReserveScratch();
  // Runs body(row, thread) for each of the current rows, spread over the team;
  // `row_work` is roughly the number of values that a row touches.
  using RowBody = absl::FunctionRef<void(int32_t row, int32_t thread)>;
  void ForRows(int64_t row_work, RowBody body) {
    ForRows(0, num_rows_, row_work, body);
  }
  // The same of the rows [first, first + count).
  void ForRows(int32_t first, int32_t count, int64_t row_work, RowBody body);
  // The steps of the pass, in order.
  void Embed();
  void ProjectQkv(const CpuLayerWeights& layer, int32_t layer_index);
  void FinishHeads(const CpuLayerWeights& layer, int32_t layer_index,
                   const Strip& strip);
  void Attend(const CpuLayerWeights& layer, int32_t layer_index);
  // Writes a row of `from`, which is bfloat16, in the form that `to` has.
  void QuantizeRow(const Activations& from, int32_t row, int32_t thread,
                   Activations& to);
  // In place of ProjectQkv and Attend, in models with latent attention
  // (LatentConfig): forward_pass_latent.cc.
  void ProjectLatent(const CpuLatentWeights& weights, int32_t layer_index);
  void WriteLatentKeys(const CpuLatentWeights& weights, int32_t layer_index);
  void FinishLatentQueries(const Strip& strip);
  void AttendLatent(const CpuLatentWeights& weights, int32_t layer_index);
  // A product of each head's rows in `a`, [heads * rows], with its part of `b`.
  void MultiplyHeads(const Activations& a, const PackedMatrix& b,
                     Matmul::Finish finish);
  // Drops the rows whose result nobody needs: after the KV of the last layer
  // is written, all that have no logits.
  void KeepLogitRows();
  void FeedForward(const CpuLayerWeights& layer, int32_t layer_index);
  // SwiGLU, or GeGLU, of two products that lie in turns, within a limit unless
  // that is 0,
  // into the strip's rows of `gated`; and of `exact`, unless that is null.
  void Gate(const Strip& strip, const std::vector<float>& bias, float limit,
            Activations& gated, Activations* exact);
  // In place of FeedForward, in layers with experts. Adds what the experts say
  // that a row passes through in the order of its choices, so that it depends
  // on the row alone.
  void MixExperts(const CpuLayerWeights& layer);
  // Of the rows [first, first + count), whose experts are chosen.
  void MixRows(const CpuLayerWeights& layer, int32_t first, int32_t count);
  // Fills choices_ from the normalized rows.
  void ChooseExperts(const CpuLayerWeights& layer);
  // Those of one row, whose logits the router has computed.
  void ChooseForRow(const CpuLayerWeights& layer,
                    absl::Span<const float> logits, int32_t thread,
                    Choice* choices);
  // Gives each choice of these rows a place, those of an expert one after
  // another.
  void SortChoices(int32_t first, int32_t count);
  // The experts that rows go through, with one of their matrices.
  absl::Span<const RowGroup> ExpertGroups(
      const CpuLayerWeights& layer, PackedMatrix CpuExpertWeights::*matrix);
  // Adds the product of `a` and `b`, with what adapters add to it, and a bias,
  // to the residual stream.
  // In models with post_norms, leaves it to AddNormed.
  void AddProduct(const Activations& a, const PackedMatrix& b,
                  const std::vector<float>& bias, int32_t layer_index,
                  LoraTarget target);
  // Adds what AddProduct left, normalized.
  void AddNormed(const std::vector<float>& norm);
  // Normalizes the residual stream as the input of what comes next; also as
  // that of what takes bfloat16, when `exact`: an expert router, adapters.
  void Normalize(const std::vector<float>& norm, bool exact = false);
  // What Normalize wrote in bfloat16.
  const Activations& normed_exact() const {
    return normed_.quantized() ? normed_exact_ : normed_;
  }
  scheduling::StepResult UseLogits(const scheduling::StepPlan& plan);
  void UseLogitRow(const scheduling::StepPlan& plan, const LogitRow& row,
                   absl::Span<float> logits, scheduling::StepResult* result);

  float* residual(int32_t row) {
    return residual_.data() + int64_t{row} * config_.hidden_size;
  }

  float* product(int32_t row) {
    return product_.data() + int64_t{row} * config_.hidden_size;
  }

  const Kernels& kernels_;
  ThreadTeam& team_;
  const ModelConfig& config_;
  const CpuWeights& weights_;
  const KvPages pages_;
  const int32_t q_size_;  // heads times what attention has of a query
  const int32_t attention_size_;
  RopeTable rope_;
  RopeTable sliding_rope_;  // used with sliding_rope_theta
  Matmul matmul_;
  LoraProducts lora_;
  Attention attention_;

  // The current step.
  int32_t num_rows_ = 0;
  std::vector<Row> rows_;
  std::vector<QueryTile> tiles_;
  std::vector<LogitRow> logit_rows_;  // of rising rows
  // Of each sequence of the plan, where its result goes.
  std::vector<int32_t> sampled_index_;
  std::vector<int32_t> target_index_;
  std::vector<int32_t> order_;  // OrderSequences

  // Scratch, as large as the largest step so far.
  AlignedBuffer<float> residual_;    // [rows][hidden]
  AlignedBuffer<float> product_;     // [rows][hidden], with post_norms
  Activations normed_;               // [rows][hidden]
  AlignedBuffer<uint16_t> queries_;  // [rows][q_size]
  // Of latent attention.
  AlignedBuffer<float> latent_;  // [rows][outputs of `down`]
  Activations query_latent_;     // [rows][query_rank]
  Activations nope_queries_;     // [heads][rows][nope_dim]
  Activations mixed_;            // [heads][rows][rank], by attention
  Activations mixed_quantized_;  // the same, for quantized weights
  // The output of attention is bfloat16; quantized weights take a second form.
  Activations attended_;            // [rows][AttentionSize()]
  Activations attended_quantized_;  // [rows][AttentionSize()]
  Activations gated_;               // [rows][intermediate]
  // In bfloat16, where the weights are quantized, for what is not.
  Activations normed_exact_;  // [rows][hidden], for routers and adapters
  Activations gated_exact_;   // [rows][intermediate], for adapters
  // Of layers with experts. A place is a row that an expert computes.
  AlignedBuffer<float> router_logits_;  // [rows][experts, padded]
  // [rows][passed()]: those chosen by falling score, then those shared.
  std::vector<Choice> choices_;
  std::vector<int32_t> expert_ends_;     // [all()], where its places end
  std::vector<RowGroup> expert_groups_;  // those with rows
  std::vector<int32_t> group_experts_;   // whose these are
  int64_t expert_reads_ = 0;             // of the current step
  int64_t expert_rows_ = 0;
  Activations expert_in_;            // [places][hidden]
  Activations expert_gated_;         // [places][intermediate of one]
  AlignedBuffer<float> expert_out_;  // [places][hidden]
  AlignedBuffer<float> logits_;      // [some rows][vocab, padded]
  std::vector<std::vector<float>> row_scratch_;              // per thread
  std::vector<std::vector<int32_t>> chosen_scratch_;         // per thread
  std::vector<std::vector<float>> score_scratch_;            // per thread
  std::vector<std::vector<int32_t>> chosen_groups_scratch_;  // per thread
  std::vector<std::vector<float>> group_score_scratch_;      // per thread
};

}  // namespace baton::engine::cpu
