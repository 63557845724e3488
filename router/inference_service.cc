#include "router/inference_service.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <utility>

#include "common/rpc/grpc_setup.h"
#include "router/request_validation.h"

namespace baton::router {
namespace {

// Unpredictable enough for ids and seeds; each gRPC thread has its own.
uint64_t Draw() {
  thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return random();
}

}  // namespace

InferenceService::InferenceService(const Options& options,
                                   const std::string& name,
                                   const ServedModel& model,
                                   const ServingState* state,
                                   RouterInbox* inbox, RouterMetrics* metrics,
                                   const Clock* clock)
    : options_(options),
      name_(name),
      model_(model),
      state_(state),
      inbox_(inbox),
      metrics_(metrics),
      clock_(clock) {}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const absl::Time now = clock_->Now();
  const RequestKey key = ++last_key_;
  const std::shared_ptr<GenerateCall> call =
      GenerateCall::Make(options_.call, key, context, inbox_);
  const Serving serving = state_->Get();
  if (serving.draining) {
    metrics_->Rejected("draining");
    call->Finish(absl::UnavailableError("the router is shutting down"),
                 std::nullopt);
    return call.get();
  }
  const RequestLimits limits = {
      .max_context =
          serving.max_context > 0 ? serving.max_context : model_.max_context,
      .max_output_tokens = options_.max_output_tokens};
  absl::StatusOr<scheduling::RequestSpec> spec =
      MakeRequestSpec(*request, model_, limits, Draw);
  if (!spec.ok()) {
    metrics_->Rejected("invalid");
    call->Finish(spec.status(), std::nullopt);
    return call.get();
  }
  auto incoming = std::make_unique<IncomingRequest>();
  incoming->key = key;
  incoming->spec = *std::move(spec);
  incoming->received_at = now;
  incoming->deadline = DeadlineOf(*context, now);
  incoming->stream = call;
  if (!inbox_->TryPush(RouterEvent(std::move(incoming)))) {
    metrics_->Rejected("inbox_full");
    call->Finish(absl::ResourceExhaustedError("the router is overloaded"),
                 absl::Seconds(1));
  }
  return call.get();
}

absl::Time InferenceService::DeadlineOf(
    const grpc::CallbackServerContext& context, absl::Time now) const {
  const absl::Time longest = now + options_.request_timeout;
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return longest;
  const absl::Duration left =
      absl::FromChrono(deadline - std::chrono::system_clock::now());
  return std::min(longest, now + left);
}

grpc::ServerUnaryReactor* InferenceService::GetModel(
    grpc::CallbackServerContext* context, const v1::GetModelRequest* request,
    v1::GetModelResponse* response) {
  const Serving serving = state_->Get();
  response->set_name(model_.name);
  response->set_architecture(model_.architecture);
  response->set_identity(serving.model_identity);
  response->set_vocab_size(static_cast<uint32_t>(model_.vocab_size));
  response->set_max_context(static_cast<uint32_t>(
      serving.max_context > 0 ? serving.max_context : model_.max_context));
  response->set_block_size(static_cast<uint32_t>(serving.block_size));
  response->set_num_prefill_workers(
      static_cast<uint32_t>(serving.num_prefill_workers));
  response->set_num_decode_workers(
      static_cast<uint32_t>(serving.num_decode_workers));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::GetCluster(
    grpc::CallbackServerContext* context, const v1::GetClusterRequest* request,
    v1::GetClusterResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  ClusterQuery query;
  query.answer = [this, reactor,
                  response](absl::StatusOr<v1::GetClusterResponse> cluster) {
    if (cluster.ok()) {
      *response = *std::move(cluster);
      response->set_router_name(name_);
    }
    reactor->Finish(rpc::ToGrpc(cluster.status()));
  };
  if (!inbox_->TryPush(RouterEvent(std::move(query)))) {
    reactor->Finish(
        grpc::Status(grpc::UNAVAILABLE, "the router is overloaded or ending"));
  }
  return reactor;
}

}  // namespace baton::router
