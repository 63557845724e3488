// FUZZ_TARGET(wire)(const uint8_t* data, size_t size) { ...; return 0; }
//
// defines the fuzz target of wire_fuzz.cc: libFuzzer's entry in builds with it,
// and otherwise a function that replay_main.cc finds by its name, as whole
// builds for tests make one program of all targets.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef BATON_LIBFUZZER

#define FUZZ_TARGET(name) extern "C" int LLVMFuzzerTestOneInput

#else

namespace baton::fuzz {

using FuzzTarget = int (*)(const uint8_t* data, size_t size);

// Before main only. True, for who calls it to set a variable.
bool AddFuzzTarget(const char* name, FuzzTarget target);

}  // namespace baton::fuzz

#define FUZZ_TARGET(name)                                     \
  static int name##_target(const uint8_t* data, size_t size); \
  [[maybe_unused]] static const bool name##_is_there =        \
      baton::fuzz::AddFuzzTarget(#name, name##_target);       \
  static int name##_target

#endif
