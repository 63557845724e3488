#include "router/http/http_metrics.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/metrics/metrics.h"

namespace baton::router::http {

HttpMetrics::HttpMetrics(metrics::Metrics* metrics) : metrics_(metrics) {
  if (metrics_ == nullptr) return;
  connections_ = metrics_->Gauge("baton_http_connections",
                                 "HTTP connections that are open");
}

void HttpMetrics::ConnectionOpened() {
  if (connections_ != nullptr) connections_->Increment();
}

void HttpMetrics::ConnectionClosed() {
  if (connections_ != nullptr) connections_->Decrement();
}

void HttpMetrics::Dropped(absl::string_view reason) {
  if (metrics_ == nullptr) return;
  metrics_
      ->Counter("baton_http_connections_dropped_total",
                "HTTP connections that the server refused or ended",
                {{"reason", std::string(reason)}})
      ->Increment();
}

void HttpMetrics::Answered(int status) {
  if (metrics_ == nullptr || status < 0 || status >= kStatuses) return;
  prometheus::Counter* counter =
      answered_[status].load(std::memory_order_acquire);
  if (counter == nullptr) {
    counter = metrics_->Counter("baton_http_responses_total",
                                "HTTP answers that began, by status",
                                {{"code", absl::StrCat(status)}});
    answered_[status].store(counter, std::memory_order_release);
  }
  counter->Increment();
}

}  // namespace baton::router::http
