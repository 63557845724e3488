// How the matrices of a model are held for the matrix product. Plain values.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"

namespace baton::engine::cpu {

enum class WeightDtype {
  kBf16,
  kInt8,  // one scale per output
  kInt4,  // one scale per output and group of 64 inputs
};

// "bf16", "int8", "int4".
constexpr absl::string_view WeightDtypeName(WeightDtype dtype) {
  switch (dtype) {
    case WeightDtype::kBf16:
      return "bf16";
    case WeightDtype::kInt8:
      return "int8";
    case WeightDtype::kInt4:
      return "int4";
  }
  return "";
}

// None when there is no such dtype.
constexpr std::optional<WeightDtype> ParseWeightDtype(absl::string_view name) {
  for (const WeightDtype dtype :
       {WeightDtype::kBf16, WeightDtype::kInt8, WeightDtype::kInt4}) {
    if (name == WeightDtypeName(dtype)) return dtype;
  }
  return std::nullopt;
}

}  // namespace baton::engine::cpu
