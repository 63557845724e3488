#include "tests/engine/cuda/fp8_pages.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/e4m3.h"

namespace baton::engine::cuda {

std::vector<float> Fp8Row::Values() const {
  std::vector<float> values;
  values.reserve(bytes.size());
  for (const uint8_t byte : bytes) values.push_back(scale * E4m3ToFloat(byte));
  return values;
}

Fp8Row RoundToFp8(absl::Span<const float> row) {
  float largest = 0.0f;
  for (const float x : row) largest = std::max(largest, std::fabs(x));
  // What is all but zero becomes zero.
  const bool tiny = largest <= 1e-35f;
  const float factor = tiny ? 0.0f : kE4m3Max / largest;
  Fp8Row rounded;
  rounded.scale = tiny ? 0.0f : largest / kE4m3Max;
  for (const float x : row) rounded.bytes.push_back(FloatToE4m3(x * factor));
  return rounded;
}

std::byte* PartAt(const KvLayout& layout, std::byte* memory, int32_t layer,
                  absl::Span<const BlockId> blocks, int32_t position,
                  int32_t kv_head, KvPart part) {
  return memory +
         layout.PageOffset(layer, blocks[position / layout.block_size]) +
         kv_head * layout.head_bytes() +
         (part == KvPart::kValues ? layout.ValuesOffset() : 0);
}

int64_t ElementPlace(const KvLayout& layout, int32_t position, int32_t element,
                     KvPart part) {
  const int64_t slot = position % layout.block_size;
  if (part == KvPart::kKeys) {
    return slot / 16 * 16 * layout.stored_head_dim() + element / 2 * 32 +
           slot % 16 * 2 + element % 2;
  }
  return int64_t{element / 16} * 16 * layout.block_size + slot / 2 * 32 +
         element % 16 * 2 + slot % 2;
}

void WriteFp8(const KvLayout& layout, std::byte* memory, int32_t layer,
              absl::Span<const BlockId> blocks, int32_t position,
              int32_t kv_head, KvPart part, const Fp8Row& row) {
  std::byte* const to =
      PartAt(layout, memory, layer, blocks, position, kv_head, part);
  for (int32_t i = 0; i < layout.head_dim; ++i) {
    to[ElementPlace(layout, position, i, part)] = std::byte{row.bytes[i]};
  }
  std::memcpy(to + layout.KeyScalesOffset() +
                  position % layout.block_size * sizeof(float),
              &row.scale, sizeof(float));
}

}  // namespace baton::engine::cuda
