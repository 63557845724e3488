// Where a piece of code stands, and how another one goes on in its place. For
// fibers.cc.
#pragma once

#include <ucontext.h>

#include <cstddef>

namespace baton::engine::cuda::emulated {

struct FiberContext {
  void* stack_pointer = nullptr;
  ucontext_t context;  // where no faster way is known
};

// `main` is to begin on the stack, and never returns.
void PrepareContext(FiberContext& context, char* stack, size_t bytes,
                    void (*main)());

// Leaves where `from` says, goes on where `to` stands; returns when somebody
// goes on in `from`.
void SwitchContext(FiberContext& from, FiberContext& to);

}  // namespace baton::engine::cuda::emulated
