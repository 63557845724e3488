#include "cli/cluster_report.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace baton::cli {
namespace {

// A link this much slower than the fastest is worth a word.
constexpr double kSlow = 4;

const v1::WorkerStatus* FindWorker(const v1::GetClusterResponse& cluster,
                                   const std::string& name) {
  for (const v1::WorkerStatus& worker : cluster.workers()) {
    if (worker.name() == name) return &worker;
  }
  return nullptr;
}

absl::string_view Host(const v1::WorkerStatus& worker) {
  const absl::string_view address = worker.address();
  return address.substr(0, address.rfind(':'));
}

bool SameHost(const v1::GetClusterResponse& cluster,
              const v1::LinkStatus& link) {
  const v1::WorkerStatus* prefill = FindWorker(cluster, link.prefill_worker());
  const v1::WorkerStatus* decode = FindWorker(cluster, link.decode_worker());
  return prefill != nullptr && decode != nullptr &&
         Host(*prefill) == Host(*decode);
}

// "4.2 GB/s", "2.5 MB/s".
std::string Bandwidth(double bytes_per_second) {
  return bytes_per_second < 1e9
             ? absl::StrFormat("%.1f MB/s", bytes_per_second / 1e6)
             : absl::StrFormat("%.1f GB/s", bytes_per_second / 1e9);
}

// Whether UCX copies from process to process ("ucx/tcp,cuda"), where both have
// KV on a device, whatever else it has.
bool HasCudaIpc(const std::string& transport) {
  const std::vector<std::string> parts =
      absl::StrSplit(transport, absl::ByAnyChar("/,"));
  return absl::c_linear_search(parts, "cuda") ||
         absl::c_linear_search(parts, "cuda_ipc");
}

std::string Cell(const v1::LinkStatus& link) {
  if (!link.usable()) return "down";
  if (link.bandwidth_bytes() <= 0) return "not measured";
  return absl::StrFormat("%s %.0f us %s", Bandwidth(link.bandwidth_bytes()),
                         link.latency_seconds() * 1e6, link.transport());
}

}  // namespace

std::vector<ClusterFinding> FindTrouble(const v1::GetClusterResponse& cluster) {
  std::vector<ClusterFinding> findings;
  for (const v1::WorkerStatus& worker : cluster.workers()) {
    if (worker.usable() || worker.standby()) continue;
    findings.push_back(
        {true, absl::StrCat(worker.role(), " worker ", worker.name(), " ",
                            worker.why_not())});
  }
  const bool decodes =
      absl::c_any_of(cluster.workers(), [](const v1::WorkerStatus& worker) {
        return worker.role() == "decode" && worker.usable();
      });
  // Nothing is wrong with any, but they all stand by.
  if (!decodes && findings.empty()) {
    findings.push_back({true, "no decode worker gets requests"});
  }
  std::map<std::string, std::string> backends;
  for (const v1::WorkerStatus& worker : cluster.workers()) {
    if (!(worker.usable() || worker.standby()) || worker.backend().empty()) {
      continue;
    }
    backends.try_emplace(worker.backend(), worker.name());
  }
  if (backends.size() > 1) {
    findings.push_back(
        {false, absl::StrCat("workers do not compute to the same bits: ",
                             absl::StrJoin(backends, ", ",
                                           absl::PairFormatter(" like ")),
                             ". An answer may depend on which of them give "
                             "it")});
  }
  double fastest = 0;
  for (const v1::LinkStatus& link : cluster.links()) {
    fastest = std::max(fastest, link.bandwidth_bytes());
  }
  for (const v1::LinkStatus& link : cluster.links()) {
    const std::string pair =
        absl::StrCat(link.prefill_worker(), " to ", link.decode_worker());
    if (!link.usable()) {
      findings.push_back({true, absl::StrCat(pair, ": ", link.why_not())});
      continue;
    }
    if (link.bandwidth_bytes() <= 0) continue;
    if (SameHost(cluster, link) && absl::StrContains(link.transport(), "tcp") &&
        !HasCudaIpc(link.transport())) {
      findings.push_back(
          {false, absl::StrCat(pair, " are on one host, but KV goes over ",
                               link.transport(),
                               ": look for a line about it in the prefill "
                               "worker's log")});
    }
    if (link.bandwidth_bytes() * kSlow < fastest) {
      findings.push_back(
          {false, absl::StrFormat("%s: %s over %s, the fastest link has %s",
                                  pair, Bandwidth(link.bandwidth_bytes()),
                                  link.transport(), Bandwidth(fastest))});
    }
  }
  return findings;
}

std::string FormatCluster(const v1::GetClusterResponse& cluster) {
  std::string out = absl::StrFormat(
      "router %s: %u requests run, %u wait\n\n", cluster.router_name(),
      cluster.running_requests(), cluster.waiting_requests());
  absl::StrAppendFormat(&out, "%-16s %-8s %-22s %8s %8s %16s\n", "worker",
                        "role", "address", "running", "waiting",
                        "free KV blocks");
  for (const v1::WorkerStatus& w : cluster.workers()) {
    absl::StrAppendFormat(&out, "%-16s %-8s %-22s", w.name(), w.role(),
                          w.address());
    if (w.connected()) {
      absl::StrAppendFormat(
          &out, " %8u %8u %16s%s\n", w.running(), w.waiting(),
          absl::StrCat(w.free_blocks(), " of ", w.total_blocks()),
          w.standby() ? "  stands by" : "");
    } else {
      absl::StrAppend(&out, " not connected\n");
    }
  }
  std::vector<std::string> columns;
  std::vector<std::string> rows;
  std::map<std::pair<std::string, std::string>, std::string> cells;
  const auto add = [](const std::string& name, std::vector<std::string>* to) {
    if (std::find(to->begin(), to->end(), name) == to->end()) {
      to->push_back(name);
    }
  };
  for (const v1::LinkStatus& link : cluster.links()) {
    add(link.prefill_worker(), &rows);
    add(link.decode_worker(), &columns);
    cells[{link.prefill_worker(), link.decode_worker()}] = Cell(link);
  }
  if (!rows.empty()) {
    absl::StrAppendFormat(&out, "\n%-16s", "KV, from / to");
    for (const std::string& column : columns) {
      absl::StrAppendFormat(&out, " %-32s", column);
    }
    absl::StrAppend(&out, "\n");
    for (const std::string& row : rows) {
      absl::StrAppendFormat(&out, "%-16s", row);
      for (const std::string& column : columns) {
        absl::StrAppendFormat(&out, " %-32s", cells[{row, column}]);
      }
      absl::StrAppend(&out, "\n");
    }
  }
  absl::StrAppend(&out, "\n");
  const std::vector<ClusterFinding> findings = FindTrouble(cluster);
  for (const ClusterFinding& finding : findings) {
    absl::StrAppend(
        &out, finding.is_problem ? "problem: " : "note: ", finding.text, "\n");
  }
  if (findings.empty()) absl::StrAppend(&out, "No trouble found.\n");
  return out;
}

}  // namespace baton::cli
