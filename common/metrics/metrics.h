// The metrics of one process: a prometheus-cpp registry, the buckets that all
// of Baton uses, and the HTTP server of GET /metrics and of what else is to be
// seen at that port.
//
// Families are made once at start and their handles kept: an update of a handle
// is a few tens of nanoseconds and may come from any thread.
#pragma once

#include <map>
#include <memory>
#include <string>

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "absl/status/statusor.h"
#include "common/metrics/page_server.h"

namespace baton::metrics {

using Labels = prometheus::Labels;
using Buckets = prometheus::Histogram::BucketBoundaries;

// Seconds. vLLM's edges for TTFT and whole requests; SGLang's 2 ms steps and
// vLLM's tail for inter-token latency; logarithmic for transfers; steps.
Buckets TtftBuckets();
Buckets InterTokenBuckets();
Buckets RequestBuckets();
Buckets TransferBuckets();
Buckets StepBuckets();
// Bytes, 4 KiB to 64 GiB in steps of 4; tokens, 1 to 16384 in steps of 2;
// extents, 1 to 262144 in steps of 4.
Buckets ByteBuckets();
Buckets TokenBuckets();
Buckets ExtentBuckets();
// Shares of a whole, 0 to 1: finer near 1.
Buckets ShareBuckets();

// Under which names metrics are there besides their own: none, or those of vLLM
// (common/metrics/vllm_names.h).
enum class Compat { kNone, kVllm };

class Metrics final {
 public:
  // `labels` are on every metric of the process (model_name, role, worker).
  explicit Metrics(Labels labels);
  // The same metrics, for a part of the process: what is made here has these
  // labels, too, and shows with `whole`, which needs no server or page of its
  // own here. No label is in both.
  Metrics(const Metrics& whole, Labels part);
  // Ends the HTTP server; blocks for a few milliseconds.
  ~Metrics() = default;
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // One metric with its family's help text. `extra` distinguishes members of a
  // family, such as {{"stage", "prefill"}}; the same name and labels give the
  // same metric.
  prometheus::Counter* Counter(const std::string& name, const std::string& help,
                               const Labels& extra = {});
  prometheus::Gauge* Gauge(const std::string& name, const std::string& help,
                           const Labels& extra = {});
  prometheus::Histogram* Histogram(const std::string& name,
                                   const std::string& help,
                                   const Buckets& buckets,
                                   const Labels& extra = {});

  // The metric is not there any more: what it measured has gone. Its handles
  // are of no more use. Of one that there is not: nothing happens.
  void RemoveGauge(const std::string& name, const std::string& help,
                   const Labels& extra);

  // The body of GET /metrics, for another server: Prometheus text, format
  // 0.0.4. Any thread.
  std::string Text() const;

  // Has Text give the metrics under these names, too. Before anybody calls it.
  void AddNames(Compat compat) { compat_ = compat; }

  // Another page of the server, such as "/healthz". Before Serve.
  void AddPage(const std::string& path, MakePage page);

  // Serves GET /metrics on "host:port" (port 0 takes a free one) until the
  // object dies; returns the port. Unavailable when the address cannot be
  // bound, naming it.
  absl::StatusOr<int> Serve(const std::string& address);

 private:
  const Labels labels_;
  const Labels part_;
  const std::shared_ptr<prometheus::Registry> registry_;
  Compat compat_ = Compat::kNone;
  std::map<std::string, MakePage> pages_;
  std::unique_ptr<PageServer> server_;
};

}  // namespace baton::metrics
