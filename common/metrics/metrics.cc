#include "common/metrics/metrics.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include <prometheus/text_serializer.h>

#include "common/log.h"
#include "common/metrics/vllm_names.h"
#include "common/status_macros.h"

namespace baton::metrics {
namespace {

// Most members of a family. What comes beyond them (workers that came and went
// under new names for weeks, say) is counted together, with "other" for the
// values of its labels: what a scraper has to hold stays bounded.
constexpr size_t kMaxMembers = 1000;

Labels Joined(Labels labels, const Labels& more) {
  labels.insert(more.begin(), more.end());
  return labels;
}

// The labels of a member of `family` that may be added: `part` and `extra`.
template <typename T>
Labels Bounded(const prometheus::Family<T>& family, const Labels& part,
               const Labels& extra) {
  Labels all = Joined(extra, part);
  if (extra.empty() || family.Has(all)) return all;
  Labels other = extra;
  for (auto& [name, value] : other) value = "other";
  other = Joined(std::move(other), part);
  // Counting takes a while with many members; it is over when one is "other".
  if (family.Has(other)) return other;
  const std::vector<prometheus::MetricFamily> members = family.Collect();
  if (members.empty() || members.front().metric.size() < kMaxMembers) {
    return all;
  }
  LOG_EVERY_N(WARNING, 1000) << "metric " << family.GetName() << " has "
                             << kMaxMembers << " members; more are counted as "
                             << "\"other\"";
  return other;
}

Buckets Geometric(double first, double factor, int count) {
  Buckets edges;
  for (int i = 0; i < count; ++i, first *= factor) edges.push_back(first);
  return edges;
}

}  // namespace

Buckets TtftBuckets() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
          1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
}

Buckets InterTokenBuckets() {
  return {.002, .004, .006, .008, .01, .015, .02, .025, .03, .035, .04, .05,
          .06,  .075, .08,  .1,   .15, .2,   .3,  .4,   .5,  .6,   .75, .8,
          1,    2,    2.5,  4,    5,   6,    7.5, 8,    10,  20,   40,  80};
}

Buckets RequestBuckets() {
  return {.01, .03, .1, .3, .5, .8, 1,   1.5, 2,   2.5, 5,    10,
          15,  20,  30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
}

Buckets TransferBuckets() {
  return {50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3,
          50e-3, .1,     .2,     .5,     1,    2,    5,    10};
}

Buckets StepBuckets() {
  return {.0002, .0005, .001, .002, .004, .006, .008, .01, .015, .02, .03, .04,
          .06,   .08,   .1,   .15,  .2,   .3,   .5,   1,   2,    5,   10};
}

Buckets ByteBuckets() { return Geometric(4096, 4, 13); }

Buckets TokenBuckets() { return Geometric(1, 2, 15); }

Buckets ExtentBuckets() { return Geometric(1, 4, 10); }

Buckets ShareBuckets() {
  return {0, .1, .2, .3, .4, .5, .6, .7, .8, .9, .95, .99, 1};
}

Metrics::Metrics(Labels labels)
    : labels_(std::move(labels)),
      registry_(std::make_shared<prometheus::Registry>()) {}

Metrics::Metrics(const Metrics& whole, Labels part)
    : labels_(whole.labels_),
      part_(std::move(part)),
      registry_(whole.registry_) {}

prometheus::Counter* Metrics::Counter(const std::string& name,
                                      const std::string& help,
                                      const Labels& extra) {
  auto& family =
      prometheus::BuildCounter().Name(name).Help(help).Labels(labels_).Register(
          *registry_);
  return &family.Add(Bounded(family, part_, extra));
}

prometheus::Gauge* Metrics::Gauge(const std::string& name,
                                  const std::string& help,
                                  const Labels& extra) {
  auto& family =
      prometheus::BuildGauge().Name(name).Help(help).Labels(labels_).Register(
          *registry_);
  return &family.Add(Bounded(family, part_, extra));
}

void Metrics::RemoveGauge(const std::string& name, const std::string& help,
                          const Labels& extra) {
  auto& family =
      prometheus::BuildGauge().Name(name).Help(help).Labels(labels_).Register(
          *registry_);
  const Labels labels = Joined(extra, part_);
  if (family.Has(labels)) family.Remove(&family.Add(labels));
}

prometheus::Histogram* Metrics::Histogram(const std::string& name,
                                          const std::string& help,
                                          const Buckets& buckets,
                                          const Labels& extra) {
  auto& family = prometheus::BuildHistogram()
                     .Name(name)
                     .Help(help)
                     .Labels(labels_)
                     .Register(*registry_);
  return &family.Add(Bounded(family, part_, extra), buckets);
}

std::string Metrics::Text() const {
  std::vector<prometheus::MetricFamily> families = registry_->Collect();
  if (compat_ == Compat::kVllm) {
    std::vector<prometheus::MetricFamily> more = VllmFamilies(families);
    std::move(more.begin(), more.end(), std::back_inserter(families));
  }
  return prometheus::TextSerializer().Serialize(families);
}

void Metrics::AddPage(const std::string& path, MakePage page) {
  CHECK(server_ == nullptr) << "AddPage comes before Serve";
  CHECK(pages_.emplace(path, std::move(page)).second) << path;
}

absl::StatusOr<int> Metrics::Serve(const std::string& address) {
  CHECK(server_ == nullptr) << "Serve is called once";
  AddPage("/metrics", [this] {
    return Page{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                .body = Text()};
  });
  BATON_ASSIGN_OR_RETURN(server_, PageServer::Start(address, pages_));
  return server_->port();
}

}  // namespace baton::metrics
