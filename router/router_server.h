// The whole router, wired together: model, services, loop and workers. What
// main runs, and what tests run in their own process.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/bounded_queue.h"
#include "common/metrics/metrics.h"
#include "common/rpc/grpc_setup.h"
#include "router/cluster.h"
#include "router/inference_service.h"
#include "router/request_flow.h"
#include "router/router_inbox.h"
#include "router/router_loop.h"
#include "router/router_metrics.h"
#include "router/served_model.h"
#include "router/serving_state.h"
#include "scheduling/placement.h"

namespace baton::router {

struct RouterOptions {
  std::string model_dir;
  std::string served_model_name;  // empty: the last part of model_dir
  std::string name = "router";
  std::string listen = "127.0.0.1:0";
  std::string metrics = "127.0.0.1:0";  // empty: not served
  // With the addresses of the workers.
  Cluster::Options cluster;
  RequestFlow::Options flow;
  RouterLoop::Options loop;
  InferenceService::Options service;
};

class RouterServer final {
 public:
  // Listens and runs until Drain. Errors name the file, field or address.
  static absl::StatusOr<std::unique_ptr<RouterServer>> Start(
      const RouterOptions& options);

  // Drains.
  ~RouterServer();

  // Stops admitting, lets running requests go on within the bound, ends the
  // rest, and stops listening. Blocks until then. One thread, once or more.
  void Drain();

  const std::string& address() const { return address_; }
  const std::string& metrics_address() const { return metrics_address_; }

 private:
  RouterServer(const RouterOptions& options, ServedModel model);

  absl::Status Listen(const RouterOptions& options);
  void SetHealth(bool serving);

  const ServedModel model_;
  const scheduling::LeastLoadPlacement policy_;
  metrics::Metrics registry_;
  RouterMetrics metrics_;
  RouterInbox inbox_;
  ServingState state_;
  InferenceService service_;
  rpc::RunningServer running_;
  Cluster cluster_;
  RequestFlow flow_;
  RouterLoop loop_;
  std::string address_;
  std::string metrics_address_;
  std::thread thread_;
};

}  // namespace baton::router
