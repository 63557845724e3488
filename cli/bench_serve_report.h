// What `baton bench serve` found, for people, programs and browsers. Pure; any
// thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/json.h"
#include "load_generator/capacity.h"
#include "load_generator/record.h"
#include "load_generator/summary.h"

namespace baton::cli {

struct BenchServeReport {
  std::string target;
  load_generator::Targets targets;
  // Of a search, the last of its runs.
  std::vector<load_generator::RequestRecord> records;
  load_generator::Summary summary;
  size_t too_long = 0;
  std::optional<load_generator::Capacity> capacity;
};

std::string BenchServeText(const BenchServeReport& report);

// {"kind": "bench_serve", "version": 1, ...}
nlohmann::ordered_json BenchServeJson(const BenchServeReport& report,
                                      bool with_records);

// One page that needs nothing else: the numbers, and plots.
std::string BenchServeHtml(const BenchServeReport& report);

}  // namespace baton::cli
