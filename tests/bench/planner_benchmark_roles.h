// What workers that change their roles come to, beside clusters that do not:
// each way of planner_benchmark_grid.h with the split that carries the most,
// and with half of the workers of each kind, as which dual workers begin.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace baton::bench {

// Of all mixes, or the one of that name. Prints a Markdown table.
int RunRoles(const std::string& only, const std::vector<int32_t>& workers);

// With tighter and looser targets than the mixes have, for the first token and
// for those after it, one of them at a time.
int RunTargets(const std::string& only, const std::vector<int32_t>& workers);

}  // namespace baton::bench
