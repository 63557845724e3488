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
#include "common/tls/pem_files.h"
#include "router/access/access_control.h"
#include "router/cluster.h"
#include "router/discovery/worker_discovery.h"
#include "router/front_door.h"
#include "router/http/http_server.h"
#include "router/http/openai_api.h"
#include "router/inference_service.h"
#include "router/request_flow.h"
#include "router/router_inbox.h"
#include "router/router_loop.h"
#include "router/router_metrics.h"
#include "router/served_model.h"
#include "router/serving_state.h"
#include "router/tracing/span_exporter.h"
#include "scheduling/placement.h"
#include "scheduling/placement_policies.h"

namespace baton::router {

struct RouterOptions {
  std::string model_dir;
  std::string served_model_name;  // empty: the last part of model_dir
  std::string name = "router";
  std::string listen = "127.0.0.1:0";
  std::string metrics = "127.0.0.1:0";  // empty: not served
  // Names of metrics besides their own.
  metrics::Compat metrics_compat = metrics::Compat::kNone;
  // With the addresses of the workers.
  Cluster::Options cluster;
  // How those of them are looked up that are names.
  WorkerDiscovery::Options discovery;
  RequestFlow::Options flow;
  RouterLoop::Options loop;
  FrontDoor::Options door;
  GenerateCall::Options call;
  // One of scheduling::PlacementPolicyNames().
  std::string placement = scheduling::kDefaultPlacementPolicy;
  // The OpenAI API, health and the console; an empty address: not served.
  http::HttpServer::Options http;
  http::OpenAiApi::Options api;
  // Where spans go; without a url nowhere.
  tracing::SpanExporter::Options tracing;
  // Who may come in; empty: everyone.
  std::string api_keys_file;
  // What clients are shown, over gRPC and HTTP, and whether they must show a
  // certificate themselves; null: plain text.
  std::shared_ptr<tls::PemFiles> client_tls;
  // Between this router and its workers; null: plain text.
  std::shared_ptr<tls::PemFiles> cluster_tls;
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
  // "host:port"; empty when HTTP is not served.
  const std::string& http_address() const { return http_address_; }
  // The collector's URL; empty: traces go nowhere.
  const std::string& traces_to() const { return traces_to_; }

 private:
  RouterServer(const RouterOptions& options, ServedModel model,
               std::unique_ptr<const scheduling::PlacementPolicy> policy);

  absl::Status Listen(const RouterOptions& options);
  // Begins to look for workers, where names are given.
  absl::Status Discover(const RouterOptions& options);
  void SetHealth(bool serving);

  const ServedModel model_;
  const std::unique_ptr<const scheduling::PlacementPolicy> policy_;
  metrics::Metrics registry_;
  RouterMetrics metrics_;
  // Null without a collector.
  const std::unique_ptr<tracing::SpanExporter> spans_;
  RouterInbox inbox_;
  ServingState state_;
  const absl::StatusOr<std::unique_ptr<AccessControl>> access_;
  FrontDoor door_;
  InferenceService service_;
  http::OpenAiApi api_;
  rpc::RunningServer running_;
  Cluster cluster_;
  RequestFlow flow_;
  RouterLoop loop_;
  std::string address_;
  std::string metrics_address_;
  std::string http_address_;
  const std::string traces_to_;
  std::unique_ptr<WorkerDiscovery> discovery_;
  std::thread thread_;
  // Last: nothing comes in over HTTP once it is gone.
  std::unique_ptr<http::HttpServer> http_;
};

}  // namespace baton::router
