// How the matrices of a model are held for the matrix product. Plain values.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"

namespace baton::engine::cpu {

enum class WeightDtype {
  kBf16,
  kInt8,  // one scale per output
  kInt4,  // one scale per output and group of 64 inputs
  // Experts that the model's files have in MXFP4 (engine/mxfp4.h) as they are,
  // all else in bfloat16. What is computed is what bf16 computes.
  kMxfp4,
};

// Whether products take activations in int8; else in bfloat16.
constexpr bool TakesInt8(WeightDtype dtype) {
  return dtype == WeightDtype::kInt8 || dtype == WeightDtype::kInt4;
}

// "bf16", "int8", "int4", "mxfp4".
constexpr absl::string_view WeightDtypeName(WeightDtype dtype) {
  switch (dtype) {
    case WeightDtype::kBf16:
      return "bf16";
    case WeightDtype::kInt8:
      return "int8";
    case WeightDtype::kInt4:
      return "int4";
    case WeightDtype::kMxfp4:
      return "mxfp4";
  }
  return "";
}

// None when there is no such dtype.
constexpr std::optional<WeightDtype> ParseWeightDtype(absl::string_view name) {
  for (const WeightDtype dtype : {WeightDtype::kBf16, WeightDtype::kInt8,
                                  WeightDtype::kInt4, WeightDtype::kMxfp4}) {
    if (name == WeightDtypeName(dtype)) return dtype;
  }
  return std::nullopt;
}

}  // namespace baton::engine::cpu
