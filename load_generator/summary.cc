#include "load_generator/summary.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace baton::load_generator {
namespace {

using nlohmann::ordered_json;
using workload::PercentilesJson;

constexpr size_t kMaxErrors = 5;

double Millis(absl::Duration duration) {
  return absl::ToDoubleMilliseconds(duration);
}

void AppendRow(const char* name, const Percentiles& p, std::string* out) {
  if (std::isnan(p.max)) {
    absl::StrAppendFormat(out, "%-16s %10s\n", name, "-");
    return;
  }
  absl::StrAppendFormat(out, "%-16s %10.2f %10.2f %10.2f %10.2f %10.2f\n", name,
                        p.mean, p.p50, p.p90, p.p99, p.max);
}

std::string TargetsText(const Targets& targets) {
  std::string text;
  if (targets.ttft > absl::ZeroDuration()) {
    absl::StrAppendFormat(&text, "TTFT %g ms", Millis(targets.ttft));
  }
  if (targets.itl > absl::ZeroDuration()) {
    absl::StrAppendFormat(&text, "%sITL %g ms", text.empty() ? "" : ", ",
                          Millis(targets.itl));
  }
  return text.empty() ? "none: whatever finishes" : text;
}

std::vector<std::pair<std::string, int64_t>> TopErrors(
    const std::vector<RequestRecord>& records) {
  std::map<std::string, int64_t> counts;
  for (const RequestRecord& record : records) {
    if (!record.finished()) ++counts[record.end.error];
  }
  std::vector<std::pair<std::string, int64_t>> errors(counts.begin(),
                                                      counts.end());
  std::stable_sort(
      errors.begin(), errors.end(),
      [](const auto& a, const auto& b) { return a.second > b.second; });
  if (errors.size() > kMaxErrors) errors.resize(kMaxErrors);
  return errors;
}

}  // namespace

bool Met(const RequestRecord& record, const Targets& targets) {
  if (!record.finished()) return false;
  if (targets.ttft > absl::ZeroDuration() && !record.has_output()) return false;
  return targets.Met(record.ttft(), record.tpot());
}

Summary Summarize(const std::vector<RequestRecord>& records,
                  const Targets& targets, absl::Duration window) {
  Summary summary;
  summary.offered = static_cast<int64_t>(records.size());
  summary.errors = TopErrors(records);
  std::vector<double> ttft, tpot, e2e, itl, longest, lag;
  absl::Duration total = window;
  for (const RequestRecord& record : records) {
    ++summary.outcomes[record.end.kind];
    total = std::max(total, record.ended_at);
    lag.push_back(Millis(record.sent_at - record.planned_at));
    if (record.has_output()) ttft.push_back(Millis(record.ttft()));
    if (!record.gaps_ms.empty()) {
      itl.insert(itl.end(), record.gaps_ms.begin(), record.gaps_ms.end());
      longest.push_back(
          *std::max_element(record.gaps_ms.begin(), record.gaps_ms.end()));
    }
    summary.met += Met(record, targets);
    if (!record.finished()) continue;
    if (record.tokens() > 1) tpot.push_back(Millis(record.tpot()));
    e2e.push_back(Millis(record.e2e()));
    summary.prompt_tokens += record.end.prompt_tokens > 0
                                 ? record.end.prompt_tokens
                                 : record.prompt_tokens;
    summary.cached_tokens += record.end.cached_tokens;
    summary.output_tokens += record.tokens();
  }
  summary.window_seconds = absl::ToDoubleSeconds(window);
  summary.total_seconds = absl::ToDoubleSeconds(total);
  if (window > absl::ZeroDuration()) {
    summary.offered_rate =
        static_cast<double>(summary.offered) / summary.window_seconds;
    summary.goodput = static_cast<double>(summary.met) / summary.window_seconds;
  }
  if (summary.offered > 0) {
    summary.attainment =
        static_cast<double>(summary.met) / static_cast<double>(summary.offered);
  }
  summary.ttft = PercentilesOf(std::move(ttft));
  summary.tpot = PercentilesOf(std::move(tpot));
  summary.e2e = PercentilesOf(std::move(e2e));
  summary.itl = PercentilesOf(std::move(itl));
  summary.longest_gap = PercentilesOf(std::move(longest));
  summary.lag = PercentilesOf(std::move(lag));
  return summary;
}

ordered_json SummaryJson(const Summary& summary) {
  ordered_json outcomes = ordered_json::object();
  for (const auto& [kind, count] : summary.outcomes) {
    outcomes[OutcomeName(kind)] = count;
  }
  ordered_json errors = ordered_json::array();
  for (const auto& [error, count] : summary.errors) {
    errors.push_back({{"error", error}, {"requests", count}});
  }
  const double total = std::max(summary.total_seconds, 1e-9);
  return {
      {"offered", summary.offered},
      {"outcomes", outcomes},
      {"errors", errors},
      {"window_seconds", summary.window_seconds},
      {"total_seconds", summary.total_seconds},
      {"offered_per_second", summary.offered_rate},
      {"attainment", summary.attainment},
      {"goodput_per_second", summary.goodput},
      {"prompt_tokens", summary.prompt_tokens},
      {"cached_prompt_tokens", summary.cached_tokens},
      {"output_tokens", summary.output_tokens},
      {"prompt_tokens_per_second",
       static_cast<double>(summary.prompt_tokens) / total},
      {"output_tokens_per_second",
       static_cast<double>(summary.output_tokens) / total},
      {"ttft_ms", PercentilesJson(summary.ttft)},
      {"tpot_ms", PercentilesJson(summary.tpot)},
      {"itl_ms", PercentilesJson(summary.itl)},
      {"longest_gap_ms", PercentilesJson(summary.longest_gap)},
      {"e2e_ms", PercentilesJson(summary.e2e)},
      {"send_lag_ms", PercentilesJson(summary.lag)},
  };
}

ordered_json RecordsJson(const std::vector<RequestRecord>& records) {
  ordered_json all = ordered_json::array();
  for (const RequestRecord& record : records) {
    ordered_json one = {
        {"planned_ms", Millis(record.planned_at)},
        {"sent_ms", Millis(record.sent_at)},
        {"outcome", OutcomeName(record.end.kind)},
        {"prompt_tokens", record.prompt_tokens},
        {"output_tokens", record.tokens()},
        {"e2e_ms", Millis(record.e2e())},
    };
    if (record.has_output()) one["ttft_ms"] = Millis(record.ttft());
    if (record.tokens() > 1) one["tpot_ms"] = Millis(record.tpot());
    if (!record.gaps_ms.empty()) {
      one["longest_gap_ms"] =
          *std::max_element(record.gaps_ms.begin(), record.gaps_ms.end());
    }
    if (!record.end.error.empty()) one["error"] = record.end.error;
    all.push_back(std::move(one));
  }
  return all;
}

std::string SummaryText(const Summary& summary, const Targets& targets) {
  std::string out;
  absl::StrAppendFormat(
      &out, "%d requests in %.1f s (%.2f per second), %.1f s in all:",
      summary.offered, summary.window_seconds, summary.offered_rate,
      summary.total_seconds);
  for (const auto& [kind, count] : summary.outcomes) {
    absl::StrAppend(&out, " ", count, " ", OutcomeName(kind));
  }
  const double total = std::max(summary.total_seconds, 1e-9);
  absl::StrAppendFormat(
      &out,
      "\ntokens per second: %.0f prompt (%.0f of them cached), %.0f output\n",
      static_cast<double>(summary.prompt_tokens) / total,
      static_cast<double>(summary.cached_tokens) / total,
      static_cast<double>(summary.output_tokens) / total);
  absl::StrAppendFormat(&out, "\n%-16s %10s %10s %10s %10s %10s\n", "ms",
                        "mean", "p50", "p90", "p99", "max");
  AppendRow("TTFT", summary.ttft, &out);
  AppendRow("TPOT", summary.tpot, &out);
  AppendRow("ITL", summary.itl, &out);
  AppendRow("longest gap", summary.longest_gap, &out);
  AppendRow("end to end", summary.e2e, &out);
  AppendRow("sent late by", summary.lag, &out);
  absl::StrAppendFormat(&out,
                        "\ntargets: %s\nattainment %.1f%%, goodput %.2f "
                        "requests per second\n",
                        TargetsText(targets), 100 * summary.attainment,
                        summary.goodput);
  for (const auto& [error, count] : summary.errors) {
    absl::StrAppend(&out, count, " x ", error, "\n");
  }
  return out;
}

}  // namespace baton::load_generator
