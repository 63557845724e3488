#include "engine/cpu/forward_pass.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "common/log.h"
#include "engine/cpu/matmul.h"
#include "engine/sampling.h"

namespace baton::engine::cpu {
namespace {

// Values that an item of a row loop touches at least: some microseconds.
constexpr int64_t kItemWork = 16 << 10;
// Sampled rows whose logits are held at a time: bounds the largest scratch.
constexpr int32_t kLogitRows = 64;

int64_t RoundUp(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

}  // namespace

ForwardPass::ForwardPass(const Kernels& kernels, ThreadTeam& team,
                         const ModelConfig& config, const CpuWeights& weights,
                         const KvLayout& layout, std::byte* kv_memory)
    : kernels_(kernels),
      team_(team),
      config_(config),
      weights_(weights),
      layout_(layout),
      kv_memory_(kv_memory),
      q_size_(config.num_heads * config.head_dim),
      kv_size_(config.num_kv_heads * config.head_dim),
      input_stride_(RoundUp(
          std::max({config.hidden_size, q_size_, config.intermediate_size}),
          2)),
      wide_stride_(std::max({weights.layer(0).qkv.outputs(),
                             weights.layer(0).o.outputs(),
                             weights.layer(0).gate_up.outputs()})),
      rope_(config),
      attention_(kernels, layout, config.num_heads, team.num_threads()) {}

scheduling::StepResult ForwardPass::Run(const scheduling::StepPlan& plan,
                                        Engine::LayerHook on_layer_done) {
  LayOutRows(plan);
  ReserveScratch();
  Embed();
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    const CpuLayerWeights& layer = weights_.layer(i);
    const bool last = i + 1 == config_.num_layers;
    ProjectQkv(layer);
    ForRows(wide_stride_, [&](int32_t row) { FinishQkvRow(layer, i, row); });
    on_layer_done(i);
    if (last) KeepSampledRows();
    if (num_rows_ == 0) continue;
    Attend(i);
    Matmul(kernels_, team_, input_.data(), input_stride_, num_rows_, layer.o,
           wide_.data(), wide_stride_);
    AddAndNorm(layer.o_bias, layer.post_attention_norm);
    FeedForward(layer);
    AddAndNorm(layer.down_bias,
               last ? weights_.final_norm() : weights_.layer(i + 1).input_norm);
  }
  return SampleRows(plan);
}

void ForwardPass::LayOutRows(const scheduling::StepPlan& plan) {
  rows_.clear();
  tiles_.clear();
  sampled_rows_.clear();
  int32_t end_position = 0;
  for (const scheduling::PlannedSequence& s : plan.sequences) {
    const int32_t first_row = static_cast<int32_t>(rows_.size());
    const int32_t count = static_cast<int32_t>(s.tokens.size());
    for (int32_t i = 0; i < count; ++i) {
      rows_.push_back({s.tokens[i], s.first_position + i, s.blocks});
    }
    for (int32_t i = 0; i < count; i += attention_.MaxTileRows()) {
      tiles_.push_back({first_row + i, first_row + i,
                        std::min(attention_.MaxTileRows(), count - i),
                        s.first_position + i, s.blocks});
    }
    if (s.sample) sampled_rows_.push_back(first_row + count - 1);
    end_position = std::max(end_position, s.first_position + count);
  }
  num_rows_ = static_cast<int32_t>(rows_.size());
  rope_.Ensure(end_position);
}

void ForwardPass::ReserveScratch() {
  residual_.Reserve(int64_t{num_rows_} * config_.hidden_size);
  input_.Reserve(num_rows_ * input_stride_);
  wide_.Reserve(num_rows_ * wide_stride_);
  queries_.Reserve(int64_t{num_rows_} * q_size_);
  logits_.Reserve(std::min<int64_t>(sampled_rows_.size(), kLogitRows) *
                  weights_.lm_head().outputs());
}

void ForwardPass::ForRows(int64_t row_work,
                          absl::FunctionRef<void(int32_t row)> body) {
  const int64_t rows_per_item = std::max<int64_t>(1, kItemWork / row_work);
  const int64_t items = (num_rows_ + rows_per_item - 1) / rows_per_item;
  team_.ParallelFor(items, [&](int64_t item, int32_t) {
    const int64_t begin = item * rows_per_item;
    const int64_t end = std::min<int64_t>(num_rows_, begin + rows_per_item);
    for (int64_t row = begin; row < end; ++row) {
      body(static_cast<int32_t>(row));
    }
  });
}

void ForwardPass::PadInput(int32_t row, int32_t size) {
  if (size % 2 != 0) input(row)[size] = 0;
}

void ForwardPass::Embed() {
  const int32_t hidden = config_.hidden_size;
  const float* const norm = weights_.layer(0).input_norm.data();
  const float eps = static_cast<float>(config_.rms_norm_eps);
  ForRows(hidden, [&](int32_t row) {
    weights_.ReadEmbedding(rows_[row].token, residual(row));
    kernels_.rms_norm_round(residual(row), norm, hidden, eps, input(row));
    PadInput(row, hidden);
  });
}

void ForwardPass::ProjectQkv(const CpuLayerWeights& layer) {
  Matmul(kernels_, team_, input_.data(), input_stride_, num_rows_, layer.qkv,
         wide_.data(), wide_stride_);
}

// From the row's product to rotated queries in queries_ and keys and values in
// KV memory.
void ForwardPass::FinishQkvRow(const CpuLayerWeights& layer,
                               int32_t layer_index, int32_t row) {
  const int32_t head_dim = config_.head_dim;
  const float eps = static_cast<float>(config_.rms_norm_eps);
  const int32_t position = rows_[row].position;
  const float* const cos = rope_.Cos(position);
  const float* const sin = rope_.Sin(position);
  float* const q = wide(row);
  float* const k = q + RoundUp(q_size_, kPanelColumns);
  float* const v = k + RoundUp(kv_size_, kPanelColumns);
  if (!layer.qkv_bias.empty()) {
    kernels_.add(q, layer.qkv_bias.data(),
                 static_cast<int32_t>(layer.qkv_bias.size()));
  }
  const auto finish_heads = [&](float* heads, int32_t count,
                                const std::vector<float>& norm) {
    for (int32_t h = 0; h < count; ++h) {
      float* const head = heads + h * head_dim;
      if (!norm.empty()) {
        kernels_.rms_norm(head, norm.data(), head_dim, eps, head);
      }
      kernels_.rope(head, cos, sin, head_dim / 2);
    }
  };
  finish_heads(q, config_.num_heads, layer.q_norm);
  finish_heads(k, config_.num_kv_heads, layer.k_norm);
  kernels_.round_row(q, q_size_, queries_.data() + int64_t{row} * q_size_);
  WriteKv(layer_index, row, k, v);
}

void ForwardPass::WriteKv(int32_t layer_index, int32_t row, const float* keys,
                          const float* values) {
  const int32_t position = rows_[row].position;
  const BlockId block = rows_[row].blocks[position / layout_.block_size];
  const int64_t row_bytes = layout_.head_dim * layout_.element_bytes();
  std::byte* at = kv_memory_ + layout_.PageOffset(layer_index, block) +
                  position % layout_.block_size * row_bytes;
  for (int32_t h = 0; h < layout_.num_kv_heads; ++h) {
    kernels_.round_row(keys + h * layout_.head_dim, layout_.head_dim,
                       reinterpret_cast<uint16_t*>(at));
    kernels_.round_row(
        values + h * layout_.head_dim, layout_.head_dim,
        reinterpret_cast<uint16_t*>(at + layout_.block_size * row_bytes));
    at += layout_.head_bytes();
  }
}

void ForwardPass::Attend(int32_t layer_index) {
  const std::optional<int32_t> window =
      config_.LayerSlides(layer_index) ? config_.sliding_window : std::nullopt;
  attention_.Run(team_, tiles_, layer_index, kv_memory_, window,
                 queries_.data(), q_size_, input_.data(), input_stride_);
}

void ForwardPass::KeepSampledRows() {
  tiles_.clear();
  num_rows_ = static_cast<int32_t>(sampled_rows_.size());
  for (int32_t i = 0; i < num_rows_; ++i) {
    const int32_t row = sampled_rows_[i];
    tiles_.push_back({row, i, 1, rows_[row].position, rows_[row].blocks});
    // Rising rows: never overwrites one that is still to be moved.
    if (row != i) {
      std::memcpy(residual(i), residual(row),
                  sizeof(float) * config_.hidden_size);
    }
  }
}

void ForwardPass::FeedForward(const CpuLayerWeights& layer) {
  Matmul(kernels_, team_, input_.data(), input_stride_, num_rows_,
         layer.gate_up, wide_.data(), wide_stride_);
  const int32_t size = config_.intermediate_size;
  ForRows(2 * size, [&](int32_t row) {
    float* const gate = wide(row);
    if (!layer.gate_up_bias.empty()) {
      kernels_.add(gate, layer.gate_up_bias.data(),
                   static_cast<int32_t>(layer.gate_up_bias.size()));
    }
    kernels_.swiglu_round(gate, gate + RoundUp(size, kPanelColumns), size,
                          input(row));
    PadInput(row, size);
  });
  Matmul(kernels_, team_, input_.data(), input_stride_, num_rows_, layer.down,
         wide_.data(), wide_stride_);
}

void ForwardPass::AddAndNorm(const std::vector<float>& bias,
                             const std::vector<float>& norm) {
  const int32_t hidden = config_.hidden_size;
  const float eps = static_cast<float>(config_.rms_norm_eps);
  ForRows(2 * hidden, [&](int32_t row) {
    if (!bias.empty()) kernels_.add(wide(row), bias.data(), hidden);
    kernels_.add(residual(row), wide(row), hidden);
    kernels_.rms_norm_round(residual(row), norm.data(), hidden, eps,
                            input(row));
    PadInput(row, hidden);
  });
}

scheduling::StepResult ForwardPass::SampleRows(
    const scheduling::StepPlan& plan) {
  std::vector<const scheduling::PlannedSequence*> sampled;
  for (const scheduling::PlannedSequence& s : plan.sequences) {
    if (s.sample) sampled.push_back(&s);
  }
  scheduling::StepResult result;
  result.sampled.resize(sampled.size());
  const PackedMatrix& lm_head = weights_.lm_head();
  for (int32_t first = 0; first < num_rows_; first += kLogitRows) {
    const int32_t count = std::min(kLogitRows, num_rows_ - first);
    Matmul(kernels_, team_, input(first), input_stride_, count, lm_head,
           logits_.data(), lm_head.outputs());
    team_.ParallelFor(count, [&](int64_t i, int32_t) {
      const scheduling::PlannedSequence& s = *sampled[first + i];
      const absl::Span<float> logits(logits_.data() + i * lm_head.outputs(),
                                     config_.vocab_size);
      std::vector<float> copy;
      if (s.want_logits) copy.assign(logits.begin(), logits.end());
      scheduling::SampledToken token =
          Sample(logits, *s.sampling, s.history, s.prompt_length,
                 s.history.size() - s.prompt_length);
      token.sequence = s.sequence;
      token.logits = std::move(copy);
      result.sampled[first + i] = std::move(token);
    });
  }
  return result;
}

}  // namespace baton::engine::cpu
