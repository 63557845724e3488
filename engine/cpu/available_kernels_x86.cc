// The choice on x86-64: asks the CPU (and the operating system, which must save
// the wide registers).
#include <vector>

#include "engine/cpu/kernel_choice.h"
#include "engine/cpu/kernel_sets.h"

namespace baton::engine::cpu {
namespace {

std::vector<const Kernels*> Probe() {
  std::vector<const Kernels*> available;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bf16") &&
      __builtin_cpu_supports("avx512vnni")) {
    available.push_back(&kAvx512Bf16Kernels);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    available.push_back(&kAvx2Kernels);
  }
  available.push_back(&kPortableKernels);
  return available;
}

}  // namespace

absl::Span<const Kernels* const> AvailableKernels() {
  static const std::vector<const Kernels*>* const available =
      new std::vector<const Kernels*>(Probe());
  return *available;
}

}  // namespace baton::engine::cpu
