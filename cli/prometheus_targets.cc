#include "cli/prometheus_targets.h"

#include <errno.h>

#include <cstdio>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/json.h"

namespace baton::cli {

std::string PrometheusTargets(const std::vector<Member>& members) {
  std::map<std::string, nlohmann::json> pools;
  for (const Member& member : members) {
    const ReadyFields& ready = member.process->ready();
    const auto metrics = ready.find("metrics");
    if (metrics == ready.end()) continue;
    const char* pool = member.is_prefill && member.is_decode ? "dual"
                       : member.is_prefill                   ? "prefill"
                       : member.is_decode                    ? "decode"
                                                             : "router";
    pools[pool].push_back(metrics->second);
  }
  nlohmann::json groups = nlohmann::json::array();
  for (const auto& [pool, targets] : pools) {
    groups.push_back({{"targets", targets}, {"labels", {{"pool", pool}}}});
  }
  return absl::StrCat(groups.dump(2), "\n");
}

absl::Status WritePrometheusTargets(const std::string& path,
                                    const std::vector<Member>& members) {
  const std::string written = absl::StrCat(path, ".tmp");
  std::ofstream out(written, std::ios::trunc);
  out << PrometheusTargets(members);
  out.close();
  if (!out || std::rename(written.c_str(), path.c_str()) != 0) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("cannot write --prometheus-targets ", path));
  }
  return absl::OkStatus();
}

}  // namespace baton::cli
