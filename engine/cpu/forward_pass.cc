#include "engine/cpu/forward_pass.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "common/log.h"
#include "engine/float_convert.h"
#include "engine/sampling.h"

namespace baton::engine::cpu {
namespace {

// Values that an item of a row loop touches at least: some microseconds.
constexpr int64_t kItemWork = 16 << 10;
// Rows whose logits are held at a time: bounds the largest scratch.
constexpr int32_t kLogitRows = 64;
}  // namespace

ForwardPass::ForwardPass(const Kernels& kernels, ThreadTeam& team,
                         const ModelConfig& config, const CpuWeights& weights,
                         const CpuLoras& loras, const KvLayout& layout,
                         std::byte* kv_memory)
    : kernels_(kernels),
      team_(team),
      config_(config),
      weights_(weights),
      pages_(kernels, layout, kv_memory),
      q_size_(config.num_heads * config.head_dim),
      attention_size_(static_cast<int32_t>(config.AttentionSize())),
      rope_(config),
      sliding_rope_(SlidingRopeConfig(config)),
      matmul_(kernels, team),
      lora_(kernels, matmul_, loras),
      attention_(kernels, pages_, config.num_heads,
                 static_cast<float>(config.ScoreScale()), team.num_threads()),
      normed_(weights.dtype, config.hidden_size),
      query_latent_(weights.dtype, config.latent.query_rank),
      nope_queries_(weights.dtype, config.latent.nope_dim),
      mixed_(WeightDtype::kBf16, config.latent.rank),
      mixed_quantized_(weights.dtype, config.latent.rank),
      attended_(WeightDtype::kBf16, attention_size_),
      attended_quantized_(weights.dtype, attention_size_),
      gated_(weights.dtype, config.intermediate_size),
      normed_exact_(WeightDtype::kBf16, config.hidden_size),
      gated_exact_(WeightDtype::kBf16, config.intermediate_size),
      expert_in_(weights.dtype, config.hidden_size),
      expert_gated_(weights.dtype, config.experts.intermediate_size),
      row_scratch_(team.num_threads()),
      chosen_scratch_(team.num_threads()),
      score_scratch_(team.num_threads()),
      chosen_groups_scratch_(team.num_threads()),
      group_score_scratch_(team.num_threads()) {
  for (std::vector<float>& scratch : row_scratch_) {
    scratch.resize(std::max({config.hidden_size, attention_size_,
                             config.head_dim, config.latent.query_rank}));
  }
}

scheduling::StepResult ForwardPass::Run(const scheduling::StepPlan& plan,
                                        Engine::LayerHook on_layer_done) {
  LayOutRows(plan);
  ReserveScratch();
  expert_reads_ = expert_rows_ = 0;
  Embed();
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    const CpuLayerWeights& layer = weights_.layers[i];
    Normalize(layer.input_norm, /*exact=*/lora_.any());
    if (config_.IsLatent()) {
      ProjectLatent(layer.latent, i);
    } else {
      ProjectQkv(layer, i);
    }
    on_layer_done(i);
    if (i + 1 == config_.num_layers) KeepLogitRows();
    if (num_rows_ == 0) continue;
    if (config_.IsLatent()) {
      AttendLatent(layer.latent, i);
    } else {
      Attend(layer, i);
    }
    if (lora_.any()) lora_.Multiply(i, LoraInput::kO, attended_);
    AddProduct(
        attended_quantized_.quantized() ? attended_quantized_ : attended_,
        layer.o, layer.o_bias, i, LoraTarget::kO);
    if (config_.post_norms) AddNormed(layer.attention_out_norm);
    const bool mixes = config_.LayerHasExperts(i);
    Normalize(layer.post_attention_norm, /*exact=*/mixes || lora_.any());
    if (mixes) {
      MixExperts(layer);
    } else {
      FeedForward(layer, i);
      if (config_.post_norms) AddNormed(layer.feed_forward_out_norm);
    }
  }
  if (num_rows_ > 0) Normalize(weights_.final_norm);
  return UseLogits(plan);
}

void ForwardPass::OrderSequences(const scheduling::StepPlan& plan) {
  order_.resize(plan.sequences.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto adapter_of = [&](int32_t sequence) {
    return plan.sequences[sequence].adapter;
  };
  if (std::any_of(order_.begin(), order_.end(), [&](int32_t i) {
        return adapter_of(i) != scheduling::kNoAdapter;
      })) {
    std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
      return adapter_of(a) < adapter_of(b);
    });
  }
}

void ForwardPass::SetLoraRuns(absl::FunctionRef<int32_t(int32_t i)> row_of) {
  std::vector<LoraRun> runs;
  for (int32_t i = 0; i < num_rows_; ++i) {
    const int32_t adapter = rows_[row_of(i)].adapter;
    if (adapter == scheduling::kNoAdapter) continue;
    if (runs.empty() || runs.back().adapter != adapter) {
      runs.push_back({adapter, i, 0});
    }
    ++runs.back().rows;
  }
  lora_.SetRuns(std::move(runs));
}

void ForwardPass::LayOutRows(const scheduling::StepPlan& plan) {
  rows_.clear();
  tiles_.clear();
  logit_rows_.clear();
  sampled_index_.clear();
  target_index_.clear();
  int32_t num_sampled = 0;
  int32_t num_targets = 0;
  for (const scheduling::PlannedSequence& s : plan.sequences) {
    sampled_index_.push_back(num_sampled);
    target_index_.push_back(num_targets);
    num_sampled += s.num_samples();
    if (!s.targets.empty()) ++num_targets;
  }
  OrderSequences(plan);
  int32_t end_position = 0;
  for (const int32_t sequence : order_) {
    const scheduling::PlannedSequence& s = plan.sequences[sequence];
    const int32_t first_row = static_cast<int32_t>(rows_.size());
    const int32_t count = static_cast<int32_t>(s.tokens.size());
    for (int32_t i = 0; i < count; ++i) {
      rows_.push_back({s.tokens[i], s.first_position + i, s.adapter, s.blocks});
      if (i < static_cast<int32_t>(s.targets.size()) || s.SampleAfter(i) >= 0) {
        logit_rows_.push_back({first_row + i, sequence, i});
      }
    }
    for (int32_t i = 0; i < count; i += attention_.MaxTileRows()) {
      tiles_.push_back({first_row + i, first_row + i,
                        std::min(attention_.MaxTileRows(), count - i),
                        s.first_position + i, s.blocks});
    }
    end_position = std::max(end_position, s.first_position + count);
  }
  num_rows_ = static_cast<int32_t>(rows_.size());
  rope_.Ensure(end_position);
  if (config_.sliding_rope_theta.has_value()) {
    sliding_rope_.Ensure(end_position);
  }
  SetLoraRuns([](int32_t i) { return i; });
}

void ForwardPass::ReserveScratch() {
  residual_.Reserve(int64_t{num_rows_} * config_.hidden_size);
  if (config_.post_norms) {
    product_.Reserve(int64_t{num_rows_} * config_.hidden_size);
  }
  normed_.Reserve(num_rows_);
  queries_.Reserve(int64_t{num_rows_} * q_size_);
  if (config_.IsLatent()) {
    const int32_t of_heads = config_.num_heads * num_rows_;
    query_latent_.Reserve(config_.latent.query_rank > 0 ? num_rows_ : 0);
    latent_.Reserve(num_rows_ *
                    int64_t{weights_.layers[0].latent.down.outputs()});
    nope_queries_.Reserve(of_heads);
    mixed_.Reserve(of_heads);
    if (mixed_quantized_.quantized()) mixed_quantized_.Reserve(of_heads);
  }
  attended_.Reserve(num_rows_);
  if (attended_quantized_.quantized()) attended_quantized_.Reserve(num_rows_);
  gated_.Reserve(num_rows_);
  if (normed_.quantized() && (config_.experts.count > 0 || lora_.any())) {
    normed_exact_.Reserve(num_rows_);
  }
  if (gated_.quantized() && lora_.any()) gated_exact_.Reserve(num_rows_);
  if (config_.experts.count > 0) {
    const int32_t passed = config_.experts.passed();
    const int32_t places = std::min(num_rows_, kExpertRows) * passed;
    choices_.resize(int64_t{num_rows_} * passed);
    expert_in_.Reserve(places);
    expert_gated_.Reserve(places);
    expert_out_.Reserve(int64_t{places} * config_.hidden_size);
  }
  logits_.Reserve(std::min<int64_t>(logit_rows_.size(), kLogitRows) *
                  weights_.lm_head.outputs());
}

void ForwardPass::ForRows(int32_t first, int32_t count, int64_t row_work,
                          RowBody body) {
  const int64_t rows_per_item = std::max<int64_t>(1, kItemWork / row_work);
  const int64_t items = (count + rows_per_item - 1) / rows_per_item;
  team_.ParallelFor(items, [&](int64_t item, int32_t thread) {
    const int64_t begin = first + item * rows_per_item;
    const int64_t end =
        std::min<int64_t>(int64_t{first} + count, begin + rows_per_item);
    for (int64_t row = begin; row < end; ++row) {
      body(static_cast<int32_t>(row), thread);
    }
  });
}

void ForwardPass::Embed() {
  const int32_t hidden = config_.hidden_size;
  const auto scale = static_cast<float>(config_.embedding_scale);
  ForRows(hidden, [&](int32_t row, int32_t) {
    weights_.ReadEmbedding(rows_[row].token, residual(row));
    if (scale != 1.0f) kernels_.scale(residual(row), scale, hidden);
  });
}

void ForwardPass::Normalize(const std::vector<float>& norm, bool exact) {
  // With weights in bfloat16, all read the same.
  exact = exact && normed_.quantized();
  const int32_t hidden = config_.hidden_size;
  const float eps = static_cast<float>(config_.rms_norm_eps);
  ForRows(2 * hidden, [&](int32_t row, int32_t thread) {
    float* const x = row_scratch_[thread].data();
    kernels_.rms_norm(residual(row), norm.data(), hidden, eps, x);
    if (exact) {
      normed_exact_.Write(kernels_, row, /*first_column=*/0, x, hidden);
    }
    normed_.Write(kernels_, row, /*first_column=*/0, x, hidden);
  });
}

void ForwardPass::ProjectQkv(const CpuLayerWeights& layer,
                             int32_t layer_index) {
  const int32_t head_panels = pages_.layout().stored_head_dim() / kPanelColumns;
  if (lora_.any()) {
    lora_.Multiply(layer_index, LoraInput::kQkv, normed_exact());
  }
  matmul_.Run(
      normed_, /*first_row=*/0, num_rows_, layer.qkv, head_panels,
      [&](const Strip& strip) { FinishHeads(layer, layer_index, strip); });
}

// From the product of one head to its rotated query in queries_, or its key or
// value in KV memory.
void ForwardPass::FinishHeads(const CpuLayerWeights& layer, int32_t layer_index,
                              const Strip& strip) {
  const int32_t head_dim = config_.head_dim;
  const float eps = static_cast<float>(config_.rms_norm_eps);
  const int32_t q_heads = config_.num_heads;
  const int32_t kv_heads = config_.num_kv_heads;
  const int32_t head = strip.first_panel / strip.panels;
  const bool is_query = head < q_heads;
  const bool is_value = head >= q_heads + kv_heads;
  const bool turns = config_.LayerTurns(layer_index);
  const RopeTable& rope =
      config_.sliding_rope_theta.has_value() && config_.LayerSlides(layer_index)
          ? sliding_rope_
          : rope_;
  const std::vector<float>& norm = is_query ? layer.q_norm : layer.k_norm;
  if (lora_.any()) {
    const LoraTarget target = is_query   ? LoraTarget::kQ
                              : is_value ? LoraTarget::kV
                                         : LoraTarget::kK;
    const int32_t before = is_query   ? 0
                           : is_value ? q_heads + kv_heads
                                      : q_heads;
    lora_.AddTo(layer_index, target, (head - before) * strip.panels,
                strip.panels, /*column=*/0, strip);
  }
  for (int32_t i = 0; i < strip.rows; ++i) {
    const Row& row = rows_[strip.first_row + i];
    float* const x = strip.row(i);
    if (!layer.qkv_bias.empty()) {
      kernels_.add(x, layer.qkv_bias.data() + strip.first_column(), head_dim);
    }
    if (is_value) {
      pages_.WriteValue(layer_index, row.blocks, row.position,
                        head - q_heads - kv_heads, x);
      continue;
    }
    if (!norm.empty()) {
      kernels_.rms_norm(x, norm.data(), head_dim, eps, x);
    }
    if (turns) {
      kernels_.rope(x, rope.Cos(row.position), rope.Sin(row.position),
                    config_.RotaryDim() / 2);
    }
    if (is_query) {
      kernels_.round_row(x, head_dim,
                         queries_.data() +
                             int64_t{strip.first_row + i} * q_size_ +
                             head * head_dim);
    } else {
      pages_.WriteKey(layer_index, row.blocks, row.position, head - q_heads, x);
    }
  }
}

void ForwardPass::Attend(const CpuLayerWeights& layer, int32_t layer_index) {
  const std::optional<int32_t> window =
      config_.LayerSlides(layer_index) ? config_.sliding_window : std::nullopt;
  attention_.Run(team_, tiles_, layer_index, window, layer.sinks,
                 queries_.data(), q_size_, attended_.bf16(0),
                 attended_.stride(), config_.head_dim);
  if (!attended_quantized_.quantized()) return;
  ForRows(2 * q_size_, [&](int32_t row, int32_t thread) {
    QuantizeRow(attended_, row, thread, attended_quantized_);
  });
}

void ForwardPass::QuantizeRow(const Activations& from, int32_t row,
                              int32_t thread, Activations& to) {
  float* const x = row_scratch_[thread].data();
  const uint16_t* const values = from.bf16(row);
  for (int32_t i = 0; i < from.columns(); ++i) x[i] = Bf16ToFloat(values[i]);
  to.Write(kernels_, row, /*first_column=*/0, x, from.columns());
}

void ForwardPass::KeepLogitRows() {
  tiles_.clear();
  num_rows_ = static_cast<int32_t>(logit_rows_.size());
  for (int32_t i = 0; i < num_rows_; ++i) {
    const int32_t row = logit_rows_[i].row;
    tiles_.push_back({row, i, 1, rows_[row].position, rows_[row].blocks});
    // Rising rows: never overwrites one that is still to be moved.
    if (row != i) {
      std::memcpy(residual(i), residual(row),
                  sizeof(float) * config_.hidden_size);
    }
  }
  if (lora_.any()) {
    SetLoraRuns([this](int32_t i) { return logit_rows_[i].row; });
  }
}

void ForwardPass::FeedForward(const CpuLayerWeights& layer,
                              int32_t layer_index) {
  const bool adapted = lora_.any();
  if (adapted) {
    lora_.Multiply(layer_index, LoraInput::kGateUp, normed_exact());
  }
  Activations* const exact =
      adapted && gated_.quantized() ? &gated_exact_ : nullptr;
  matmul_.Run(normed_, /*first_row=*/0, num_rows_, layer.gate_up,
              2 * kGatePanels, [&](const Strip& strip) {
                if (adapted) {
                  const int32_t panel = strip.first_panel / 2;
                  lora_.AddTo(layer_index, LoraTarget::kGate, panel,
                              kGatePanels, /*column=*/0, strip);
                  lora_.AddTo(layer_index, LoraTarget::kUp, panel, kGatePanels,
                              /*column=*/kGroupInputs, strip);
                }
                Gate(strip, layer.gate_up_bias, /*limit=*/0.0f, gated_, exact);
              });
  if (adapted) {
    lora_.Multiply(layer_index, LoraInput::kDown,
                   exact != nullptr ? *exact : gated_);
  }
  AddProduct(gated_, layer.down, layer.down_bias, layer_index,
             LoraTarget::kDown);
}

void ForwardPass::Gate(const Strip& strip, const std::vector<float>& bias,
                       float limit, Activations& gated, Activations* exact) {
  // kGroupInputs columns of gate, then as many of up.
  const int32_t first = strip.first_column() / 2;
  for (int32_t i = 0; i < strip.rows; ++i) {
    float* const gate = strip.row(i);
    if (!bias.empty()) {
      kernels_.add(gate, bias.data() + strip.first_column(), 2 * kGroupInputs);
    }
    float* const up = gate + kGroupInputs;
    if (limit > 0) {
      kernels_.limited_swiglu(gate, up, limit, kGroupInputs, gate);
    } else if (config_.activation == Activation::kGeluTanh) {
      kernels_.geglu(gate, up, kGroupInputs, gate);
    } else {
      kernels_.swiglu(gate, up, kGroupInputs, gate);
    }
    const int32_t row = strip.first_row + i;
    if (exact != nullptr) {
      exact->Write(kernels_, row, first, gate, kGroupInputs);
    }
    gated.Write(kernels_, row, first, gate, kGroupInputs);
  }
}

void ForwardPass::AddProduct(const Activations& a, const PackedMatrix& b,
                             const std::vector<float>& bias,
                             int32_t layer_index, LoraTarget target) {
  const int32_t hidden = config_.hidden_size;
  matmul_.Run(
      a, /*first_row=*/0, num_rows_, b, b.unit(), [&](const Strip& strip) {
        if (lora_.any()) {
          lora_.AddTo(layer_index, target, strip.first_panel, strip.panels,
                      /*column=*/0, strip);
        }
        const int32_t first = strip.first_column();
        const int32_t n =
            std::min(strip.panels * kPanelColumns, hidden - first);
        for (int32_t i = 0; i < strip.rows; ++i) {
          if (!bias.empty()) kernels_.add(strip.row(i), bias.data() + first, n);
          if (config_.post_norms) {
            std::memcpy(product(strip.first_row + i) + first, strip.row(i),
                        n * sizeof(float));
            continue;
          }
          kernels_.add(residual(strip.first_row + i) + first, strip.row(i), n);
        }
      });
}

void ForwardPass::AddNormed(const std::vector<float>& norm) {
  const int32_t hidden = config_.hidden_size;
  const float eps = static_cast<float>(config_.rms_norm_eps);
  ForRows(2 * hidden, [&](int32_t row, int32_t) {
    float* const x = product(row);
    kernels_.rms_norm(x, norm.data(), hidden, eps, x);
    kernels_.add(residual(row), x, hidden);
  });
}

scheduling::StepResult ForwardPass::UseLogits(
    const scheduling::StepPlan& plan) {
  scheduling::StepResult result;
  result.expert_reads = expert_reads_;
  result.expert_rows = expert_rows_;
  for (const scheduling::PlannedSequence& s : plan.sequences) {
    result.sampled.resize(result.sampled.size() + s.num_samples());
    if (s.targets.empty()) continue;
    result.target_logprobs.emplace_back(s.targets.size());
    result.target_top.emplace_back(s.target_top_logprobs > 0 ? s.targets.size()
                                                             : 0);
  }
  const PackedMatrix& lm_head = weights_.lm_head;
  const int64_t stride = lm_head.outputs();
  for (int32_t first = 0; first < num_rows_; first += kLogitRows) {
    const int32_t count = std::min(kLogitRows, num_rows_ - first);
    matmul_.Run(normed_, first, count, lm_head, lm_head.unit(),
                [&](const Strip& strip) {
                  for (int32_t i = 0; i < strip.rows; ++i) {
                    const int32_t row = strip.first_row - first + i;
                    std::memcpy(
                        logits_.data() + row * stride + strip.first_column(),
                        strip.row(i),
                        sizeof(float) * strip.panels * kPanelColumns);
                  }
                });
    team_.ParallelFor(count, [&](int64_t i, int32_t) {
      UseLogitRow(
          plan, logit_rows_[first + i],
          absl::MakeSpan(logits_.data() + i * stride, config_.vocab_size),
          &result);
    });
  }
  return result;
}

void ForwardPass::UseLogitRow(const scheduling::StepPlan& plan,
                              const LogitRow& row, absl::Span<float> logits,
                              scheduling::StepResult* result) {
  const scheduling::PlannedSequence& s = plan.sequences[row.sequence];
  if (row.token < static_cast<int32_t>(s.targets.size())) {
    const int32_t index = target_index_[row.sequence];
    result->target_logprobs[index][row.token] = LogProbability(
        logits, s.targets[row.token], s.target_top_logprobs,
        s.target_top_logprobs > 0 ? &result->target_top[index][row.token]
                                  : nullptr);
  }
  const int32_t index = s.SampleAfter(row.token);
  if (index < 0) return;
  std::vector<float> copy;
  if (s.want_logits) copy.assign(logits.begin(), logits.end());
  scheduling::SampledToken token = Sample(
      logits, *s.sampling, s.history, s.prompt_length, s.sample_index() + index,
      {.forbidden = s.forbidden,
       .allowed = s.AllowedOf(index),
       .top_logprobs = s.top_logprobs});
  token.sequence = s.sequence;
  token.logits = std::move(copy);
  result->sampled[sampled_index_[row.sequence] + index] = std::move(token);
}

}  // namespace baton::engine::cpu
