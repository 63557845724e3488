// Where a piece of code stands, and how another one goes on in its place. For
// fibers.cc.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace baton::engine::cuda::emulated {

struct FiberContext {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
};

// `main` is to begin on the stack, and never returns.
void PrepareContext(FiberContext& context, char* stack, size_t bytes,
                    void (*main)());

// Leaves where `from` says, goes on where `to` stands; returns when somebody
// goes on in `from`.
void SwitchContext(FiberContext& from, FiberContext& to);

}  // namespace baton::engine::cuda::emulated
