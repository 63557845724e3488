#include "client/generate_stream.h"

#include <utility>

namespace baton::client {

absl::Status AnswerEnd::Result(const absl::Status& status) const {
  if (!wanted_) return absl::CancelledError("cancelled by the caller");
  if (status.ok() && !finished_) {
    return absl::DataLossError("the stream ended without an end");
  }
  return status;
}

GenerateCall::Stream::Stream(OnResponse on_response, client::OnDone on_done)
    : on_response_(std::move(on_response)), on_done_(std::move(on_done)) {}

GenerateCall::Stream::~Stream() {
  if (token_ != nullptr) token_->Remove(call_.get());
}

void GenerateCall::Stream::Start(v1::Inference::Stub& stub,
                                 const v1::GenerateRequest& request,
                                 std::unique_ptr<Call> call,
                                 std::shared_ptr<CancelToken::State> token) {
  call_ = std::move(call);
  token_ = std::move(token);
  token_->Add(call_.get());
  stub.async()->Generate(&call_->context(), &request, this);
  StartRead(&response_);
  // Sends the request: it is not read after this.
  StartCall();
}

void GenerateCall::Stream::Fail(const absl::Status& status) { End(status); }

void GenerateCall::Stream::Cancel() {
  if (call_ != nullptr) call_->Cancel();
}

absl::Status GenerateCall::Stream::Wait() {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&ended_));
  return result_;
}

void GenerateCall::Stream::OnReadDone(bool ok) {
  // OnDone follows by itself.
  if (!ok) return;
  if (end_.wanted()) {
    end_.Saw(response_);
    if (!on_response_(response_)) {
      end_.Unwanted();
      call_->Cancel();
    }
  }
  StartRead(&response_);
}

void GenerateCall::Stream::OnDone(const grpc::Status& status) {
  End(end_.Result(call_->Result(status)));
}

void GenerateCall::Stream::End(const absl::Status& status) {
  if (on_done_ != nullptr) on_done_(status);
  absl::MutexLock lock(&mu_);
  result_ = status;
  ended_ = true;
}

GenerateCall::GenerateCall(std::unique_ptr<Stream> stream)
    : stream_(std::move(stream)) {}

GenerateCall::~GenerateCall() {
  stream_->Cancel();
  stream_->Wait().IgnoreError();
}

void GenerateCall::Cancel() { stream_->Cancel(); }

absl::Status GenerateCall::Wait() { return stream_->Wait(); }

}  // namespace baton::client
