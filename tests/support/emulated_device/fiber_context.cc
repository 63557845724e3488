#include "tests/support/emulated_device/fiber_context.h"

#include <cstdint>
#include <cstring>

namespace baton::engine::cuda::emulated {

#if defined(__x86_64__)
extern "C" void baton_fiber_switch(void** save, void* load);
asm(R"(
.text
.type baton_fiber_switch,@function
baton_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size baton_fiber_switch,.-baton_fiber_switch
)");

void PrepareContext(FiberContext& context, char* stack, size_t bytes,
                    void (*main)()) {
  char* top = stack + bytes;
  top -= reinterpret_cast<uintptr_t>(top) % 16;
  void** at = reinterpret_cast<void**>(top) - 2;
  *at = reinterpret_cast<void*>(main);  // where the switch returns to
  context.stack_pointer = at - 6;       // six saved registers
  std::memset(context.stack_pointer, 0, 6 * sizeof(void*));
}

void SwitchContext(FiberContext& from, FiberContext& to) {
  baton_fiber_switch(&from.stack_pointer, to.stack_pointer);
}
#else
void PrepareContext(FiberContext& context, char* stack, size_t bytes,
                    void (*main)()) {
  getcontext(&context.context);
  context.context.uc_stack.ss_sp = stack;
  context.context.uc_stack.ss_size = bytes;
  context.context.uc_link = nullptr;
  makecontext(&context.context, main, 0);
}

void SwitchContext(FiberContext& from, FiberContext& to) {
  swapcontext(&from.context, &to.context);
}
#endif

}  // namespace baton::engine::cuda::emulated
