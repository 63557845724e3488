// The processes of a local cluster as a file that Prometheus finds its targets
// in (file_sd_configs): a JSON list of {"targets": [...], "labels": {...}}.
//
// Any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/local_cluster.h"

namespace baton::cli {

// The file's content: the metrics addresses of the members that are ready, with
// the label `pool`. (`role` and `worker` are in the metrics, but not in what
// Prometheus says of a target that does not answer.)
std::string PrometheusTargets(const std::vector<Member>& members);

// Writes it at once: a reader sees the old file or the new one. The error names
// the path.
absl::Status WritePrometheusTargets(const std::string& path,
                                    const std::vector<Member>& members);

}  // namespace baton::cli
