// What became of each request of a simulation, and the sums over all of them.
// A few numbers for each request, however long its answer.
//
// Seconds of the virtual clock. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "planner/simulation_result.h"
#include "workload/goodput.h"
#include "workload/planned_request.h"

namespace baton::planner {

class RequestOutcomes final {
 public:
  // The requests outlive this.
  RequestOutcomes(absl::Span<const workload::PlannedRequest> requests,
                  const workload::Targets& targets, double timeout_seconds);

  void FirstToken(uint32_t request, double now);
  void Gap(uint32_t request, double seconds);
  void Finished(uint32_t request, double now);
  void Rejected(uint32_t request);
  // Its time is over.
  void Expired(uint32_t request);

  double first_at(uint32_t request) const { return states_[request].first_at; }
  // Of those so far that can meet their targets no more.
  int64_t misses() const { return misses_; }

  // The requests' part of the result; total_seconds is not.
  SimulationResult Sum(absl::Duration window) const;

 private:
  enum class End : uint8_t { kNone, kFinished, kRejected };
  struct State {
    double first_at = -1;  // below zero: not yet
    double last_at = -1;
    float longest_gap = 0;
    End end = End::kNone;
    // Its targets, or one of them by itself.
    bool missed = false;
    bool missed_ttft = false;
    bool missed_tpot = false;
  };

  double ArrivalOf(uint32_t request) const {
    return absl::ToDoubleSeconds(requests_[request].at);
  }
  void Miss(State* state);

  const absl::Span<const workload::PlannedRequest> requests_;
  const workload::Targets targets_;
  const double timeout_;
  std::vector<State> states_;
  int64_t misses_ = 0;
};

}  // namespace baton::planner
