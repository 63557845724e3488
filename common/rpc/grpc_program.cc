#include "common/rpc/grpc_program.h"

#include <grpc/grpc.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/clock.h"
#include "common/tls/openssl_setup.h"

namespace baton::rpc {

GrpcProgram::GrpcProgram() {
  tls::KeepOpenSslAtExit();
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

GrpcProgram::~GrpcProgram() { AwaitGrpcEnd(absl::Seconds(3)); }

bool AwaitGrpcEnd(absl::Duration patience) {
  // gRPC has a lock for this, and nothing that tells of it: it is asked.
  const absl::Time deadline = Clock::Monotonic()->Now() + patience;
  const absl::Notification never;
  while (grpc_is_initialized() != 0) {
    if (Clock::Monotonic()->Now() >= deadline) return false;
    never.WaitForNotificationWithTimeout(absl::Milliseconds(1));
  }
  return true;
}

}  // namespace baton::rpc
