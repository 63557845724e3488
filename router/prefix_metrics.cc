#include "router/prefix_metrics.h"

#include <algorithm>

namespace baton::router {
namespace {

using scheduling::CachedPrompt;
using scheduling::PlacementRequest;
using scheduling::PlacementVerdict;
using scheduling::WorkerId;

prometheus::Counter* News(metrics::Metrics* metrics, const char* kind) {
  return metrics->Counter("baton_router_prefix_news_total",
                          "Messages of workers on their prefix caches.",
                          {{"kind", kind}});
}

prometheus::Counter* Names(metrics::Metrics* metrics, const char* change) {
  return metrics->Counter("baton_router_prefix_names_total",
                          "Blocks that workers said came or went.",
                          {{"change", change}});
}

prometheus::Counter* Matched(metrics::Metrics* metrics, const char* at) {
  return metrics->Counter(
      "baton_router_prefix_matched_tokens_total",
      "Tokens of placed prompts that a prefix cache was said to have: of the "
      "worker that was chosen to compute them, and of the one with most.",
      {{"at", at}});
}

}  // namespace

int32_t CachedTokens(const PlacementRequest& request, WorkerId worker) {
  for (const CachedPrompt& cached : request.cached) {
    if (cached.worker == worker) return cached.tokens;
  }
  return 0;
}

WorkerId PrefilledBy(const PlacementVerdict& verdict) {
  return verdict.prefill != scheduling::kNoWorker ? verdict.prefill
                                                  : verdict.decode;
}

PrefixMetrics::PrefixMetrics(metrics::Metrics* metrics)
    : blocks_(metrics->Gauge("baton_router_prefix_blocks",
                             "KV blocks in the prefix index.")),
      bytes_(metrics->Gauge("baton_router_prefix_bytes",
                            "Memory of the prefix index.")),
      dropped_(metrics->Counter(
          "baton_router_prefix_dropped_total",
          "Blocks of workers that the prefix index had no room for.")),
      changes_(News(metrics, "changes")),
      resets_(News(metrics, "reset")),
      invalid_(News(metrics, "invalid")),
      removed_(Names(metrics, "removed")),
      stored_(Names(metrics, "stored")),
      prompt_tokens_(
          metrics->Counter("baton_router_prefix_prompt_tokens_total",
                           "Tokens of placed prompts, each attempt anew.")),
      matched_chosen_(Matched(metrics, "chosen")),
      matched_best_(Matched(metrics, "best")) {}

void PrefixMetrics::CountNews(bool reset, size_t removed, size_t stored) {
  (reset ? resets_ : changes_)->Increment();
  removed_->Increment(static_cast<double>(removed));
  stored_->Increment(static_cast<double>(stored));
}

void PrefixMetrics::Observe(const scheduling::PrefixIndex& index) {
  blocks_->Set(static_cast<double>(index.num_blocks()));
  bytes_->Set(static_cast<double>(index.bytes()));
  const double dropped =
      static_cast<double>(index.num_dropped()) - dropped_->Value();
  if (dropped > 0) dropped_->Increment(dropped);
}

void PrefixMetrics::Placed(const PlacementRequest& request,
                           const PlacementVerdict& verdict) {
  prompt_tokens_->Increment(request.prefill_tokens);
  matched_chosen_->Increment(CachedTokens(request, PrefilledBy(verdict)));
  int32_t best = 0;
  for (const CachedPrompt& cached : request.cached) {
    best = std::max(best, cached.tokens);
  }
  matched_best_->Increment(best);
}

}  // namespace baton::router
