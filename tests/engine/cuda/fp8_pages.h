// Keys and values in fp8 as KV memory has them, by engine/e4m3.h and
// engine/kv_layout.h: what tests of the CUDA backend compare with, and read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "engine/kv_layout.h"

namespace baton::engine::cuda {

// A key or a value of one head.
struct Fp8Row {
  std::vector<uint8_t> bytes;
  float scale = 0;

  // What it stands for.
  std::vector<float> Values() const;
};
Fp8Row RoundToFp8(absl::Span<const float> row);

enum class KvPart { kKeys, kValues };

// Where the part of a KV head begins that has the token at `position`, and
// where an element of that token lies in it, in elements.
std::byte* PartAt(const KvLayout& layout, std::byte* memory, int32_t layer,
                  absl::Span<const BlockId> blocks, int32_t position,
                  int32_t kv_head, KvPart part);
int64_t ElementPlace(const KvLayout& layout, int32_t position, int32_t element,
                     KvPart part);

// Stores the row of the token at `position`.
void WriteFp8(const KvLayout& layout, std::byte* memory, int32_t layer,
              absl::Span<const BlockId> blocks, int32_t position,
              int32_t kv_head, KvPart part, const Fp8Row& row);

}  // namespace baton::engine::cuda
