// Passes of one new token per sequence, or one and guesses at the next: as
// graphs; and without guesses one behind another.
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/log.h"
#include "engine/cuda/forward_pass.h"
#include "engine/cuda/sample_plan.h"

namespace baton::engine::cuda {
namespace {

// Of the device's memory, left to what else may take some while it serves.
constexpr int64_t kLeastBesideGraphs = int64_t{64} << 20;

// Without memory for one, before it is tried again: others may have had it, who
// share the device.
constexpr int64_t kStepsWithoutGraphs = 100'000;

// Rows up to which attention makes its heads itself, each block its own: with
// more of them a kernel for that takes less time (3 us for 64 rows on an H200,
// which attention had 5 to 16 us longer for).
constexpr int32_t kMostHeadsInAttention = 8;

}  // namespace

std::optional<GraphBucket> ForwardPass::BucketOf(
    const scheduling::StepPlan& plan, const Pass& pass,
    const StepLayout& layout) const {
  if (!options_.use_graphs || !IsDecodePass(plan, pass) ||
      !layout.full.whole.empty() || !layout.sliding.whole.empty()) {
    return std::nullopt;
  }
  std::optional<GraphBucket> bucket = BucketFor(
      static_cast<int32_t>(layout.tokens.size()), layout.full.max_spans,
      layout.sliding.max_spans, std::min(options_.max_rows, sizes_.logit_rows),
      sizes_.span_pieces);
  if (bucket) {
    bucket->adapted = !layout.adapted.list.empty();
    bucket->several_rows = HasSeveralRows(pass) && KnowsSeveral(bucket->rows);
  }
  return bucket;
}

ForwardPass::PassArrays ForwardPass::PutDecode(const StepLayout& layout,
                                               const Draws& draws,
                                               const GraphBucket& bucket) {
  const int64_t rows = bucket.rows;
  PassArrays arrays;
  UploadRows(layout, rows, &arrays);
  const auto tiles = [&](const std::vector<QueryTile>& some, int32_t spans) {
    DeviceTiles result;
    result.single = UploadTiles(some, rows);
    result.num_single = bucket.rows;
    result.max_spans = spans;
    if (bucket.several_rows) result.span_rows = SpanRows();
    return result;
  };
  arrays.full = tiles(layout.full.single, bucket.full_spans);
  if (bucket.sliding_spans > 0) {
    arrays.sliding = tiles(layout.sliding.single, bucket.sliding_spans);
  }
  // All rows have logits.
  arrays.last = config_.LayerSlides(config_.num_layers - 1) ? arrays.sliding
                                                            : arrays.full;
  arrays.num_logit_rows = bucket.rows;
  // Others would read a row's keys before its block has written them.
  arrays.heads_in_attention =
      !latent_ && !bucket.several_rows && bucket.rows <= kMostHeadsInAttention;
  if (bucket.adapted) {
    arrays.adapted = UploadLoraRows(layout.adapted, rows, rows);
    arrays.adapted_last = arrays.adapted;
  }
  UploadSamples(layout, draws, rows, &arrays);
  return arrays;
}

void ForwardPass::RunBucket(const PassArrays& arrays,
                            const GraphBucket& bucket) {
  RunLayers(arrays, /*events=*/false);
  RunLogits(arrays, 0, bucket.rows);
}

int32_t ForwardPass::SpanRows() const {
  return latent_ ? 1 : MaxSpanRows(LayoutOf().group);
}

bool ForwardPass::KnowsSeveral(int32_t rows) const {
  return !latent_ && (SpanRows() > 1 || rows <= kMostHeadsInAttention);
}

std::vector<GraphBucket> ForwardPass::DecodeBuckets(int32_t sequences,
                                                    int32_t drafts) const {
  if (!options_.use_graphs) return {};
  const int64_t context = std::min<int64_t>(
      rope_positions_, int64_t{layout_.num_blocks} * layout_.block_size);
  const auto rows = static_cast<int32_t>(
      std::min<int64_t>(int64_t{sequences} * (1 + drafts), kMaxGraphRows));
  const auto up_to = [&](int32_t window) {
    return BucketsUpTo(rows, static_cast<int32_t>(context), window,
                       std::min(options_.max_rows, sizes_.logit_rows),
                       sizes_.span_pieces);
  };
  std::vector<GraphBucket> buckets = up_to(LayoutOf().window);
  if (drafts == 0) return buckets;
  const auto append_several = [&](const std::vector<GraphBucket>& of_one) {
    for (GraphBucket bucket : of_one) {
      bucket.several_rows = bucket.rows > 1 && KnowsSeveral(bucket.rows);
      if (absl::c_linear_search(buckets, bucket)) continue;
      buckets.push_back(bucket);
    }
  };
  append_several(std::vector<GraphBucket>(buckets));
  // Tokens that share a block see what the first of them sees, too.
  if (const int32_t window = LayoutOf().window; window > 0) {
    append_several(up_to(window + SpanRows() - 1));
  }
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const GraphBucket& a, const GraphBucket& b) {
                     return a.rows < b.rows;
                   });
  return buckets;
}

Graph ForwardPass::RecordBucket(const PassArrays& arrays,
                                const GraphBucket& bucket) {
  if (graphs_wait_ > 0) {
    --graphs_wait_;
    return Graph();
  }
  // NCCL wants to be recorded on all ranks or on none.
  bool has_room = FreeDeviceBytes() >= kLeastBesideGraphs;
  if (MeetOthers(has_room)) {
    stream_.BeginGraph();
    RunBucket(arrays, bucket);
    Graph graph = stream_.EndGraph();
    has_room = !graph.empty();
    if (MeetOthers(has_room)) return graph;
    // Others may wait for this device by now: it gives no memory back. Nor is
    // it tried again, on any of them.
    if (has_room) unused_graph_ = std::move(graph);
    graphs_wait_ = std::numeric_limits<int64_t>::max();
  } else {
    graphs_wait_ = kStepsWithoutGraphs;
  }
  LOG_IF(WARNING, !has_room)
      << "no memory of the device is left for graphs of decode steps: those "
         "that have none run kernel by kernel";
  return Graph();
}

void ForwardPass::ForgetGraphs() {
  graphs_.clear();
  unused_graph_ = Graph();
  graphs_wait_ = 0;
}

bool ForwardPass::RecordGraph(const GraphBucket& bucket, bool run) {
  upload_.Clear();
  EnsureUpload(UploadBytes(StepLayout(), bucket.rows, DrawLists()));
  // Without a token: no row is there, and nothing is written to KV.
  const PassArrays arrays = PutDecode(StepLayout(), Draws(), bucket);
  if (run) {
    upload_.Copy(stream_);
    MeetOthers();
    RunBucket(arrays, bucket);
    stream_.Wait();
  }
  Graph& graph = graphs_[bucket];
  graph = RecordBucket(arrays, bucket);
  return !graph.empty();
}

void ForwardPass::RunDecode(const scheduling::StepPlan& plan,
                            const StepLayout& layout, const Draws& draws,
                            const GraphBucket& bucket) {
  upload_.Clear();
  EnsureUpload(UploadBytes(layout, bucket.rows, draws.lists));
  const PassArrays arrays = PutDecode(layout, draws, bucket);
  upload_.Copy(stream_);

  const auto [place, is_new] = graphs_.try_emplace(bucket);
  Graph& graph = place->second;
  if (!is_new && graph.empty()) graph = RecordBucket(arrays, bucket);
  MeetOthers();
  if (graph.empty()) {
    RunBucket(arrays, bucket);
  } else {
    stream_.Launch(graph);
  }
  const auto count = static_cast<int32_t>(layout.logit_rows.size());
  const int slot = FetchOutcomes(count, draws.any_top);
  // Nothing comes between a step's own passes, nor behind guesses: which of
  // them come true is for the host to find out.
  if (count == static_cast<int32_t>(plan.sequences.size()) &&
      count == plan.NumTokens()) {
    running_ = GivenOf(plan, layout, draws, slot);
  }
  UseTime();
  running_.reset();
  outcomes_there_[slot]->Wait();
  NoteExperts(count, count, slot, result_);
  TakeOutcomes(plan, layout, draws, 0, count, slot);
}

ForwardPass::Given ForwardPass::GivenOf(const scheduling::StepPlan& plan,
                                        const StepLayout& layout,
                                        const Draws& draws, int slot) {
  Given given;
  for (const LogitRow& row : layout.logit_rows) {
    given.sequences.push_back(plan.sequences[row.sequence].sequence);
  }
  given.how = draws.how;
  given.slot = slot;
  return given;
}

bool ForwardPass::RunAhead(const scheduling::StepPlan& plan) {
  CHECK(!ahead_) << "there is a step ahead";
  const auto host_draws = [](const SampleRow& row) {
    return row.statistics_only != 0;
  };
  if (!running_ || plan.sequences.empty() ||
      (stage_ != nullptr && stage_->copies_step()) ||
      std::any_of(running_->how.begin(), running_->how.end(), host_draws)) {
    return false;
  }
  const std::vector<Pass> passes = CutIntoPasses(plan, options_.max_rows);
  if (passes.size() > 1) return false;
  const StepLayout layout = LayOut(plan, passes[0], LayoutOf());
  const std::optional<GraphBucket> bucket = BucketOf(plan, passes[0], layout);
  if (!bucket || layout.end_position > rope_positions_) return false;
  const auto graph = graphs_.find(*bucket);
  if (graph == graphs_.end() || graph->second.empty()) return false;
  const Draws draws = PlanDraws(plan, layout);
  if (std::any_of(draws.how.begin(), draws.how.end(), host_draws)) {
    return false;
  }
  const auto count = static_cast<int32_t>(layout.logit_rows.size());
  if (UploadBytes(layout, bucket->rows, draws.lists) +
          StepUpload::Padded(count * int64_t{sizeof(int32_t)}) >
      upload_.capacity()) {
    return false;
  }
  upload_.Clear();
  const PassArrays arrays = PutDecode(layout, draws, *bucket);
  const auto from = upload_.Reserve<int32_t>(count);
  auto at = running_->sequences.begin();
  for (int32_t i = 0; i < count; ++i) {
    const SequenceId sequence = plan.sequences[i].sequence;
    // In the same order, mostly.
    at = std::find(at, running_->sequences.end(), sequence);
    if (at == running_->sequences.end()) {
      at = std::find(running_->sequences.begin(), at, sequence);
    }
    CHECK(at != running_->sequences.end()) << "follows no sequence of the step";
    from.host[i] = static_cast<int32_t>(at - running_->sequences.begin());
  }
  upload_.Copy(stream_);
  FollowArgs follow;
  follow.outcomes = outcomes();
  follow.from = from.device;
  follow.count = count;
  follow.tokens = arrays.tokens;
  RunFollow(follow, stream_.handle());
  stream_.Launch(graph->second);
  ahead_ = GivenOf(plan, layout, draws, FetchOutcomes(count, draws.any_top));
  return true;
}

scheduling::StepResult ForwardPass::Await(absl::FunctionRef<void()> meanwhile) {
  CHECK(ahead_) << "no step was given";
  const Given given = *(running_ = std::exchange(ahead_, std::nullopt));
  meanwhile();
  running_.reset();
  outcomes_there_[given.slot]->Wait();
  const SampleOutcome* const outcomes = HostOutcomes(given.slot);
  drawn_.clear();
  NoteDrawn(outcomes, static_cast<int32_t>(given.sequences.size()));
  if (!takes_outcomes()) return {};
  scheduling::StepResult result;
  const auto rows = static_cast<int64_t>(given.sequences.size());
  NoteExperts(rows, rows, given.slot, result);
  for (size_t i = 0; i < given.sequences.size(); ++i) {
    scheduling::SampledToken token;
    token.sequence = given.sequences[i];
    token.again = HostDraws(given.how[i], outcomes[i]);
    if (!token.again) {
      token = TokenOf(token.sequence, outcomes[i],
                      HostTops(given.slot, static_cast<int32_t>(i)),
                      given.how[i].top);
    }
    result.sampled.push_back(std::move(token));
  }
  return result;
}

}  // namespace baton::engine::cuda
