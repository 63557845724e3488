// A Generate call that nobody waits for, over gRPC's callback API. Private to
// client/.
//
// Life: made; Start() or Fail() once; gRPC's threads call the reactions, of
// which OnDone is the last; destroyed after Wait() has returned, and never on a
// thread of gRPC: that thread might be the last to hold the channel, whose end
// waits for it.
#pragma once

#include <memory>

#include <grpcpp/grpcpp.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/inference.grpc.pb.h"
#include "client/call.h"
#include "client/client.h"

namespace baton::client {

// What one stream of responses came to. One thread at a time.
class AnswerEnd final {
 public:
  void Saw(const v1::GenerateResponse& response) {
    if (response.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
      finished_ = true;
    }
  }
  // The caller wants no more.
  void Unwanted() { wanted_ = false; }
  bool wanted() const { return wanted_; }

  // `status`: what the call came to.
  absl::Status Result(const absl::Status& status) const;

 private:
  bool finished_ = false;
  bool wanted_ = true;
};

class GenerateCall::Stream final
    : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Stream(OnResponse on_response, client::OnDone on_done);
  ~Stream() override;

  void Start(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
             std::unique_ptr<Call> call,
             std::shared_ptr<CancelToken::State> token);
  // In place of Start: there is no call, and this is how it ended.
  void Fail(const absl::Status& status);

  // Any thread.
  void Cancel();
  absl::Status Wait() ABSL_LOCKS_EXCLUDED(mu_);

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  const OnResponse on_response_;
  const client::OnDone on_done_;
  std::unique_ptr<Call> call_;  // null after Fail, as is token_
  std::shared_ptr<CancelToken::State> token_;
  // The reactions' alone.
  v1::GenerateResponse response_;
  AnswerEnd end_;

  absl::Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status result_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::client
