#include "cli/router_client.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/host_port.h"
#include "common/rpc/grpc_setup.h"
#include "common/status_macros.h"

namespace baton::cli {

RouterClient::RouterClient(std::shared_ptr<grpc::Channel> channel)
    : channel_(std::move(channel)), stub_(v1::Inference::NewStub(channel_)) {}

absl::StatusOr<RouterClient> RouterClient::Connect(const std::string& address,
                                                   absl::Duration timeout) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) return parsed.status();
  std::shared_ptr<grpc::Channel> channel = rpc::MakeControlChannel(address);
  const auto deadline =
      std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout);
  grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
  bool in_time = true;
  while (in_time && state != GRPC_CHANNEL_READY &&
         state != GRPC_CHANNEL_TRANSIENT_FAILURE) {
    in_time = channel->WaitForStateChange(state, deadline);
    state = channel->GetState(/*try_to_connect=*/true);
  }
  if (state != GRPC_CHANNEL_READY) {
    return absl::UnavailableError(absl::StrCat("cannot connect to ", address,
                                               ": is `baton up` running?"));
  }
  return RouterClient(std::move(channel));
}

absl::StatusOr<v1::GetModelResponse> RouterClient::GetModel(
    absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoMilliseconds(timeout));
  v1::GetModelResponse response;
  BATON_RETURN_IF_ERROR(
      rpc::FromGrpc(stub_->GetModel(&context, {}, &response)));
  return response;
}

absl::StatusOr<v1::GetClusterResponse> RouterClient::GetCluster(
    absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoMilliseconds(timeout));
  v1::GetClusterResponse response;
  BATON_RETURN_IF_ERROR(
      rpc::FromGrpc(stub_->GetCluster(&context, {}, &response)));
  return response;
}

std::string DescribeError(const grpc::Status& status,
                          const grpc::ClientContext& context) {
  std::string text = rpc::FromGrpc(status).ToString();
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto retry = trailers.find("retry-after-ms");
  if (retry != trailers.end()) {
    absl::StrAppend(
        &text, " (come back in ",
        absl::string_view(retry->second.data(), retry->second.size()), " ms)");
  }
  return text;
}

}  // namespace baton::cli
