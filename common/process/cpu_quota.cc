#include "common/process/cpu_quota.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/log.h"
#include "common/process/memory.h"
#include "common/process/proc_file.h"

namespace baton::process {

std::optional<double> CpuQuota(const std::string& root) {
  std::optional<double> least;
  const auto take = [&](double quota, double period) {
    if (quota <= 0 || period <= 0) return;
    const double cpus = quota / period;
    least = std::min(least.value_or(cpus), cpus);
  };
  for (const std::string& folder : ControlGroupFolders(root, "")) {
    // "max 100000" or "50000 100000".
    const std::string text = ReadProcFile(folder + "/cpu.max");
    const std::vector<absl::string_view> parts =
        absl::StrSplit(absl::StripAsciiWhitespace(text), ' ');
    int64_t quota = 0, period = 0;
    if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &quota) &&
        absl::SimpleAtoi(parts[1], &period)) {
      take(static_cast<double>(quota), static_cast<double>(period));
    }
  }
  for (const std::string& folder : ControlGroupFolders(root, "cpu")) {
    // A quota of -1 is none.
    const auto quota = ReadProcNumber(folder + "/cpu.cfs_quota_us");
    const auto period = ReadProcNumber(folder + "/cpu.cfs_period_us");
    if (quota && period) {
      take(static_cast<double>(*quota), static_cast<double>(*period));
    }
  }
  return least;
}

int32_t ThreadsWithin(std::optional<double> quota, int32_t cpus) {
  CHECK_GE(cpus, 1);
  if (!quota.has_value() || *quota >= cpus) return cpus;
  return std::max(1, static_cast<int32_t>(std::ceil(*quota)));
}

}  // namespace baton::process
