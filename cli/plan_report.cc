#include "cli/plan_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/report_page.h"
#include "model_tools/svg_plot.h"

namespace baton::cli {
namespace {

using model_tools::PlotLine;
using model_tools::PlotPanel;
using nlohmann::ordered_json;
using planner::PlanTrial;
using planner::SensitivityCell;
using planner::SimulationResult;

double InMillis(absl::Duration duration) {
  return absl::ToDoubleMilliseconds(duration);
}

double Divided(double value, int32_t by) { return by > 0 ? value / by : 0; }

// What an autoscaler can be set by: how much each worker of a kind has to do
// when the targets are just met.
struct PerWorker {
  double requests = 0;       // per second
  double prompt_tokens = 0;  // per second, computed there
  double sequences = 0;      // that run, on average
};

// How many streams of the load a step can have and still keep the target
// between tokens; 0: there is no target, or none can.
int32_t MostStreams(const PlanReport& report) {
  const planner::WorkerProfile& decode = report.simulation.profile.decode;
  const double target = absl::ToDoubleSeconds(report.simulation.targets.itl);
  if (target <= 0) return 0;
  const scheduling::StepCost& step = decode.cost;
  const double context = report.mean_prompt + report.mean_output / 2;
  const double each =
      step.per_token + step.per_sequence + step.per_context_token * context;
  const double most =
      each > 0 ? (target - step.fixed) / each : decode.max_sequences;
  return static_cast<int32_t>(
      std::clamp(most, 0.0, static_cast<double>(decode.max_sequences)));
}

PerWorker LoadOf(const planner::PoolUsage& pool, const PlanReport& report) {
  PerWorker each;
  const planner::SimulationResult& result = report.plan.best.result;
  double share = 1;  // of the requests
  if (&pool == &result.prefill && result.offered > 0) {
    share = 1 - static_cast<double>(result.local_prefills) /
                    static_cast<double>(result.offered);
  }
  each.requests = Divided(share * report.rate(), pool.workers);
  const double seconds = report.plan.best.result.total_seconds;
  if (seconds > 0) {
    each.prompt_tokens = Divided(
        static_cast<double>(pool.prompt_tokens) / seconds, pool.workers);
  }
  each.sequences = pool.batch * pool.busy;
  return each;
}

void AppendSplits(const PlanReport& report, std::string* out) {
  absl::StrAppendFormat(out, "%8s %8s %11s %10s %10s %8s %8s %8s\n", "prefill",
                        "decode", "attainment", "TTFT p90", "TPOT p90",
                        "busy P", "busy D", "KV");
  for (const PlanTrial& trial : report.plan.splits) {
    const SimulationResult& r = trial.result;
    const bool best = trial.num_prefill == report.plan.best.num_prefill;
    absl::StrAppendFormat(
        out, "%8d %8d %10.1f%% %10.1f %10.2f %7.0f%% %7.0f%% %7.0f%%%s\n",
        trial.num_prefill, trial.num_decode, 100 * r.attainment, r.ttft.p90,
        r.tpot.p90, 100 * r.prefill.busy, 100 * r.decode.busy,
        100 * r.decode.kv_blocks, best ? "  <- best" : "");
  }
}

void AppendVerdict(const PlanReport& report, std::string* out) {
  const PlanTrial& best = report.plan.best;
  absl::StrAppendFormat(out, "\n%s%d prefill + %d decode workers",
                        report.plan.found ? "" : "NOT ENOUGH: ",
                        best.num_prefill, best.num_decode);
  absl::StrAppendFormat(out, " keep %.1f%% of the requests within the targets",
                        100 * best.result.attainment);
  if (report.plan.found && report.plan.too_few > 0) {
    absl::StrAppendFormat(out, "; %d workers are too few", report.plan.too_few);
  }
  absl::StrAppend(out, "\n");
  const SimulationResult& r = best.result;
  absl::StrAppendFormat(
      out,
      "goodput %.2f requests per second; %d of %d prompts computed on decode "
      "workers; %d rejected, %d not finished\n",
      r.goodput, r.local_prefills, r.offered, r.rejected, r.unfinished);
  absl::StrAppendFormat(out, "%-14s %10s %10s %10s %10s\n", "ms", "p50", "p90",
                        "p99", "max");
  const auto row = [&](const char* name, const workload::Percentiles& p) {
    if (std::isnan(p.max)) return;
    absl::StrAppendFormat(out, "%-14s %10.2f %10.2f %10.2f %10.2f\n", name,
                          p.p50, p.p90, p.p99, p.max);
  };
  row("TTFT", r.ttft);
  row("TPOT", r.tpot);
  row("ITL", r.itl);
  row("longest gap", r.longest_gap);
  row("end to end", r.e2e);
}

void AppendAutoscaler(const PlanReport& report, std::string* out) {
  const SimulationResult& r = report.plan.best.result;
  absl::StrAppend(out, "\nfor an autoscaler, each worker at this load:\n");
  if (r.prefill.workers > 0) {
    const PerWorker each = LoadOf(r.prefill, report);
    absl::StrAppendFormat(out,
                          "  prefill  %.3g requests per second, %.0f prompt "
                          "tokens per second, busy %.0f%%\n",
                          each.requests, each.prompt_tokens,
                          100 * r.prefill.busy);
  }
  const PerWorker each = LoadOf(r.decode, report);
  absl::StrAppendFormat(
      out,
      "  decode   %.3g requests per second, %.1f sequences running, KV in use "
      "%.0f%%, busy %.0f%%\n",
      each.requests, each.sequences, 100 * r.decode.kv_blocks,
      100 * r.decode.busy);
  if (const int32_t most = MostStreams(report); most > 0) {
    absl::StrAppendFormat(out,
                          "  decode   keeps the ITL target with up to %d "
                          "sequences: a bound for --max-sequences\n",
                          most);
  }
}

void AppendSensitivity(const PlanReport& report, std::string* out) {
  if (report.sensitivity.empty()) return;
  absl::StrAppend(
      out, "\nattainment of these workers at other loads and targets:\n");
  std::string head = absl::StrFormat("%-12s", "");
  std::string rows;
  double load = -1;
  for (const SensitivityCell& cell : report.sensitivity) {
    if (cell.load_factor == report.sensitivity.front().load_factor) {
      absl::StrAppendFormat(&head, " %13s",
                            absl::StrCat("targets x", cell.target_factor));
    }
    if (cell.load_factor != load) {
      load = cell.load_factor;
      absl::StrAppendFormat(&rows, "\n%-12s", absl::StrCat("load x", load));
    }
    absl::StrAppendFormat(&rows, " %12.1f%%", 100 * cell.attainment);
  }
  absl::StrAppend(out, head, rows, "\n");
}

std::string TargetsText(const workload::Targets& targets) {
  const auto one = [](const char* name, absl::Duration target) {
    return target > absl::ZeroDuration()
               ? absl::StrFormat("%s %g ms", name, InMillis(target))
               : absl::StrCat(name, " any");
  };
  return absl::StrCat(one("TTFT", targets.ttft), ", ", one("ITL", targets.itl));
}

PlotPanel SplitPanel(const PlanReport& report) {
  PlotPanel panel;
  panel.title =
      absl::StrCat(report.plan.best.num_workers(), " workers, by split");
  panel.x_label = "prefill workers among them";
  panel.y_label = "% of requests, of time";
  panel.x_axis = PlotPanel::XAxis::kLinear;
  PlotLine attainment{"attainment", {}};
  PlotLine prefill{"prefill workers busy", {}};
  PlotLine decode{"decode workers busy", {}};
  for (const PlanTrial& trial : report.plan.splits) {
    const double x = trial.num_prefill;
    attainment.points.push_back({x, 100 * trial.result.attainment});
    prefill.points.push_back({x, 100 * trial.result.prefill.busy});
    decode.points.push_back({x, 100 * trial.result.decode.busy});
  }
  panel.lines = {std::move(attainment), std::move(prefill), std::move(decode)};
  return panel;
}

PlotPanel SensitivityPanel(const PlanReport& report) {
  PlotPanel panel;
  panel.title = "Attainment at other loads";
  panel.x_label = "times the load";
  panel.y_label = "% within the targets";
  panel.x_axis = PlotPanel::XAxis::kLinear;
  std::map<double, PlotLine> lines;
  for (const SensitivityCell& cell : report.sensitivity) {
    PlotLine& line = lines[cell.target_factor];
    line.name = absl::StrCat("targets x", cell.target_factor);
    line.points.push_back({cell.load_factor, 100 * cell.attainment});
  }
  for (auto& [factor, line] : lines) panel.lines.push_back(std::move(line));
  return panel;
}

ordered_json TrialJson(const PlanTrial& trial) {
  return {{"prefill", trial.num_prefill},
          {"decode", trial.num_decode},
          {"result", SimulationJson(trial.result)}};
}

ordered_json AutoscalerJson(const PlanReport& report) {
  const auto pool_json = [&](const planner::PoolUsage& pool) {
    const PerWorker each = LoadOf(pool, report);
    return ordered_json{{"requests_per_second", each.requests},
                        {"prompt_tokens_per_second", each.prompt_tokens},
                        {"running_sequences", each.sequences},
                        {"busy", pool.busy},
                        {"kv_blocks_in_use", pool.kv_blocks}};
  };
  const SimulationResult& r = report.plan.best.result;
  ordered_json json;
  if (r.prefill.workers > 0) json["prefill_worker"] = pool_json(r.prefill);
  json["decode_worker"] = pool_json(r.decode);
  json["decode_worker"]["most_sequences_for_itl"] = MostStreams(report);
  return json;
}

}  // namespace

std::string PlanText(const PlanReport& report) {
  std::string out;
  if (!report.source.empty()) absl::StrAppend(&out, report.source, "\n");
  if (report.too_long > 0) {
    absl::StrAppend(&out, report.too_long,
                    " requests of the trace were left out: longer than "
                    "--max-context\n");
  }
  absl::StrAppendFormat(
      &out,
      "%d requests in %.0f s (%.2f per second): prompts of %.0f tokens, "
      "answers of %.0f on average\ntargets: %s, for %g%% of the requests\n\n",
      report.requests, report.window_seconds, report.rate(), report.mean_prompt,
      report.mean_output, TargetsText(report.simulation.targets),
      100 * report.attainment);
  AppendSplits(report, &out);
  AppendVerdict(report, &out);
  AppendAutoscaler(report, &out);
  AppendSensitivity(report, &out);
  absl::StrAppendFormat(&out, "\n%d simulations in %.1f s\n",
                        report.simulations, report.seconds);
  return out;
}

ordered_json PlanJson(const PlanReport& report) {
  ordered_json splits = ordered_json::array();
  for (const PlanTrial& trial : report.plan.splits) {
    splits.push_back(TrialJson(trial));
  }
  ordered_json sensitivity = ordered_json::array();
  for (const SensitivityCell& cell : report.sensitivity) {
    sensitivity.push_back({{"load_factor", cell.load_factor},
                           {"target_factor", cell.target_factor},
                           {"attainment", cell.attainment},
                           {"goodput_per_second", cell.goodput}});
  }
  return {{"kind", "plan"},
          {"version", 1},
          {"source", report.source},
          {"placement", report.simulation.placement},
          {"ttft_target_ms", InMillis(report.simulation.targets.ttft)},
          {"itl_target_ms", InMillis(report.simulation.targets.itl)},
          {"attainment_wanted", report.attainment},
          {"requests", report.requests},
          {"requests_per_second", report.rate()},
          {"left_out_too_long", report.too_long},
          {"found", report.plan.found},
          {"too_few_workers", report.plan.too_few},
          {"best", TrialJson(report.plan.best)},
          {"autoscaler", AutoscalerJson(report)},
          {"splits", std::move(splits)},
          {"sensitivity", std::move(sensitivity)},
          {"simulations", report.simulations},
          {"seconds", report.seconds}};
}

std::string PlanHtml(const PlanReport& report) {
  std::vector<PlotPanel> panels = {SplitPanel(report)};
  if (!report.sensitivity.empty()) panels.push_back(SensitivityPanel(report));
  return ReportPage("baton plan",
                    absl::StrFormat("%d prefill + %d decode workers",
                                    report.plan.best.num_prefill,
                                    report.plan.best.num_decode),
                    PlanText(report), panels);
}

}  // namespace baton::cli
