// The names of the ways in which the CUDA backend holds matrices. Plain values.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/cuda/weight_tiles.h"

namespace baton::engine::cuda {

// "bf16", "fp8", "int8", "int4".
constexpr absl::string_view WeightFormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kFp8:
      return "fp8";
    case WeightFormat::kInt8:
      return "int8";
    case WeightFormat::kInt4:
      return "int4";
  }
  return "";
}

inline constexpr WeightFormat kWeightFormats[] = {
    WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kInt8,
    WeightFormat::kInt4};

// What a model's weights are called whose matrices have these: "int4",
// "int4-bf16". Of the same names weights are the same.
inline std::string WeightFormatNames(absl::Span<const WeightFormat> formats) {
  std::string names;
  for (const WeightFormat format : formats) {
    absl::StrAppend(&names, names.empty() ? "" : "-", WeightFormatName(format));
  }
  return names;
}

// None when there is no such format.
constexpr std::optional<WeightFormat> ParseWeightFormat(
    absl::string_view name) {
  for (const WeightFormat format : kWeightFormats) {
    if (name == WeightFormatName(format)) return format;
  }
  return std::nullopt;
}

}  // namespace baton::engine::cuda
