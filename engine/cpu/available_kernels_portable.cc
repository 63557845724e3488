// The choice on processors for which there is no set of their own.
#include "engine/cpu/kernel_choice.h"
#include "engine/cpu/kernel_sets.h"

namespace baton::engine::cpu {

absl::Span<const Kernels* const> AvailableKernels() {
  static constexpr const Kernels* kAvailable[] = {&kPortableKernels};
  return kAvailable;
}

}  // namespace baton::engine::cpu
