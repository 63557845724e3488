// Reading values of fixed size from the bytes of a GGUF file. Private to
// common/gguf. Pure functions, any thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"
#include "common/gguf/gguf_file.h"

namespace baton::gguf {

// The little-endian number at the start of `bytes`.
template <typename T>
T LoadNumber(absl::Span<const std::byte> bytes) {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

// Bytes of a value of fixed size; 0 for the others.
size_t FixedBytes(ValueType type);

// The value of a type of fixed size. REQUIRES: FixedBytes(type) > 0, and at
// least so many bytes.
Value FixedValue(ValueType type, absl::Span<const std::byte> bytes);

}  // namespace baton::gguf
