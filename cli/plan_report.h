// What `baton plan` found, for people, programs and browsers. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/json.h"
#include "planner/plan_search.h"

namespace baton::cli {

struct PlanReport {
  // Where the workers' costs come from.
  std::string source;
  // With the plan's numbers of workers.
  planner::SimulationOptions simulation;
  double attainment = 0.9;  // wanted
  // Of the load.
  int64_t requests = 0;
  double window_seconds = 0;
  double mean_prompt = 0;
  double mean_output = 0;
  size_t too_long = 0;

  planner::Plan plan;
  // By load, then by targets; empty: not asked for.
  std::vector<planner::SensitivityCell> sensitivity;
  // All of it took so long.
  int64_t simulations = 0;
  double seconds = 0;

  double rate() const {
    return window_seconds > 0 ? static_cast<double>(requests) / window_seconds
                              : 0;
  }
};

std::string PlanText(const PlanReport& report);

// {"kind": "plan", "version": 1, ...}
nlohmann::ordered_json PlanJson(const PlanReport& report);

// One page that needs nothing else: the numbers, and plots.
std::string PlanHtml(const PlanReport& report);

}  // namespace baton::cli
