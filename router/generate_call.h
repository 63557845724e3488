// One Generate call on the gRPC side: hands its cancel to the loop and writes
// the loop's responses, bounded.
//
// Threads: gRPC's threads run the reactions, the loop thread calls Send and
// Finish. A client that reads slowly fills only its own bound; what is queued
// for it when its request ends is kept until `linger` is over.
#pragma once

#include <memory>
#include <optional>

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "common/rpc/pending_writes.h"
#include "router/client_stream.h"
#include "router/router_inbox.h"

namespace baton::router {

class GenerateCall final
    : public grpc::ServerWriteReactor<v1::GenerateResponse>,
      public ClientStream,
      public std::enable_shared_from_this<GenerateCall> {
 public:
  struct Options {
    // Responses that wait for the client, besides what the network buffers.
    size_t max_pending_responses = 1024;
    // How long a client may take to read the rest after its request ended.
    absl::Duration linger = absl::Seconds(10);
  };

  // gRPC and the loop share it. `inbox` outlives the call.
  static std::shared_ptr<GenerateCall> Make(
      const Options& options, RequestKey key,
      grpc::CallbackServerContext* context, RouterInbox* inbox);

  bool Send(v1::GenerateResponse response) override;
  void Finish(const absl::Status& status,
              std::optional<absl::Duration> retry_after) override;

 private:
  using Writes = rpc::PendingWrites<v1::GenerateResponse>;

  GenerateCall(const Options& options, RequestKey key,
               grpc::CallbackServerContext* context, RouterInbox* inbox);

  // Ends a call whose client does not read on.
  void StartLinger() ABSL_LOCKS_EXCLUDED(mu_);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  const Options options_;
  const RequestKey key_;
  grpc::CallbackServerContext* const context_;  // valid until OnDone
  RouterInbox* const inbox_;
  std::shared_ptr<GenerateCall> self_;  // gRPC's reference

  // Starting a write and finishing exclude each other.
  absl::Mutex mu_;
  Writes writes_ ABSL_GUARDED_BY(mu_);
  grpc::Status final_status_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<grpc::Alarm> linger_ ABSL_GUARDED_BY(mu_);
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace baton::router
