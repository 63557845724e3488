#include "router/http/http_metrics.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/metrics/metrics.h"

namespace baton::router::http {
namespace {

constexpr const char* kDropReasons[] = {
    "max_connections",    "no_resources",    "tls",
    "handshake_deadline", "header_deadline", "body_deadline",
    "write_deadline",     "slow_reader"};

prometheus::Counter* DroppedCounter(metrics::Metrics* metrics,
                                    const std::string& reason) {
  return metrics->Counter("baton_http_connections_dropped_total",
                          "HTTP connections that the server refused or ended",
                          {{"reason", reason}});
}

}  // namespace

HttpMetrics::HttpMetrics(metrics::Metrics* metrics) : metrics_(metrics) {
  if (metrics_ == nullptr) return;
  connections_ = metrics_->Gauge("baton_http_connections",
                                 "HTTP connections that are open");
  for (const char* reason : kDropReasons) DroppedCounter(metrics_, reason);
}

void HttpMetrics::ConnectionOpened() {
  if (connections_ != nullptr) connections_->Increment();
}

void HttpMetrics::ConnectionClosed() {
  if (connections_ != nullptr) connections_->Decrement();
}

void HttpMetrics::Dropped(absl::string_view reason) {
  if (metrics_ == nullptr) return;
  DroppedCounter(metrics_, std::string(reason))->Increment();
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
