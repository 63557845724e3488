// Which set of kernels an engine runs on: the one place that asks the CPU. Any
// thread.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/cpu/kernels.h"

namespace baton::engine::cpu {

// The set of that name ("avx512bf16", "avx2", "portable"), or the best one that
// this CPU has when `name` is empty. InvalidArgument when there is no such set
// in this program or the CPU lacks it.
absl::StatusOr<const Kernels*> FindKernels(absl::string_view name);

// All sets that this CPU has, the best one first, the portable one last. There
// is one source file of this function per kind of processor, picked by the
// build.
absl::Span<const Kernels* const> AvailableKernels();

}  // namespace baton::engine::cpu
