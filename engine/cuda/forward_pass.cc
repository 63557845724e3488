#include "engine/cuda/forward_pass.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/log.h"
#include "common/status_macros.h"
#include "engine/cuda/sample_plan.h"
#include "engine/sampling.h"

namespace baton::engine::cuda {
namespace {

bool IsTarget(const scheduling::PlannedSequence& s, const LogitRow& row) {
  return row.token < static_cast<int32_t>(s.targets.size());
}

}  // namespace

int64_t ForwardPass::DeviceBytes(const ModelConfig& config, const Shard& shard,
                                 const KvLayout& layout,
                                 const ForwardPassOptions& options) {
  const PassSizes s(config, shard, layout, options);
  const int64_t per_row = 4 * ((config.post_norms ? 3 : 2) * int64_t{s.hidden} +
                               s.qkv_part + config.experts.count) +
                          2 * (int64_t{s.padded_hidden} + s.stored_q +
                               s.padded_q + s.padded_intermediate);
  const int64_t per_place =
      2 * int64_t{s.padded_expert} + 4 * int64_t{s.hidden_part} +
      (s.experts_staged ? 2 * int64_t{s.hidden} : 0) +
      int64_t{sizeof(ExpertChoice) + sizeof(int32_t) + sizeof(RowTile)};
  const int64_t adapted =
      options.max_rows * int64_t{2 * kLoraParts} * options.lora_rank +
      s.stored_rows * 4 * s.stored_gate_up;
  const int64_t per_logit_row = 2 * 4 * s.logit_stride + 64;
  // Twice while it grows.
  const int64_t rope = (1 + (config.layer_turns.empty() ? 0 : 1) +
                        (config.sliding_rope_theta.has_value() ? 1 : 0)) *
                       int64_t{config.max_position} * config.head_dim *
                       int64_t{sizeof(float)};
  const int64_t latent =
      config.IsLatent()
          ? LatentPass(config, shard, layout, options.max_rows).DeviceBytes()
          : 0;
  return StagedRows(options.max_rows) * per_row + s.places * per_place +
         latent + adapted + s.logit_rows * per_logit_row +
         (1 + shard.ranks) * s.sent_bytes + s.span_bytes + 2 * rope +
         options.first_upload_bytes +
         (shard.ranks > 1 ? 2 : 1) * options.spare_bytes;
}

absl::StatusOr<std::unique_ptr<ForwardPass>> ForwardPass::Create(
    const ModelConfig& config, const Place& place, const DeviceWeights& weights,
    const KvLayout& layout, std::byte* kv_memory, Stream& stream,
    const ForwardPassOptions& options) {
  CHECK_EQ(place.group == nullptr, place.shard.ranks == 1);
  std::unique_ptr<ForwardPass> pass(new ForwardPass(
      config, place, weights, layout, kv_memory, stream, options));
  BATON_RETURN_IF_ERROR(pass->Allocate());
  return pass;
}

ForwardPass::ForwardPass(const ModelConfig& config, const Place& place,
                         const DeviceWeights& weights, const KvLayout& layout,
                         std::byte* kv_memory, Stream& stream,
                         const ForwardPassOptions& options)
    : config_(config),
      place_(place),
      weights_(weights),
      layout_(layout),
      kv_memory_(kv_memory),
      stream_(stream),
      options_(options),
      sizes_(config, place.shard, layout, options),
      rope_table_(config),
      sliding_rope_table_(cpu::SlidingRopeConfig(config)) {
  if (config.IsLatent()) {
    latent_.emplace(config, place.shard, layout, options.max_rows);
  }
}

ForwardPass::~ForwardPass() {
  if (ahead_) stream_.Wait();
}

absl::Status ForwardPass::Allocate() {
  const PassSizes& s = sizes_;
  const int64_t rows = options_.max_rows;
  // Of what products read, which may be staged.
  const int64_t input_rows = StagedRows(rows);
  struct Item {
    DeviceBuffer* buffer;
    int64_t bytes;
  };
  const Item items[] = {
      {&residual_, rows * s.hidden * 4},
      {&kept_, rows * s.hidden * 4},
      {&product_, config_.post_norms ? rows * s.hidden * 4 : 0},
      {&normed_, input_rows * s.padded_hidden * 2},
      {&qkv_, rows * s.qkv_part * 4},
      {&queries_, rows * s.stored_q * 2},
      {&attended_, input_rows * s.padded_q * 2},
      {&gated_, input_rows * s.padded_intermediate * 2},
      {&router_logits_, rows * config_.experts.count * 4},
      {&choices_, s.places * int64_t{sizeof(ExpertChoice)}},
      {&place_rows_, s.places * int64_t{sizeof(int32_t)}},
      // There are no more tiles than places.
      {&row_tiles_, s.places * int64_t{sizeof(RowTile)}},
      {&expert_in_, s.experts_staged ? s.places * s.hidden * 2 : 0},
      {&expert_gated_, s.places * s.padded_expert * 2},
      {&expert_out_, s.places * s.hidden_part * 4},
      {&narrow_, rows * kLoraParts * options_.lora_rank * 2},
      {&stored_, s.stored_rows * s.stored_gate_up * 4},
      {&logits_, s.logit_rows * s.logit_stride * 4},
      {&edited_, s.logit_rows * s.logit_stride * 4},
      {&span_sums_, s.span_pieces * s.heads * s.span_elements * 4},
      {&span_states_, s.span_pieces * s.heads * 2 * 4},
      {&span_counts_, s.span_pieces * s.span_blocks * 4},
      {&outcomes_, (1 + s.logit_rows) * int64_t{sizeof(SampleOutcome)}},
      {&picked_, s.logit_rows * int64_t{sizeof(float)}},
      {&tops_, s.logit_rows * kTopBytes},
      {&sent_, s.sent_bytes},
      {&gathered_, place_.shard.ranks * s.sent_bytes},
  };
  for (const Item& item : items) {
    BATON_ASSIGN_OR_RETURN(
        *item.buffer, DeviceBuffer::Allocate(item.bytes, "a step's values"));
    if (item.bytes > 0) stream_.Fill(item.buffer->data(), 0, item.bytes);
  }
  if (latent_) BATON_RETURN_IF_ERROR(latent_->Allocate(stream_));
  for (int i = 0; i < 2; ++i) {
    BATON_ASSIGN_OR_RETURN(
        host_outcomes_[i],
        PinnedBuffer::Allocate(
            (1 + s.logit_rows) * int64_t{sizeof(SampleOutcome)}, "outcomes"));
    BATON_ASSIGN_OR_RETURN(
        host_tops_[i],
        PinnedBuffer::Allocate(s.logit_rows * kTopBytes, "likeliest tokens"));
    outcomes_there_[i] = std::make_unique<Event>();
  }
  BATON_ASSIGN_OR_RETURN(
      host_picked_, PinnedBuffer::Allocate(
                        s.logit_rows * int64_t{sizeof(float)}, "outcomes"));
  BATON_ASSIGN_OR_RETURN(
      host_logits_,
      PinnedBuffer::Allocate(s.logit_stride * int64_t{sizeof(float)},
                             "a row of logits"));
  BATON_RETURN_IF_ERROR(upload_.Grow(options_.first_upload_bytes));
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    layer_events_.push_back(std::make_unique<Event>());
  }
  BATON_RETURN_IF_ERROR(EnsureRope(
      std::min(options_.first_rope_positions, config_.max_position)));
  stream_.Wait();
  return absl::OkStatus();
}

bool ForwardPass::MeetOthers(bool yes) {
  if (place_.meeting == nullptr || place_.group == nullptr) return yes;
  return place_.meeting->Meet(yes);
}

LayoutOptions ForwardPass::LayoutOf() const {
  LayoutOptions options;
  options.block_size = layout_.block_size;
  options.group = sizes_.heads / sizes_.kv_heads;
  options.latent = config_.IsLatent();
  options.window = config_.sliding_window.value_or(0);
  options.last_layer_slides = config_.LayerSlides(config_.num_layers - 1);
  options.max_span_pieces = sizes_.span_pieces;
  options.group_attention = kernels().group_attention && !options.latent &&
                            IsGroupAttentionHeadDim(layout_.stored_head_dim());
  return options;
}

scheduling::StepResult ForwardPass::Run(const scheduling::StepPlan& plan,
                                        Engine::LayerHook on_layer_done,
                                        absl::FunctionRef<void()> meanwhile) {
  CHECK(!ahead_) << "the step ahead was not awaited";
  result_ = {};
  drawn_.clear();
  meanwhile_ = &meanwhile;
  sampled_index_.clear();
  target_index_.clear();
  for (const scheduling::PlannedSequence& s : plan.sequences) {
    sampled_index_.push_back(static_cast<int32_t>(result_.sampled.size()));
    target_index_.push_back(
        static_cast<int32_t>(result_.target_logprobs.size()));
    result_.sampled.resize(result_.sampled.size() + s.num_samples());
    if (s.targets.empty()) continue;
    result_.target_logprobs.emplace_back(s.targets.size());
    result_.target_top.emplace_back(s.target_top_logprobs > 0 ? s.targets.size()
                                                              : 0);
  }
  const std::vector<Pass> passes = CutIntoPasses(plan, options_.max_rows);
  for (size_t i = 0; i < passes.size(); ++i) {
    const StepLayout layout = LayOut(plan, passes[i], LayoutOf());
    const absl::Status status = EnsureRope(layout.end_position);
    CHECK(status.ok()) << status;
    const Draws draws = PlanDraws(plan, layout);
    const bool last = i + 1 == passes.size();
    in_last_pass_ = last;
    if (const auto bucket = BucketOf(plan, passes[i], layout)) {
      RunDecode(plan, layout, draws, *bucket);
      if (last) CallHookAfterDecode(on_layer_done);
    } else {
      RunAny(plan, layout, draws, last ? &on_layer_done : nullptr);
    }
  }
  if (passes.empty()) {
    in_last_pass_ = true;
    UseTime();
    for (int32_t l = 0; l < config_.num_layers; ++l) on_layer_done(l);
  }
  if (stage_ != nullptr) stage_->EndStep();
  return std::move(result_);
}

void ForwardPass::UseTime() {
  // Until then block tables are read.
  if (meanwhile_ == nullptr || !in_last_pass_) return;
  (*std::exchange(meanwhile_, nullptr))();
}

ForwardPass::Draws ForwardPass::PlanDraws(const scheduling::StepPlan& plan,
                                          const StepLayout& layout) const {
  Draws draws;
  for (const LogitRow& row : layout.logit_rows) {
    const scheduling::PlannedSequence& s = plan.sequences[row.sequence];
    SampleRow how;
    how.statistics_only = 1;
    if (const int32_t index = s.SampleAfter(row.token); index >= 0) {
      how = PlanSample(s, index, config_.vocab_size, &draws.lists);
    }
    const bool targeted = IsTarget(s, row);
    if (targeted) how.top = std::max(how.top, s.target_top_logprobs);
    draws.any_top |= how.top > 0;
    draws.how.push_back(how);
    draws.any_targets |= targeted;
    draws.targets.push_back(targeted ? s.targets[row.token] : 0);
  }
  return draws;
}

void ForwardPass::StageLayers() {
  if (stage_ == nullptr || !stage_->copies_step()) return;
  for (int32_t l = 0; l < config_.num_layers; ++l) {
    stage_->CopyLayerOfStep(l, *layer_events_[l]);
  }
}

void ForwardPass::CallHookAfterDecode(Engine::LayerHook hook) {
  if (stage_ != nullptr && stage_->copies_step()) {
    for (const auto& event : layer_events_) stream_.Record(*event);
    StageLayers();
    CallHook(hook);
    return;
  }
  for (int32_t l = 0; l < config_.num_layers; ++l) hook(l);
}

void ForwardPass::CallHook(Engine::LayerHook hook) {
  const bool staged = stage_ != nullptr && stage_->copies_step();
  for (int32_t l = 0; l < config_.num_layers; ++l) {
    layer_events_[l]->Wait();
    if (staged) stage_->AwaitLayerOfStep(l);
    hook(l);
  }
}

void ForwardPass::RunAny(const scheduling::StepPlan& plan,
                         const StepLayout& layout, const Draws& draws,
                         const Engine::LayerHook* hook) {
  const auto rows = static_cast<int64_t>(layout.tokens.size());
  const auto logit_rows = static_cast<int32_t>(layout.logit_rows.size());
  upload_.Clear();
  EnsureUpload(UploadBytes(layout, rows, draws.lists));
  PassArrays arrays;
  UploadRows(layout, rows, &arrays);
  arrays.full = UploadTileSet(layout.full);
  arrays.sliding = UploadTileSet(layout.sliding);
  arrays.last = UploadTileSet(layout.last);
  arrays.num_logit_rows = logit_rows;
  if (logit_rows < rows) {
    const auto kept = upload_.Reserve<int32_t>(logit_rows);
    for (int32_t i = 0; i < logit_rows; ++i) {
      kept.host[i] = layout.logit_rows[i].row;
    }
    arrays.kept_rows = kept.device;
  }
  const auto upload_adapted = [this](const LoraGroups& groups) {
    return UploadLoraRows(groups, static_cast<int64_t>(groups.tiles.size()),
                          static_cast<int64_t>(groups.list.size()));
  };
  arrays.adapted = upload_adapted(layout.adapted);
  arrays.adapted_last = arrays.kept_rows != nullptr
                            ? upload_adapted(layout.adapted_last)
                            : arrays.adapted;
  if (draws.any_targets) {
    const auto targets = upload_.Reserve<TokenId>(logit_rows);
    std::copy(draws.targets.begin(), draws.targets.end(), targets.host.begin());
    arrays.targets = targets.device;
  }
  UploadSamples(layout, draws, logit_rows, &arrays);
  upload_.Copy(stream_);

  MeetOthers();
  RunLayers(arrays, /*events=*/hook != nullptr);
  if (hook != nullptr) StageLayers();
  // The first logits are on their way while the hooks wait for their layers.
  for (int32_t first = 0; first < logit_rows || first == 0;
       first += sizes_.logit_rows) {
    const int32_t count = std::min(sizes_.logit_rows, logit_rows - first);
    if (count > 0) RunLogits(arrays, first, count);
    const int slot = FetchOutcomes(count, draws.any_top);
    UseTime();
    if (first == 0 && hook != nullptr) CallHook(*hook);
    stream_.Wait();
    if (first == 0) NoteExperts(rows, logit_rows, slot, result_);
    if (count > 0) TakeOutcomes(plan, layout, draws, first, count, slot);
  }
}

int ForwardPass::FetchOutcomes(int32_t count, bool with_top) {
  slot_ = 1 - slot_;
  stream_.CopyToHost(host_outcomes_[slot_].data(), outcomes_.data(),
                     (1 + count) * int64_t{sizeof(SampleOutcome)});
  if (with_top && takes_outcomes()) {
    stream_.CopyToHost(host_tops_[slot_].data(), tops_.data(),
                       count * kTopBytes);
  }
  stream_.Record(*outcomes_there_[slot_]);
  return slot_;
}

const SampleOutcome* ForwardPass::HostOutcomes(int slot) const {
  return reinterpret_cast<const SampleOutcome*>(host_outcomes_[slot].data()) +
         1;
}

const TopLogit* ForwardPass::HostTops(int slot, int32_t row) const {
  return reinterpret_cast<const TopLogit*>(host_tops_[slot].data()) +
         row * kTopPlaces;
}

absl::Span<float> ForwardPass::FetchLogits(int32_t row) {
  stream_.CopyToHost(host_logits_.data(),
                     logits_.as<float>() + row * sizes_.logit_stride,
                     int64_t{config_.vocab_size} * int64_t{sizeof(float)});
  stream_.Wait();
  return absl::MakeSpan(reinterpret_cast<float*>(host_logits_.data()),
                        config_.vocab_size);
}

void ForwardPass::TakeTarget(const scheduling::PlannedSequence& s,
                             const LogitRow& row, int32_t place,
                             const SampleOutcome& outcome, int slot) {
  const int32_t index = target_index_[row.sequence];
  result_.target_logprobs[index][row.token] = LogprobOf(
      reinterpret_cast<const float*>(host_picked_.data())[place], outcome);
  if (s.target_top_logprobs == 0 || outcome.finite == 0) return;
  std::vector<scheduling::TokenLogprob>& top =
      result_.target_top[index][row.token];
  if (outcome.top > 0) {
    top = TopOf(outcome, HostTops(slot, place), s.target_top_logprobs);
  } else {  // too many are alike
    LogProbability(FetchLogits(place), s.targets[row.token],
                   s.target_top_logprobs, &top);
  }
}

void ForwardPass::NoteDrawn(const SampleOutcome* outcomes, int32_t count) {
  for (int32_t i = 0; i < count; ++i) drawn_.push_back(outcomes[i].token);
}

void ForwardPass::TakeOutcomes(const scheduling::StepPlan& plan,
                               const StepLayout& layout, const Draws& draws,
                               int32_t first, int32_t count, int slot) {
  const SampleOutcome* const outcomes = HostOutcomes(slot);
  NoteDrawn(outcomes, count);
  if (!takes_outcomes()) return;
  for (int32_t i = 0; i < count; ++i) {
    const LogitRow& row = layout.logit_rows[first + i];
    const scheduling::PlannedSequence& s = plan.sequences[row.sequence];
    if (IsTarget(s, row)) TakeTarget(s, row, i, outcomes[i], slot);
    const int32_t index = s.SampleAfter(row.token);
    if (index < 0) continue;
    scheduling::SampledToken& token =
        result_.sampled[sampled_index_[row.sequence] + index];
    if (!HostDraws(draws.how[first + i], outcomes[i])) {
      token =
          TokenOf(s.sequence, outcomes[i], HostTops(slot, i), s.top_logprobs);
      continue;
    }
    if (ahead_) {
      token.sequence = s.sequence;
      token.again = true;
      continue;
    }
    token = DrawOnHost(s, index, FetchLogits(i));
  }
}

}  // namespace baton::engine::cuda
