#include "router/generate_call.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/rpc/grpc_setup.h"

namespace baton::router {

std::shared_ptr<GenerateCall> GenerateCall::Make(
    const Options& options, RequestKey key,
    grpc::CallbackServerContext* context, RouterInbox* inbox) {
  std::shared_ptr<GenerateCall> call(
      new GenerateCall(options, key, context, inbox));
  call->self_ = call;
  return call;
}

GenerateCall::GenerateCall(const Options& options, RequestKey key,
                           grpc::CallbackServerContext* context,
                           RouterInbox* inbox)
    : options_(options),
      key_(key),
      context_(context),
      inbox_(inbox),
      writes_(options.max_pending_responses) {}

bool GenerateCall::Send(v1::GenerateResponse response) {
  absl::MutexLock lock(&mu_);
  switch (writes_.Push(std::move(response))) {
    case Writes::PushResult::kStart:
      StartWrite(writes_.InFlight());
      return true;
    case Writes::PushResult::kQueued:
      return true;
    case Writes::PushResult::kFull:
    case Writes::PushResult::kClosed:
      return false;
  }
  LOG(FATAL) << "not a PushResult";
}

void GenerateCall::Finish(const absl::Status& status,
                          std::optional<absl::Duration> retry_after) {
  {
    absl::MutexLock lock(&mu_);
    if (retry_after.has_value()) {
      context_->AddTrailingMetadata(
          "retry-after-ms",
          absl::StrCat(absl::ToInt64Milliseconds(*retry_after)));
    }
    final_status_ = rpc::ToGrpc(status);
    if (writes_.Close()) {
      ServerWriteReactor::Finish(final_status_);
      return;
    }
  }
  // The client has yet to read; the write that empties the queue finishes.
  StartLinger();
}

void GenerateCall::StartLinger() {
  // Without the lock: making and destroying an alarm takes gRPC's own global
  // one, under which gRPC may run the alarm's function.
  const auto alarm = std::make_shared<grpc::Alarm>();
  alarm->Set(absl::ToChronoTime(absl::Now() + options_.linger),
             [call = shared_from_this()](bool expired) {
               absl::MutexLock lock(&call->mu_);
               if (expired && !call->done_) call->context_->TryCancel();
             });
  absl::MutexLock lock(&mu_);
  if (!done_) linger_ = alarm;
}

void GenerateCall::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  const v1::GenerateResponse* next = writes_.Done();
  // The client is gone: OnCancel says so, and the rest is of no use.
  while (!ok && next != nullptr) next = writes_.Done();
  if (next != nullptr) {
    StartWrite(next);
  } else if (writes_.closed()) {
    ServerWriteReactor::Finish(final_status_);
  }
}

void GenerateCall::OnCancel() {
  inbox_->PushUnbounded(RouterEvent(ClientGone{key_}));
}

void GenerateCall::OnDone() {
  std::shared_ptr<GenerateCall> self;
  std::shared_ptr<grpc::Alarm> linger;
  {
    absl::MutexLock lock(&mu_);
    done_ = true;
    self = std::move(self_);
    linger = std::move(linger_);
  }
  // Destroying the alarm cancels it; its callback holds a reference of its own.
}

}  // namespace baton::router
