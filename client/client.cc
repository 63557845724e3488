#include "client/client.h"

#include <utility>

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "baton/v1/inference.grpc.pb.h"
#include "client/call.h"
#include "client/channel.h"
#include "client/generate_stream.h"
#include "common/status_macros.h"

namespace baton::client {
namespace {

// For asking why there is no connection.
constexpr absl::Duration kReasonTimeout = absl::Milliseconds(500);

// What gRPC says of a connection that failed, without its preamble.
std::string Reason(const grpc::Status& status) {
  const std::string& text = status.error_message();
  constexpr absl::string_view kBefore = "last error: ";
  const size_t at = text.find(std::string(kBefore));
  return at == std::string::npos ? text : text.substr(at + kBefore.size());
}

}  // namespace

class Client::Connection final {
 public:
  Connection(const ClientOptions& options,
             std::shared_ptr<grpc::Channel> channel)
      : api_key_(options.api_key),
        channel_(std::move(channel)),
        stub_(v1::Inference::NewStub(channel_)) {}

  v1::Inference::Stub& stub() const { return *stub_; }
  grpc::Channel& channel() const { return *channel_; }

  std::unique_ptr<Call> NewCall(absl::Duration timeout) const {
    return std::make_unique<Call>(timeout, api_key_);
  }

  // Of a call that streams; InvalidArgument when an option cannot be sent.
  absl::StatusOr<std::unique_ptr<Call>> NewGenerate(
      const GenerateOptions& options) const {
    BATON_RETURN_IF_ERROR(
        CheckMetadataValue("traceparent", options.traceparent));
    std::unique_ptr<Call> call = NewCall(options.timeout);
    if (!options.traceparent.empty()) {
      call->context().AddMetadata("traceparent", options.traceparent);
    }
    return call;
  }

 private:
  const std::string api_key_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Inference::Stub> stub_;
};

Client::Client(std::unique_ptr<const Connection> connection)
    : connection_(std::move(connection)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(
    const ClientOptions& options) {
  BATON_RETURN_IF_ERROR(CheckMetadataValue("api_key", options.api_key));
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel,
                         MakeChannel(options));
  auto connection =
      std::make_unique<const Connection>(options, std::move(channel));
  const absl::Status connected =
      AwaitConnected(connection->channel(), options.connect_timeout);
  if (!connected.ok()) {
    // A channel does not tell why it failed; a call on it does. Without the
    // key: nobody is to get it before the connection is what was asked for.
    Call call(kReasonTimeout, /*api_key=*/"");
    v1::GetModelResponse unused;
    const grpc::Status why =
        connection->stub().GetModel(&call.context(), {}, &unused);
    return absl::UnavailableError(absl::StrCat(
        "cannot connect to ", options.address, ": ",
        why.error_code() == grpc::UNAVAILABLE ? Reason(why)
                                              : connected.message()));
  }
  return std::unique_ptr<Client>(new Client(std::move(connection)));
}

absl::Status Client::Generate(
    const v1::GenerateRequest& request, const GenerateOptions& options,
    absl::FunctionRef<bool(const v1::GenerateResponse&)> on_response) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Call> call,
                         connection_->NewGenerate(options));
  options.cancel.state()->Add(call.get());
  AnswerEnd end;
  const auto reader = connection_->stub().Generate(&call->context(), request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (!end.wanted()) continue;
    end.Saw(response);
    if (!on_response(response)) {
      end.Unwanted();
      call->Cancel();
    }
  }
  const grpc::Status status = reader->Finish();
  options.cancel.state()->Remove(call.get());
  return end.Result(call->Result(status));
}

std::unique_ptr<GenerateCall> Client::StartGenerate(
    const v1::GenerateRequest& request, const GenerateOptions& options,
    OnResponse on_response, OnDone on_done) {
  auto stream = std::make_unique<GenerateCall::Stream>(std::move(on_response),
                                                       std::move(on_done));
  absl::StatusOr<std::unique_ptr<Call>> call =
      connection_->NewGenerate(options);
  if (call.ok()) {
    stream->Start(connection_->stub(), request, *std::move(call),
                  options.cancel.state());
  } else {
    stream->Fail(call.status());
  }
  return std::unique_ptr<GenerateCall>(new GenerateCall(std::move(stream)));
}

absl::StatusOr<v1::GetModelResponse> Client::GetModel(absl::Duration timeout) {
  const std::unique_ptr<Call> call = connection_->NewCall(timeout);
  v1::GetModelResponse response;
  BATON_RETURN_IF_ERROR(call->Result(
      connection_->stub().GetModel(&call->context(), {}, &response)));
  return response;
}

absl::StatusOr<v1::GetClusterResponse> Client::GetCluster(
    absl::Duration timeout) {
  const std::unique_ptr<Call> call = connection_->NewCall(timeout);
  v1::GetClusterResponse response;
  BATON_RETURN_IF_ERROR(call->Result(
      connection_->stub().GetCluster(&call->context(), {}, &response)));
  return response;
}

absl::StatusOr<v1::ExplainRequestResponse> Client::Explain(
    const std::string& request_id, absl::Duration timeout) {
  const std::unique_ptr<Call> call = connection_->NewCall(timeout);
  v1::ExplainRequestRequest request;
  request.set_request_id(request_id);
  v1::ExplainRequestResponse response;
  BATON_RETURN_IF_ERROR(call->Result(connection_->stub().ExplainRequest(
      &call->context(), request, &response)));
  return response;
}

}  // namespace baton::client
