// The client API over gRPC: reads, checks and tokenizes on gRPC's threads, and
// hands the request to the loop. Never waits for the loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/clock.h"
#include "router/generate_call.h"
#include "router/router_inbox.h"
#include "router/router_metrics.h"
#include "router/served_model.h"
#include "router/serving_state.h"

namespace baton::router {

class InferenceService final : public v1::Inference::CallbackService {
 public:
  struct Options {
    // For clients that set no deadline, and at most for those that do.
    absl::Duration request_timeout = absl::Seconds(600);
    // The operator's cap; 0: none.
    int32_t max_output_tokens = 0;
    GenerateCall::Options call;
  };

  // Everything outlives the service and its server.
  // `name` is the router's.
  InferenceService(const Options& options, const std::string& name,
                   const ServedModel& model, const ServingState* state,
                   RouterInbox* inbox, RouterMetrics* metrics,
                   const Clock* clock);

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

 private:
  absl::Time DeadlineOf(const grpc::CallbackServerContext& context,
                        absl::Time now) const;

  const Options options_;
  const std::string name_;
  const ServedModel& model_;
  const ServingState* const state_;
  RouterInbox* const inbox_;
  RouterMetrics* const metrics_;
  const Clock* const clock_;
  std::atomic<RequestKey> last_key_{0};
};

}  // namespace baton::router
