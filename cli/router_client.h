// A connection to a router, with errors that tell the user what to do.
// The channel and stub may be used from any thread.
#pragma once

#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "baton/v1/inference.grpc.pb.h"

namespace baton::cli {

class RouterClient final {
 public:
  // Waits until connected. Unavailable at once when nobody listens there, or
  // after `timeout`; InvalidArgument when it is not an address.
  static absl::StatusOr<RouterClient> Connect(const std::string& address,
                                              absl::Duration timeout);

  v1::Inference::Stub& stub() { return *stub_; }

  absl::StatusOr<v1::GetModelResponse> GetModel(absl::Duration timeout);
  absl::StatusOr<v1::GetClusterResponse> GetCluster(absl::Duration timeout);

 private:
  explicit RouterClient(std::shared_ptr<grpc::Channel> channel);

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

// One line for a person: "UNAVAILABLE: no decode worker is connected", with
// the router's "retry-after-ms" when it gave one.
std::string DescribeError(const grpc::Status& status,
                          const grpc::ClientContext& context);

}  // namespace baton::cli
