#include "router/cluster_status.h"

#include <string>
#include <vector>

namespace baton::router {
namespace {

void SetCosts(const scheduling::WorkerSnapshot& worker,
              v1::WorkerCosts* costs) {
  costs->set_block_size(static_cast<uint32_t>(worker.block_size));
  costs->set_max_sequences(static_cast<uint32_t>(worker.max_sequences));
  costs->set_max_context(static_cast<uint32_t>(worker.max_context));
  costs->set_token_budget(static_cast<uint32_t>(worker.token_budget));
  costs->set_max_queued_tokens(static_cast<uint64_t>(worker.max_queued_tokens));
  costs->set_kv_bytes_per_token(
      static_cast<uint64_t>(worker.kv_bytes_per_token));
  costs->set_num_layers(static_cast<uint32_t>(worker.num_layers));
  costs->set_fixed_seconds(worker.step_cost.fixed);
  costs->set_seconds_per_token(worker.step_cost.per_token);
  costs->set_seconds_per_context_token(worker.step_cost.per_context_token);
  costs->set_seconds_per_sequence(worker.step_cost.per_sequence);
  costs->set_seconds_per_prompt_context_token(
      worker.step_cost.per_prompt_context_token);
}

}  // namespace

v1::GetClusterResponse DescribeCluster(const WorkerRegistry& registry,
                                       absl::Time now) {
  const std::vector<WorkerRegistry::Worker>& workers = registry.workers();
  const auto name = [&](int index) {
    const WorkerRegistry::Worker& worker = workers[index];
    return worker.hello.worker_name().empty() ? worker.address
                                              : worker.hello.worker_name();
  };
  v1::GetClusterResponse response;
  for (size_t i = 0; i < workers.size(); ++i) {
    const WorkerRegistry::Worker& worker = workers[i];
    if (worker.removed) continue;
    const int index = static_cast<int>(i);
    v1::WorkerStatus* status = response.add_workers();
    status->set_name(name(index));
    status->set_role(scheduling::WorkerRoleName(worker.role));
    status->set_address(worker.address);
    status->set_connected(worker.id != scheduling::kNoWorker);
    status->set_why_not(registry.WhyUnusable(index));
    status->set_usable(status->why_not().empty());
    status->set_standby(registry.StandsBy(index, now));
    status->set_total_blocks(worker.hello.total_blocks());
    status->set_backend(worker.hello.backend());
    for (const v1::Adapter& adapter : worker.hello.adapters()) {
      status->add_adapters(adapter.name());
    }
    for (const scheduling::WorkerSnapshot& s : registry.snapshot().workers) {
      if (s.id != worker.id) continue;
      status->set_running(static_cast<uint32_t>(s.running));
      status->set_waiting(static_cast<uint32_t>(s.waiting));
      status->set_free_blocks(static_cast<uint32_t>(s.free_blocks));
      SetCosts(s, status->mutable_costs());
    }
  }
  for (const WorkerRegistry::Link& link : registry.Links(now)) {
    v1::LinkStatus* status = response.add_links();
    status->set_prefill_worker(name(link.prefill));
    status->set_decode_worker(name(link.decode));
    status->set_usable(link.why_not.empty());
    status->set_why_not(link.why_not);
    status->set_transport(link.transport);
    status->set_bandwidth_bytes(link.bandwidth_bytes);
    status->set_latency_seconds(absl::ToDoubleSeconds(link.latency));
  }
  return response;
}

}  // namespace baton::router
