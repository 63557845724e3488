#include "model_tools/engine_bench_json.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model_tools/svg_plot.h"

namespace baton::model_tools {

using nlohmann::ordered_json;

ordered_json EngineBenchJson(const EngineBenchReport& report,
                             const std::vector<int32_t>& threads) {
  ordered_json ceilings = ordered_json::array();
  for (size_t i = 0; i < report.ceilings.size(); ++i) {
    ceilings.push_back({{"threads", threads[i]},
                        {"bf16_gflops", report.ceilings[i].bf16_gflops},
                        {"int8_gops", report.ceilings[i].int8_gops},
                        {"memory_gbs", report.ceilings[i].memory_gbs}});
  }
  ordered_json rows = ordered_json::array();
  for (const BenchRow& row : report.rows) {
    const bool prefill = row.test.kind == BenchTest::Kind::kPrefill;
    ordered_json json = {
        {"test", row.test.Name()},     {"kind", prefill ? "prefill" : "decode"},
        {"tokens", row.test.tokens},   {"batch", row.test.batch},
        {"context", row.test.context}, {"threads", row.threads}};
    if (!row.skipped.empty()) {
      json["skipped"] = row.skipped;
    } else {
      json["seconds"] = row.seconds;
      json["tokens_per_second"] = row.tokens_per_second;
      json["spread"] = row.spread;
      json["step_ms"] = row.step_ms;
      json["gflops"] = row.gflops;
      json["gbs"] = row.gbs;
      if (row.compute_share) json["compute_share"] = *row.compute_share;
      if (row.memory_share) json["memory_share"] = *row.memory_share;
    }
    rows.push_back(std::move(json));
  }
  return {
      {"kind", "baton bench engine"},    {"version", 1},
      {"model", report.model},           {"architecture", report.architecture},
      {"identity", report.identity},     {"backend", report.backend},
      {"weights", report.weights},       {"kv_dtype", report.kv_dtype},
      {"parameters", report.parameters}, {"matrix_bytes", report.matrix_bytes},
      {"ceilings", std::move(ceilings)}, {"rows", std::move(rows)}};
}

std::string EngineBenchSvg(const EngineBenchReport& report) {
  PlotPanel prefill{
      "Prefill: one prompt", "prompt tokens", "tokens per second", {}};
  PlotPanel decode{"Decode: batches",
                   "sequences in the batch",
                   "tokens per second, all sequences",
                   {}};
  // One line per name, in the order of the rows.
  std::map<std::string, size_t> prefill_lines, decode_lines;
  for (const BenchRow& row : report.rows) {
    if (!row.skipped.empty()) continue;
    const bool is_prefill = row.test.kind == BenchTest::Kind::kPrefill;
    PlotPanel& panel = is_prefill ? prefill : decode;
    std::string name =
        absl::StrCat(row.threads, " thread", row.threads == 1 ? "" : "s");
    if (!is_prefill) {
      absl::StrAppend(&name, ", ", row.test.tokens, " steps after ",
                      row.test.context);
    }
    auto& lines = is_prefill ? prefill_lines : decode_lines;
    const auto [line, added] = lines.emplace(name, panel.lines.size());
    if (added) panel.lines.push_back({name, {}});
    panel.lines[line->second].points.push_back(
        {static_cast<double>(is_prefill ? row.test.tokens : row.test.batch),
         row.tokens_per_second});
  }
  std::vector<PlotPanel> panels;
  if (!prefill.lines.empty()) panels.push_back(std::move(prefill));
  if (!decode.lines.empty()) panels.push_back(std::move(decode));
  return RenderSvg(absl::StrCat(report.model, ", ", report.backend), panels);
}

}  // namespace baton::model_tools
