// The numbers of a run. docs/load_generator.md says what each of them is.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/json.h"
#include "load_generator/record.h"
#include "workload/goodput.h"

namespace baton::load_generator {

using workload::Percentiles;
using workload::PercentilesOf;
using workload::Targets;

struct Summary {
  int64_t offered = 0;
  std::map<OutcomeKind, int64_t> outcomes;
  // The most frequent errors, at most five.
  std::vector<std::pair<std::string, int64_t>> errors;
  // Over which requests came (for rates), and until the last one ended.
  double window_seconds = 0;
  double total_seconds = 0;
  double offered_rate = 0;
  // Tokens of finished requests over the total time.
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  // Of all with output, whatever became of them later.
  Percentiles ttft;
  // Of finished requests.
  Percentiles tpot, e2e;
  // Between events, of all requests together, and the longest of each.
  Percentiles itl, longest_gap;
  // How late requests were sent.
  Percentiles lag;
  // Those that finished within the targets; of all that were offered.
  int64_t met = 0;
  double attainment = 0;
  double goodput = 0;  // requests per second
};

bool Met(const RequestRecord& record, const Targets& targets);

// `window` is the time over which the workload's requests come.
Summary Summarize(const std::vector<RequestRecord>& records,
                  const Targets& targets, absl::Duration window);

nlohmann::ordered_json SummaryJson(const Summary& summary);

// The requests themselves, for those who want to look closer.
nlohmann::ordered_json RecordsJson(const std::vector<RequestRecord>& records);

// A table for people.
std::string SummaryText(const Summary& summary, const Targets& targets);

}  // namespace baton::load_generator
