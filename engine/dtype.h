// Element types of tensors in a safetensors file. Plain values.
#pragma once

#include <cstdint>

namespace baton::engine {

// The names of the safetensors format; weights may be F32, F16 or BF16, all
// others can be listed but not read as weights.
enum class DType {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

// "BF16", as the format spells it.
const char* DTypeName(DType dtype);

// Bytes of one element.
int64_t DTypeBytes(DType dtype);

// Whether the engine can read a weight of this type (float_convert.h).
inline bool IsWeightDType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBf16;
}

}  // namespace baton::engine
