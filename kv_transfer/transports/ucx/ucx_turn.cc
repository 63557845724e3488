#include "kv_transfer/transports/ucx/ucx_turn.h"

#include "absl/base/attributes.h"
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace baton::kv_transfer {
namespace {

// Shared by those who have a turn.
ABSL_CONST_INIT absl::Mutex sockets_mu(absl::kConstInit);

}  // namespace

// A turn is held from function to function.
UcxTurn::UcxTurn() ABSL_NO_THREAD_SAFETY_ANALYSIS { sockets_mu.ReaderLock(); }
UcxTurn::~UcxTurn() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  sockets_mu.ReaderUnlock();
}

void UcxTurn::Pause() {
  Rest([] {});
}

void UcxTurn::Rest(absl::FunctionRef<void()> wait)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  sockets_mu.ReaderUnlock();
  wait();
  sockets_mu.ReaderLock();
}

void UcxTurn::MakeSockets(absl::FunctionRef<void()> make) {
  Rest([make] { MakeUcxSockets(make); });
}

void MakeUcxSockets(absl::FunctionRef<void()> make) {
  absl::MutexLock lock(&sockets_mu);
  make();
}

}  // namespace baton::kv_transfer
