// What the router reports of its prefix index (docs/metrics.md). Updates may
// come from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/metrics/metrics.h"
#include "scheduling/placement.h"
#include "scheduling/prefix_index.h"

namespace baton::router {

class PrefixMetrics final {
 public:
  // `metrics` outlives this object.
  explicit PrefixMetrics(metrics::Metrics* metrics);

  // News were applied.
  void CountNews(bool reset, size_t removed, size_t stored);
  // News were ignored.
  void CountInvalid() { invalid_->Increment(); }
  void Observe(const scheduling::PrefixIndex& index);

  // An attempt goes where `verdict` says.
  void Placed(const scheduling::PlacementRequest& request,
              const scheduling::PlacementVerdict& verdict);

 private:
  prometheus::Gauge* const blocks_;
  prometheus::Gauge* const bytes_;
  prometheus::Counter* const dropped_;
  prometheus::Counter* const changes_;
  prometheus::Counter* const resets_;
  prometheus::Counter* const invalid_;
  prometheus::Counter* const removed_;
  prometheus::Counter* const stored_;
  prometheus::Counter* const prompt_tokens_;
  prometheus::Counter* const matched_chosen_;
  prometheus::Counter* const matched_best_;
};

// What `worker` is said to have of the prompt.
int32_t CachedTokens(const scheduling::PlacementRequest& request,
                     scheduling::WorkerId worker);
// Where the prompt of a placed request is computed.
scheduling::WorkerId PrefilledBy(const scheduling::PlacementVerdict& verdict);

}  // namespace baton::router
