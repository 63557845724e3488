#include "router/inference_service.h"

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "common/rpc/grpc_setup.h"

namespace baton::router {
namespace {

// The time that the client leaves; infinite when it set no deadline.
absl::Duration Timeout(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) {
    return absl::InfiniteDuration();
  }
  return absl::FromChrono(deadline - std::chrono::system_clock::now());
}

}  // namespace

InferenceService::InferenceService(const GenerateCall::Options& options,
                                   const std::string& name, FrontDoor* door,
                                   RouterInbox* inbox)
    : options_(options), name_(name), door_(door), inbox_(inbox) {}

std::string InferenceService::Metadata(
    const grpc::CallbackServerContext& context, const char* key) {
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find(key);
  if (it == metadata.end()) return "";
  return std::string(it->second.data(), it->second.size());
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const RequestKey key = door_->NewKey();
  const std::shared_ptr<GenerateCall> call =
      GenerateCall::Make(options_, key, context, inbox_);
  Start(*context, *request, key, call);
  return call.get();
}

void InferenceService::Start(const grpc::CallbackServerContext& context,
                             const v1::GenerateRequest& request, RequestKey key,
                             const std::shared_ptr<GenerateCall>& call) {
  const absl::Time now = door_->clock()->Now();
  const absl::Duration timeout = Timeout(context);
  absl::Duration retry_after = absl::ZeroDuration();
  const absl::StatusOr<FrontDoor::Admission> admission =
      door_->Admit(Metadata(context, "authorization"), &retry_after);
  if (!admission.ok()) {
    call->Finish(admission.status(), retry_after > absl::ZeroDuration()
                                         ? std::optional(retry_after)
                                         : std::nullopt);
    return;
  }
  absl::StatusOr<PreparedRequest> prepared =
      door_->Prepare(request, *admission, Metadata(context, "traceparent"));
  if (!prepared.ok()) {
    call->Finish(prepared.status(), std::nullopt);
    return;
  }
  door_->CountCall("grpc");
  const absl::Status entered =
      door_->Enter(key, *std::move(prepared), *admission, now, timeout, call);
  if (!entered.ok()) call->Finish(entered, absl::Seconds(1));
}

grpc::ServerUnaryReactor* InferenceService::GetModel(
    grpc::CallbackServerContext* context, const v1::GetModelRequest* request,
    v1::GetModelResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto rights = door_->RightsOf(Metadata(*context, "authorization"));
  if (!rights.ok()) {
    reactor->Finish(rpc::ToGrpc(rights.status()));
    return reactor;
  }
  const Serving serving = door_->serving();
  const ServedModel& model = door_->model();
  response->set_name(model.name);
  response->set_architecture(model.architecture);
  response->set_identity(serving.model_identity);
  response->set_vocab_size(static_cast<uint32_t>(model.vocab_size));
  response->set_max_context(static_cast<uint32_t>(door_->max_context()));
  response->set_block_size(static_cast<uint32_t>(serving.block_size));
  response->set_num_prefill_workers(
      static_cast<uint32_t>(serving.num_prefill_workers));
  response->set_num_decode_workers(
      static_cast<uint32_t>(serving.num_decode_workers));
  for (const auto& [name, identity] : *serving.adapters) {
    // By that, the model is meant.
    if (name != model.name && (*rights)->HasModel(name)) {
      response->add_adapters(name);
    }
  }
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::GetCluster(
    grpc::CallbackServerContext* context, const v1::GetClusterRequest* request,
    v1::GetClusterResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status known =
      door_->Authenticate(Metadata(*context, "authorization"));
  if (!known.ok()) {
    reactor->Finish(rpc::ToGrpc(known));
    return reactor;
  }
  door_->AskCluster([this, reactor,
                     response](absl::StatusOr<v1::GetClusterResponse> cluster) {
    if (cluster.ok()) {
      *response = *std::move(cluster);
      response->set_router_name(name_);
    }
    reactor->Finish(rpc::ToGrpc(cluster.status()));
  });
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::ExplainRequest(
    grpc::CallbackServerContext* context,
    const v1::ExplainRequestRequest* request,
    v1::ExplainRequestResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status known =
      door_->Authenticate(Metadata(*context, "authorization"));
  if (!known.ok()) {
    reactor->Finish(rpc::ToGrpc(known));
    return reactor;
  }
  door_->AskWhy(
      request->request_id(),
      [reactor, response](absl::StatusOr<v1::ExplainRequestResponse> why) {
        if (why.ok()) *response = *std::move(why);
        reactor->Finish(rpc::ToGrpc(why.status()));
      });
  return reactor;
}

}  // namespace baton::router
