#include "cli/bench_serve_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/report_page.h"
#include "model_tools/svg_plot.h"

namespace baton::cli {
namespace {

using load_generator::Capacity;
using load_generator::CapacityTrial;
using load_generator::RequestRecord;
using model_tools::PlotLine;
using model_tools::PlotPanel;
using model_tools::PlotPoint;
using nlohmann::ordered_json;

// Enough for the eye; a page of a million points helps nobody.
constexpr size_t kMaxPoints = 2000;

std::string CapacityText(const Capacity& capacity) {
  std::string out = absl::StrFormat("%12s %12s %12s\n", "per second",
                                    "attainment", "goodput");
  std::vector<CapacityTrial> trials = capacity.trials;
  std::sort(trials.begin(), trials.end(),
            [](const auto& a, const auto& b) { return a.rate < b.rate; });
  for (const CapacityTrial& trial : trials) {
    absl::StrAppendFormat(&out, "%12.2f %11.1f%% %12.2f\n", trial.rate,
                          100 * trial.attainment, trial.goodput);
  }
  if (capacity.rate == 0) {
    absl::StrAppend(&out, "no rate that was tried kept the attainment\n");
  } else {
    absl::StrAppendFormat(&out,
                          "goodput capacity: %s%.2f requests per second\n",
                          capacity.bounded ? "" : "at least ", capacity.rate);
  }
  return out;
}

// Every nth, so that there are not too many.
template <typename T>
std::vector<T> Thinned(const std::vector<T>& all) {
  const size_t step = all.size() / kMaxPoints + 1;
  std::vector<T> some;
  for (size_t i = 0; i < all.size(); i += step) some.push_back(all[i]);
  return some;
}

double Millis(absl::Duration duration) {
  return std::max(0.0, absl::ToDoubleMilliseconds(duration));
}

// The share of values that are at most x, over x.
PlotLine Distribution(const std::string& name, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  PlotLine line;
  line.name = name;
  const auto count = static_cast<double>(values.size());
  const size_t step = values.size() / 200 + 1;
  for (size_t i = 0; i < values.size(); i += step) {
    line.points.push_back(
        {values[i], 100 * static_cast<double>(i + 1) / count});
  }
  if (!values.empty()) line.points.push_back({values.back(), 100});
  return line;
}

PlotPanel LatencyOverTime(const std::vector<RequestRecord>& records) {
  PlotPanel panel;
  panel.title = "Latency of each request";
  panel.x_label = "planned at, seconds";
  panel.y_label = "ms";
  panel.x_axis = PlotPanel::XAxis::kLinear;
  panel.marks = PlotPanel::Marks::kDots;
  PlotLine ttft{"time to the first token", {}};
  PlotLine gap{"longest gap between tokens", {}};
  for (const RequestRecord& record : Thinned(records)) {
    const double at = std::max(0.0, absl::ToDoubleSeconds(record.planned_at));
    if (!record.has_output()) continue;
    ttft.points.push_back({at, Millis(record.ttft())});
    if (record.gaps_ms.empty()) continue;
    gap.points.push_back(
        {at, *std::max_element(record.gaps_ms.begin(), record.gaps_ms.end())});
  }
  panel.lines = {std::move(ttft), std::move(gap)};
  return panel;
}

PlotPanel Distributions(const std::string& title, std::vector<PlotLine> lines) {
  PlotPanel panel;
  panel.title = title;
  panel.x_label = "ms";
  panel.y_label = "% of all at most";
  panel.x_axis = PlotPanel::XAxis::kLinear;
  panel.marks = PlotPanel::Marks::kLines;
  panel.lines = std::move(lines);
  return panel;
}

PlotPanel CapacityPanel(const Capacity& capacity) {
  PlotPanel panel;
  panel.title = "Attainment and goodput over load";
  panel.x_label = "offered, requests per second";
  panel.y_label = "%; requests per second";
  panel.x_axis = PlotPanel::XAxis::kLinear;
  PlotLine attainment{"attainment, %", {}};
  PlotLine goodput{"goodput, requests per second", {}};
  for (const CapacityTrial& trial : capacity.trials) {
    attainment.points.push_back({trial.rate, 100 * trial.attainment});
    goodput.points.push_back({trial.rate, trial.goodput});
  }
  panel.lines = {std::move(attainment), std::move(goodput)};
  return panel;
}

std::vector<PlotPanel> Panels(const BenchServeReport& report) {
  std::vector<double> ttft, gaps, tpot;
  for (const RequestRecord& record : report.records) {
    if (record.has_output()) ttft.push_back(Millis(record.ttft()));
    if (record.tokens() > 1) tpot.push_back(Millis(record.tpot()));
    gaps.insert(gaps.end(), record.gaps_ms.begin(), record.gaps_ms.end());
  }
  std::vector<PlotPanel> panels;
  if (report.capacity.has_value()) {
    panels.push_back(CapacityPanel(*report.capacity));
  }
  panels.push_back(LatencyOverTime(report.records));
  panels.push_back(Distributions("Time to the first token",
                                 {Distribution("TTFT", std::move(ttft))}));
  panels.push_back(Distributions(
      "Between tokens", {Distribution("ITL, each gap", std::move(gaps)),
                         Distribution("TPOT, each request", std::move(tpot))}));
  return panels;
}

}  // namespace

std::string BenchServeText(const BenchServeReport& report) {
  std::string out;
  if (report.too_long > 0) {
    absl::StrAppend(&out, report.too_long,
                    " requests of the trace were left out: longer than "
                    "--max-context\n");
  }
  if (report.capacity.has_value()) {
    absl::StrAppend(&out, CapacityText(*report.capacity),
                    "\nthe last run of the search:\n");
  }
  absl::StrAppend(&out, SummaryText(report.summary, report.targets));
  return out;
}

ordered_json BenchServeJson(const BenchServeReport& report, bool with_records) {
  ordered_json json = {
      {"kind", "bench_serve"},
      {"version", 1},
      {"target", report.target},
      {"ttft_target_ms", Millis(report.targets.ttft)},
      {"itl_target_ms", Millis(report.targets.itl)},
      {"left_out_too_long", report.too_long},
      {"summary", SummaryJson(report.summary)},
  };
  if (report.capacity.has_value()) {
    ordered_json trials = ordered_json::array();
    for (const CapacityTrial& trial : report.capacity->trials) {
      trials.push_back({{"offered_per_second", trial.rate},
                        {"attainment", trial.attainment},
                        {"goodput_per_second", trial.goodput}});
    }
    json["capacity"] = {{"requests_per_second", report.capacity->rate},
                        {"bounded", report.capacity->bounded},
                        {"trials", std::move(trials)}};
  }
  if (with_records) json["records"] = RecordsJson(report.records);
  return json;
}

std::string BenchServeHtml(const BenchServeReport& report) {
  return ReportPage("baton bench serve",
                    absl::StrCat("Load on ", report.target),
                    BenchServeText(report), Panels(report));
}

}  // namespace baton::cli
