// How much of the CPUs the control groups leave to this process.
//
// Linux: from the control groups (versions 1 and 2). CPUs: 1.5 is one and a
// half. What cannot be read is no limit. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace baton::process {

// The quota of the group that leaves least; none when no group has one. `root`
// is put before every path; empty but for tests.
std::optional<double> CpuQuota(const std::string& root = "");

// How many threads can be busy on `cpus` CPUs within a quota: at least one. A
// quota of 1.5 keeps two busy for most of the time; more than that would all
// stand still together once the quota is spent. REQUIRES: cpus >= 1.
int32_t ThreadsWithin(std::optional<double> quota, int32_t cpus);

}  // namespace baton::process
