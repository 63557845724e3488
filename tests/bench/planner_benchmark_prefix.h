// How much of a trace's prompts simulated clusters find in their prefix caches,
// against the most that a cache of the same size in one piece could find.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/profile.h"

namespace baton::bench {

// Prints a table for each number of workers. Returns the exit code.
int RunPrefix(const std::string& trace, const planner::ClusterProfile& profile,
              const std::vector<int32_t>& workers);

}  // namespace baton::bench
