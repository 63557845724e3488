#include "engine/cpu/kernel_choice.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton::engine::cpu {

absl::StatusOr<const Kernels*> FindKernels(absl::string_view name) {
  const absl::Span<const Kernels* const> available = AvailableKernels();
  if (name.empty()) return available.front();
  std::string names;
  for (const Kernels* kernels : available) {
    if (name == kernels->name) return kernels;
    absl::StrAppend(&names, names.empty() ? "" : ", ", kernels->name);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "cpu_isa: \"", name,
      "\" is unknown or not supported by this CPU, which has: ", names));
}

}  // namespace baton::engine::cpu
