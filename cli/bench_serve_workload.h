// The workload of `baton bench serve`: made up, or replayed from a trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workload/planned_request.h"

namespace baton::cli {

struct WorkloadFlags {
  double rate = 1;
  double duration = 60;
  std::string arrivals = "poisson";
  double burstiness = 2;
  std::string prompt = "256";
  std::string output = "64";
  int32_t shared_prefix = 0;
  int32_t concurrency = 0;
  int32_t requests = 100;

  std::string trace;
  double time_scale = 1;
  double length_scale = 1;
  int64_t max_requests = 0;
  int32_t max_context = 0;

  uint64_t seed = 1;

  // Whether the user gave them: a trace has its own times.
  bool rate_given = false;
  bool duration_given = false;
};

// `flags` must outlive the parsing.
void AddWorkloadFlags(CLI::App* command, WorkloadFlags* flags);

// "64" or "32-128", both ends from `least`. InvalidArgument names the flag.
absl::StatusOr<std::pair<int32_t, int32_t>> ParseRange(const char* flag,
                                                       const std::string& text,
                                                       int32_t least);

struct WorkloadPlan {
  std::vector<workload::PlannedRequest> requests;
  // During which they come; zero in a closed loop, which takes what it takes.
  absl::Duration window;
  // Left out for their length.
  size_t too_long = 0;
};

// Where requests come from. One thread.
class WorkloadSource final {
 public:
  // Reads the trace, if there is one. Errors name the flag, or file and line.
  static absl::StatusOr<WorkloadSource> Open(const WorkloadFlags& flags);

  // At `rate` per second; 0: at the workload's own. InvalidArgument when
  // nothing is left to send.
  absl::StatusOr<WorkloadPlan> Make(double rate) const;

 private:
  explicit WorkloadSource(const WorkloadFlags& flags) : flags_(flags) {}

  std::vector<workload::PlannedRequest> Synthetic(
      double rate, absl::Duration duration) const;
  WorkloadPlan FromTrace(double rate, absl::Duration duration) const;

  WorkloadFlags flags_;
  std::pair<int32_t, int32_t> prompt_;
  std::pair<int32_t, int32_t> output_;
  std::vector<workload::PlannedRequest> trace_;
};

}  // namespace baton::cli
