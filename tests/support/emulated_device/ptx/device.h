// Runs kernels as the compiler made them (PTX), where the environment variable
// BATON_PTX names the library that nvcc put them in, or a file with their text:
// the same tests, but of what a GPU would be given, inline assembly included.
// With it: BATON_PTX_RACES looks for accesses that nothing orders (races.h),
// BATON_PTX_EXECUTED names a file for what was executed, and BATON_PTX_FAULT a
// line of the text that is left out. What a kernel loads before it has waited
// for those before it is looked at by fibers.h alone; what ptxas makes of the
// text, by nobody.
//
// Used by one thread.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

#include "engine/cuda/launch_shape.h"

namespace baton::engine::cuda::emulated::ptx {

// Whether kernels are to be run so. Any thread.
bool Wanted();

// A kernel's arguments, byte by byte.
using Arguments = std::vector<std::vector<std::byte>>;

template <typename Parameter>
std::vector<std::byte> BytesOf(const Parameter& parameter) {
  static_assert(std::is_trivially_copyable_v<Parameter>);
  std::vector<std::byte> bytes(sizeof(parameter));
  std::memcpy(bytes.data(), &parameter, sizeof(parameter));
  return bytes;
}

// `kernel` is the function of this program that stands for it.
void RunKernel(const void* kernel, const LaunchShape& shape,
               const Arguments& arguments);

}  // namespace baton::engine::cuda::emulated::ptx
