// The client API over gRPC: on gRPC's threads, through the front door to the
// loop. Never waits for the loop.
#pragma once

#include <string>

#include "baton/v1/inference.grpc.pb.h"
#include "router/front_door.h"
#include "router/generate_call.h"
#include "router/router_inbox.h"

namespace baton::router {

class InferenceService final : public v1::Inference::CallbackService {
 public:
  // Everything outlives the service and its server. `name` is the router's.
  InferenceService(const GenerateCall::Options& options,
                   const std::string& name, FrontDoor* door,
                   RouterInbox* inbox);

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context,
      const v1::GenerateRequest* request) override;

  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;

  grpc::ServerUnaryReactor* GetCluster(
      grpc::CallbackServerContext* context,
      const v1::GetClusterRequest* request,
      v1::GetClusterResponse* response) override;

  grpc::ServerUnaryReactor* ExplainRequest(
      grpc::CallbackServerContext* context,
      const v1::ExplainRequestRequest* request,
      v1::ExplainRequestResponse* response) override;

 private:
  // What the call's metadata say; the first where a key comes twice.
  static std::string Metadata(const grpc::CallbackServerContext& context,
                              const char* key);

  void Start(const grpc::CallbackServerContext& context,
             const v1::GenerateRequest& request, RequestKey key,
             const std::shared_ptr<GenerateCall>& call);

  const GenerateCall::Options options_;
  const std::string name_;
  FrontDoor* const door_;
  RouterInbox* const inbox_;
};

}  // namespace baton::router
