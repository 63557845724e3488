// What `--metrics-compat vllm` adds to /metrics: the same numbers once more
// under the names that vLLM's metrics have, for tools that look for those (the
// Gateway API Inference Extension, llm-d, KEDA's examples, public dashboards).
// docs/metrics.md has the table.
//
// Nothing is counted twice: the copies are made when somebody asks for the
// page. Pure; any thread.
#pragma once

#include <vector>

#include <prometheus/metric_family.h>

namespace baton::metrics {

// The copies. Labels are model_name, engine (always "0"), and those that vLLM's
// metric has; what another label tells apart here is added up. A reason
// "cancelled" is vLLM's "abort".
std::vector<prometheus::MetricFamily> VllmFamilies(
    const std::vector<prometheus::MetricFamily>& families);

}  // namespace baton::metrics
