// Directories of packed weights, as `baton quantize` writes them, made by
// tests.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "engine/cpu/weight_dtype.h"

namespace baton::engine {

// Packs the model in `source` to `dir`, which must exist, with the files that
// an engine reads of it.
absl::Status WritePackedDir(const std::string& source, cpu::WeightDtype dtype,
                            const std::string& dir);

}  // namespace baton::engine
