// The element types of tensors in a GGUF file, by their numbers in the file.
// Plain values, any thread.
#pragma once

#include <cstdint>

namespace baton::gguf {

// Those that Baton reads; a file may hold others.
enum TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4K = 12,
  kQ5K = 13,
  kQ6K = 14,
  kBf16 = 30,
  kMxfp4 = 39,
};

// A row of a tensor is a whole number of blocks.
struct TensorTypeInfo {
  uint32_t number;
  const char* name;
  int64_t block_elements;
  int64_t block_bytes;
};

// Null when no type has that number.
const TensorTypeInfo* FindTensorType(uint32_t number);

}  // namespace baton::gguf
