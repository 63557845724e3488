// Kernels::values_of_keys where no instructions are known. Included by files of
// kernels, once.
//
// Of 16 elements of 16 keys the panel has, for each pair of elements, those of
// all keys; values have, for each pair of keys, all elements. So blocks of two
// elements of two keys, 64 bits, move as a whole, and within them the two that
// lie in the middle change places.
#include <cstdint>
#include <cstring>

namespace baton::engine::cpu {
namespace {

void ValuesOfKeys(const uint16_t* keys, int32_t n, int64_t panel_stride,
                  uint16_t* values) {
  constexpr int32_t kPairs = kPanelColumns / 2;
  for (int32_t p = 0; p < n / kPanelColumns; ++p) {
    for (int32_t slots = 0; slots < kPairs; ++slots) {
      for (int32_t elements = 0; elements < kPairs; ++elements) {
        uint64_t block;
        std::memcpy(&block, keys + elements * kPanelPairElements + 4 * slots,
                    sizeof(block));
        block = (block & 0xffff00000000ffff) |
                (block & 0x0000ffff00000000) >> 16 |
                (block & 0x00000000ffff0000) << 16;
        std::memcpy(values + slots * kPanelPairElements + 4 * elements, &block,
                    sizeof(block));
      }
    }
    keys += kPairs * kPanelPairElements;
    values += panel_stride;
  }
}

}  // namespace
}  // namespace baton::engine::cpu
