// Takes spans from the router's loop and posts them to a collector, in batches
// and on a thread of its own: a collector that is slow or gone costs spans, and
// never a request. docs/tracing.md says what is lost when.
//
// What the collector did not take, and may take later (no answer, 429, 502,
// 503, 504), is posted again, with growing pauses; anything else that it
// refuses is dropped. While a batch is tried again, others wait in the queue,
// which is bounded.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "router/tracing/http_post.h"
#include "router/tracing/otlp_settings.h"
#include "router/tracing/span.h"

namespace baton::router::tracing {

class SpanExporter final : public SpanSink {
 public:
  struct Options {
    OtlpSettings otlp;
    // Spans that wait; more are dropped.
    size_t max_queued_spans = 16384;
    // A post has so many, or those of so long.
    size_t max_batch_spans = 512;
    absl::Duration batch_delay = absl::Seconds(1);
    // Of one post.
    absl::Duration post_timeout = absl::Seconds(10);
    // Between two posts of a batch: the first pause, and the longest one.
    absl::Duration first_pause = absl::Milliseconds(500);
    absl::Duration longest_pause = absl::Seconds(15);
    // How long a batch is tried.
    absl::Duration give_up_after = absl::Minutes(5);
    // How long the end may take.
    absl::Duration flush = absl::Seconds(3);
  };

  // `metrics` outlives the exporter. REQUIRES: a url.
  SpanExporter(const Options& options, metrics::Metrics* metrics);
  // Stop.
  ~SpanExporter() override;

  void Add(std::vector<Span> spans) override ABSL_LOCKS_EXCLUDED(mu_);

  // Posts what waits, within `flush`, and ends. What comes later is dropped.
  // One thread, once or more.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class Verdict { kTaken, kRefused, kLater };

  void Run();
  // Waits for a batch; empty: stopped, and nothing is left.
  std::vector<Span> TakeBatch() ABSL_LOCKS_EXCLUDED(mu_);
  // Posts until it is taken, refused or given up.
  void Export(const std::vector<Span>& batch) ABSL_LOCKS_EXCLUDED(mu_);
  Verdict Judge(const HttpPost::Result& result, size_t spans);
  // True when it is to end before `until`; waits until then otherwise.
  bool StopComesBefore(absl::Time until) ABSL_LOCKS_EXCLUDED(mu_);
  void NoteFailure(const std::string& what);
  prometheus::Counter* Dropped(const char* reason);

  bool BatchIsFull() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopping_ || queue_.size() >= options_.max_batch_spans;
  }
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopping_ || !queue_.empty();
  }

  const Options options_;
  metrics::Metrics* const metrics_;
  prometheus::Counter* const exported_;
  prometheus::Counter* const queue_full_;
  prometheus::Counter* const refused_;
  prometheus::Counter* const gave_up_;
  prometheus::Counter* const post_failures_;
  prometheus::Gauge* const queued_;
  HttpPost post_;
  // The thread's own: the last post failed.
  bool failing_ = false;

  absl::Mutex mu_;
  std::deque<Span> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time stop_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  std::thread thread_;
};

}  // namespace baton::router::tracing
