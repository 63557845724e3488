// What the HTTP server reports on /metrics (docs/metrics.md). Any thread.
#pragma once

#include <array>
#include <atomic>

#include "absl/strings/string_view.h"

namespace prometheus {
class Counter;
class Gauge;
}  // namespace prometheus

namespace baton::metrics {
class Metrics;
}  // namespace baton::metrics

namespace baton::router::http {

class HttpMetrics final {
 public:
  // `metrics` outlives this object; without it nothing is counted.
  explicit HttpMetrics(metrics::Metrics* metrics);

  void ConnectionOpened();
  void ConnectionClosed();
  // The server refused or ended a connection. `reason` is one of a few words.
  void Dropped(absl::string_view reason);
  // An answer began.
  void Answered(int status);

 private:
  static constexpr int kStatuses = 600;

  metrics::Metrics* const metrics_;
  prometheus::Gauge* connections_ = nullptr;
  // Of each status, once it was answered.
  std::array<std::atomic<prometheus::Counter*>, kStatuses> answered_ = {};
};

}  // namespace baton::router::http
