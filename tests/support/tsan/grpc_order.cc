// Makes known to ThreadSanitizer what gRPC's callback interface orders: Debian's
// gRPC is not built with it, so that TSan would see no order between who starts
// an operation and the callback that ends it. Linked into each program of a TSan
// build; these definitions come before those of the shared library, which they
// call. Nothing else is ordered here, so that a race between two callbacks, or
// between a callback and another thread, is still one; but for what runs on
// gRPC's executor, of which all calls share one order.
#include <grpc/grpc.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "tests/support/tsan/real_function.h"

namespace {

using baton::testing::RealFunction;

// Services are made before a server starts, and called afterwards.
char server_started;
// What has to happen on another thread (OnDone, OnCancel) waits for one of its
// threads.
char given_to_executor;

}  // namespace

extern "C" {

void grpc_server_start(grpc_server* server) {
  static auto* const real =
      RealFunction<decltype(grpc_server_start)>("grpc_server_start");
  __tsan_release(&server_started);
  real(server);
}

// An operation starts: `tag` is what its completion will name.
grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops,
                                      std::size_t count, void* tag,
                                      void* reserved) {
  static auto* const real =
      RealFunction<decltype(grpc_call_start_batch)>("grpc_call_start_batch");
  __tsan_release(tag);
  return real(call, ops, count, tag, reserved);
}

// An operation has ended: gRPC's C++ library runs its callback on this thread.
grpc_event grpc_completion_queue_next(grpc_completion_queue* queue,
                                      gpr_timespec deadline, void* reserved) {
  static auto* const real = RealFunction<decltype(grpc_completion_queue_next)>(
      "grpc_completion_queue_next");
  const grpc_event event = real(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) {
    __tsan_acquire(event.tag);
    __tsan_acquire(&server_started);
  }
  return event;
}

}  // extern "C"

// gRPC's own, which no header of it has; of gRPC 1.51.
struct grpc_closure;
struct grpc_closure_list {
  grpc_closure* head;
  grpc_closure* tail;
};

namespace grpc_core {

enum class ExecutorType;
enum class ExecutorJobType;

class Executor {
 public:
  static void Run(grpc_closure* closure, absl::Status error, ExecutorType type,
                  ExecutorJobType job_type);
  static std::size_t RunClosures(const char* name, grpc_closure_list list);
};

void Executor::Run(grpc_closure* closure, absl::Status error, ExecutorType type,
                   ExecutorJobType job_type) {
  static auto* const real = RealFunction<decltype(Run)>(
      "_ZN9grpc_core8Executor3RunEP12grpc_closureN4absl7debian36StatusENS_"
      "12ExecutorTypeENS_15ExecutorJobTypeE");
  __tsan_release(&given_to_executor);
  real(closure, std::move(error), type, job_type);
}

std::size_t Executor::RunClosures(const char* name, grpc_closure_list list) {
  static auto* const real = RealFunction<decltype(RunClosures)>(
      "_ZN9grpc_core8Executor11RunClosuresEPKc17grpc_closure_list");
  __tsan_acquire(&given_to_executor);
  return real(name, list);
}

}  // namespace grpc_core

// Two numbers of a call count down until OnCancel may run, and until OnDone may;
// now in the library, now in functions of its headers, which TSan sees. (Both are
// private: this file is compiled without access control.)
namespace grpc::internal {
namespace {

// `reactor`, whose OnCancel comes before the OnDone of `call`.
class Cancelled final : public ServerReactor {
 public:
  Cancelled(ServerCallbackCall* call, ServerReactor* reactor)
      : call_(call), reactor_(reactor) {}

  void OnDone() override {}  // the call knows its reactor
  void OnCancel() override {
    reactor_->OnCancel();
    __tsan_release(&call_->callbacks_outstanding_);
    delete this;
  }
  bool InternalInlineable() override { return reactor_->InternalInlineable(); }

 private:
  ServerCallbackCall* const call_;
  ServerReactor* const reactor_;
};

}  // namespace

void ServerCallbackCall::CallOnCancel(ServerReactor* reactor) {
  static auto* const real =
      RealFunction<void(ServerCallbackCall*, ServerReactor*)>(
          "_ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_"
          "13ServerReactorE");
  __tsan_acquire(&on_cancel_conditions_remaining_);
  real(this, new Cancelled(this, reactor));
}

void ServerCallbackCall::ScheduleOnDone(bool inline_ondone) {
  static auto* const real = RealFunction<void(ServerCallbackCall*, bool)>(
      "_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb");
  __tsan_acquire(&callbacks_outstanding_);
  real(this, inline_ondone);
}

}  // namespace grpc::internal
