#include "router/router_server.h"

#include <utility>

#include "common/log.h"
#include "common/process/process.h"
#include "common/status_macros.h"
#include "router/grpc_worker_link.h"
#include "scheduling/placement_policies.h"

namespace baton::router {
namespace {

// New requests that wait for the loop's next turn.
constexpr size_t kInboxCapacity = 4096;

// After the loop has ended every request, what is queued for slow clients.
constexpr absl::Duration kShutdownWait = absl::Seconds(2);

v1::RouterHello Hello(const std::string& name) {
  v1::RouterHello hello;
  hello.set_router_name(name);
  hello.set_incarnation(static_cast<uint64_t>(process::DrawIncarnation()));
  return hello;
}

FrontDoor::Options DoorOptions(const RouterOptions& options) {
  FrontDoor::Options door = options.door;
  door.name_prefixes = options.cluster.prefixes.enabled;
  return door;
}

http::OpenAiApi::Options ApiOptions(const RouterOptions& options) {
  http::OpenAiApi::Options api = options.api;
  api.name = options.name;
  return api;
}

}  // namespace

RouterServer::RouterServer(
    const RouterOptions& options, ServedModel model,
    std::unique_ptr<const scheduling::PlacementPolicy> policy)
    : model_(std::move(model)),
      policy_(std::move(policy)),
      registry_({{"model_name", model_.name},
                 {"role", "router"},
                 {"worker", options.name}}),
      metrics_(&registry_, options.flow.targets),
      spans_(options.tracing.otlp.url.empty()
                 ? nullptr
                 : std::make_unique<tracing::SpanExporter>(options.tracing,
                                                           &registry_)),
      inbox_(kInboxCapacity),
      access_(AccessControl::Open(options.api_keys_file, Clock::Monotonic(),
                                  &registry_)),
      door_(DoorOptions(options), model_, &state_,
            access_.ok() ? access_->get() : nullptr, &inbox_, &metrics_,
            Clock::Monotonic()),
      service_(options.call, options.name, &door_, &inbox_),
      api_(ApiOptions(options), &door_, [this] { return registry_.Text(); }),
      cluster_(options.cluster, model_, Hello(options.name),
               GrpcWorkerLinks(options.cluster_tls), &inbox_, &metrics_,
               Clock::Monotonic()->Now()),
      flow_(options.flow, model_, *policy_, &cluster_, &metrics_,
            Clock::Monotonic(), spans_.get()),
      loop_(
          options.loop, &inbox_, &cluster_, &flow_, &state_,
          [this](const Serving& serving) { SetHealth(serving.serving); },
          Clock::Monotonic()),
      traces_to_(options.tracing.otlp.url) {}

absl::StatusOr<std::unique_ptr<RouterServer>> RouterServer::Start(
    const RouterOptions& options) {
  BATON_ASSIGN_OR_RETURN(
      ServedModel model,
      LoadServedModel(options.model_dir, options.served_model_name));
  for (const auto* addresses : {&options.cluster.prefill_addresses,
                                &options.cluster.decode_addresses}) {
    for (const std::string& address : *addresses) {
      if (!IsDnsTarget(address)) continue;
      BATON_RETURN_IF_ERROR(ParseDnsTarget(address).status());
    }
  }
  BATON_ASSIGN_OR_RETURN(
      std::unique_ptr<const scheduling::PlacementPolicy> policy,
      scheduling::MakePlacementPolicy(options.placement));
  std::unique_ptr<RouterServer> router(
      new RouterServer(options, std::move(model), std::move(policy)));
  router->metrics_.SetMaxWaiting(options.flow.line.max_requests);
  BATON_RETURN_IF_ERROR(router->access_.status());
  BATON_RETURN_IF_ERROR(router->Listen(options));
  BATON_RETURN_IF_ERROR(router->Discover(options));
  router->thread_ = std::thread([loop = &router->loop_] { loop->Run(); });
  return router;
}

absl::Status RouterServer::Discover(const RouterOptions& options) {
  BATON_ASSIGN_OR_RETURN(
      discovery_,
      WorkerDiscovery::Start(
          options.discovery, cluster_.Sources(), [this](FoundWorkers found) {
            // Of what a busy loop has no room for, the next
            // look-up tells again.
            if (!inbox_.TryPush(RouterEvent(std::move(found)))) {
              LOG_EVERY_N(WARNING, 100)
                  << "the router is too busy to hear of workers";
            }
          }));
  return absl::OkStatus();
}

absl::Status RouterServer::Listen(const RouterOptions& options) {
  registry_.AddNames(options.metrics_compat);
  if (!options.metrics.empty()) {
    BATON_ASSIGN_OR_RETURN(const int metrics_port,
                           registry_.Serve(options.metrics));
    metrics_address_ = rpc::WithPort(options.metrics, metrics_port);
  }
  state_.Beat(Clock::Monotonic()->Now());
  if (!options.http.listen.empty()) {
    http::HttpServer::Options http = options.http;
    http.metrics = &registry_;
    http.tls = options.client_tls;
    BATON_ASSIGN_OR_RETURN(http_, http::HttpServer::Start(http, &api_));
    http_address_ = http_->address();
    LOG_IF(WARNING,
           options.client_tls == nullptr && !rpc::IsLoopback(http_address_))
        << "HTTP on " << http_address_
        << " is plain text and can be reached from other machines";
  }
  // Last: a gRPC server whose calls nobody answers cannot be ended.
  BATON_ASSIGN_OR_RETURN(
      running_, rpc::StartServer(options.listen, {&service_},
                                 options.client_tls, rpc::Callers::kClients));
  SetHealth(false);
  address_ = rpc::WithPort(options.listen, running_.port);
  return absl::OkStatus();
}

void RouterServer::SetHealth(bool serving) {
  grpc::HealthCheckServiceInterface* health =
      running_.server->GetHealthCheckService();
  health->SetServingStatus("", serving);
  health->SetServingStatus("baton.v1.Inference", serving);
}

RouterServer::~RouterServer() { Drain(); }

void RouterServer::Drain() {
  discovery_.reset();
  if (thread_.joinable()) {
    loop_.RequestDrain();
    thread_.join();
  }
  if (http_ != nullptr) http_->Drain(kShutdownWait);
  // No request is left that could have spans.
  if (spans_ != nullptr) spans_->Stop();
  if (running_.server == nullptr) return;
  running_.server->Shutdown(absl::ToChronoTime(absl::Now() + kShutdownWait));
  running_.server->Wait();
}

}  // namespace baton::router
