#include "router/http/server_state.h"

#include "common/log.h"

namespace baton::router::http {

bool OpenConnections::Enter(int64_t max) {
  absl::MutexLock lock(&mu_);
  if (open_ >= max) return false;
  ++open_;
  return true;
}

void OpenConnections::Leave() {
  absl::MutexLock lock(&mu_);
  --open_;
  CHECK_GE(open_, 0);
}

bool OpenConnections::AwaitNone(absl::Duration patience) {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(this, &OpenConnections::None),
                              patience);
}

}  // namespace baton::router::http
