// For definitions that stand before those of a shared library, and call them.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

// What a thread did before it released an address comes before what another
// does after it acquired the same (ThreadSanitizer's dynamic annotations).
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

namespace baton::testing {

// The library's function of this mangled name. Ends the process when there is
// none: another version of the library than the one this was written for.
template <typename Function>
Function* RealFunction(const char* name) {
  void* const function = dlsym(RTLD_NEXT, name);
  if (function == nullptr) {
    std::fprintf(stderr, "tests/support/tsan: no function %s\n", name);
    std::abort();
  }
  return reinterpret_cast<Function*>(function);
}

}  // namespace baton::testing

