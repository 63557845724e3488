// One call of the client library: its gRPC context with deadline and metadata,
// how it is cancelled, and how gRPC's end of it becomes a status. Private to
// client/.
#pragma once

#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/client.h"

namespace baton::client {

// InvalidArgument unless `text` may be the value of a metadata key: gRPC ends
// the process on a value that it cannot send. `what` names it in the message.
absl::Status CheckMetadataValue(const std::string& what,
                                const std::string& text);

// Made by one thread; then Cancel and Result may be called from any.
class Call final {
 public:
  Call(absl::Duration timeout, const std::string& api_key);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  grpc::ClientContext& context() { return context_; }

  // The caller does not want it any more. Does not wait.
  void Cancel();

  // How the call ended, given what gRPC says of it. REQUIRES: it has ended.
  absl::Status Result(const grpc::Status& status) const;

 private:
  grpc::ClientContext context_;
};

// The calls that a token ends.
class CancelToken::State final {
 public:
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

  // From now on Cancel() ends `call`; at once when it has come already.
  void Add(Call* call) ABSL_LOCKS_EXCLUDED(mu_);
  // Afterwards the call may go. Never on a thread of gRPC, which Cancel() may
  // have to wait for.
  void Remove(Call* call) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_set<Call*> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::client
