#include "router/tracing/span_exporter.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "router/tracing/otlp_json.h"

namespace baton::router::tracing {
namespace {

absl::Time Now() { return Clock::Monotonic()->Now(); }

HttpPost::Options PostOptions(const OtlpSettings& otlp) {
  HttpPost::Options options{
      .url = otlp.url, .headers = otlp.headers, .ca_file = otlp.ca_file};
  options.headers.emplace_back("Content-Type", "application/json");
  return options;
}

}  // namespace

SpanExporter::SpanExporter(const Options& options, metrics::Metrics* metrics)
    : options_(options),
      metrics_(metrics),
      exported_(metrics->Counter("baton_trace_spans_exported_total",
                                 "Spans that the collector took.")),
      queue_full_(Dropped("queue_full")),
      refused_(Dropped("refused")),
      gave_up_(Dropped("gave_up")),
      post_failures_(metrics->Counter(
          "baton_trace_post_failures_total",
          "Posts of spans that the collector did not answer, or refused.")),
      queued_(metrics->Gauge("baton_trace_spans_queued",
                             "Spans that wait for the collector.")),
      post_(PostOptions(options.otlp)) {
  CHECK(!options_.otlp.url.empty());
  thread_ = std::thread([this] { Run(); });
}

SpanExporter::~SpanExporter() { Stop(); }

prometheus::Counter* SpanExporter::Dropped(const char* reason) {
  return metrics_->Counter("baton_trace_spans_dropped_total",
                           "Spans that no collector got, by reason.",
                           {{"reason", reason}});
}

void SpanExporter::Add(std::vector<Span> spans) {
  {
    absl::MutexLock lock(&mu_);
    if (!stopping_ &&
        queue_.size() + spans.size() <= options_.max_queued_spans) {
      queue_.insert(queue_.end(), std::make_move_iterator(spans.begin()),
                    std::make_move_iterator(spans.end()));
      queued_->Set(static_cast<double>(queue_.size()));
      return;
    }
  }
  queue_full_->Increment(static_cast<double>(spans.size()));
}

void SpanExporter::Stop() {
  if (!thread_.joinable()) return;
  const absl::Time end = Now() + options_.flush;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    stop_at_ = end;
  }
  post_.Cancel(end);
  thread_.join();
}

void SpanExporter::Run() {
  while (true) {
    const std::vector<Span> batch = TakeBatch();
    if (batch.empty()) return;
    Export(batch);
  }
}

std::vector<Span> SpanExporter::TakeBatch() {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(this, &SpanExporter::HasWork));
  mu_.AwaitWithTimeout(absl::Condition(this, &SpanExporter::BatchIsFull),
                       options_.batch_delay);
  const auto count = static_cast<std::ptrdiff_t>(
      std::min(queue_.size(), options_.max_batch_spans));
  std::vector<Span> batch(std::make_move_iterator(queue_.begin()),
                          std::make_move_iterator(queue_.begin() + count));
  queue_.erase(queue_.begin(), queue_.begin() + count);
  queued_->Set(static_cast<double>(queue_.size()));
  return batch;
}

void SpanExporter::Export(const std::vector<Span>& batch) {
  const std::string body = OtlpTraceRequest(options_.otlp.resource, batch);
  const absl::Time give_up = Now() + options_.give_up_after;
  absl::Duration pause = options_.first_pause;
  while (true) {
    const HttpPost::Result result = post_.Post(body, options_.post_timeout);
    if (Judge(result, batch.size()) != Verdict::kLater) return;
    const absl::Time again =
        Now() + std::max(pause, result.retry_after.value_or(pause));
    pause = std::min(2 * pause, options_.longest_pause);
    if (again >= give_up || StopComesBefore(again)) break;
  }
  gave_up_->Increment(static_cast<double>(batch.size()));
}

bool SpanExporter::StopComesBefore(absl::Time until) {
  absl::MutexLock lock(&mu_);
  // A router that ends tries once more at once, and waits no longer than it
  // may.
  if (!stopping_) {
    mu_.AwaitWithTimeout(absl::Condition(&stopping_), until - Now());
    return false;
  }
  if (until >= stop_at_) return true;
  const auto never = [] { return false; };
  mu_.AwaitWithTimeout(absl::Condition(&never), until - Now());
  return false;
}

SpanExporter::Verdict SpanExporter::Judge(const HttpPost::Result& result,
                                          size_t spans) {
  if (result.status >= 200 && result.status < 300) {
    const PartialSuccess partial = ParseTraceResponse(result.body);
    const double lost = std::min(static_cast<double>(partial.rejected_spans),
                                 static_cast<double>(spans));
    exported_->Increment(static_cast<double>(spans) - lost);
    refused_->Increment(lost);
    if (failing_) LOG(INFO) << "tracing: the collector takes spans again";
    failing_ = false;
    LOG_IF_EVERY_N(WARNING, lost > 0, 100)
        << "tracing: the collector threw away " << lost
        << " spans: " << partial.message;
    return Verdict::kTaken;
  }
  post_failures_->Increment();
  if (result.status == 0) {
    NoteFailure(result.error);
    return Verdict::kLater;
  }
  NoteFailure(absl::StrCat("HTTP status ", result.status));
  if (result.status == 429 || result.status == 502 || result.status == 503 ||
      result.status == 504) {
    return Verdict::kLater;
  }
  refused_->Increment(static_cast<double>(spans));
  return Verdict::kRefused;
}

void SpanExporter::NoteFailure(const std::string& what) {
  if (failing_) return;
  failing_ = true;
  LOG(WARNING) << "tracing: " << options_.otlp.url
               << " does not take spans: " << what;
}

}  // namespace baton::router::tracing
