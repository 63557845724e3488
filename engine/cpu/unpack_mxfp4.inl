// MXFP4 to bfloat16 for instruction sets without a table of 16-bit numbers in a
// register, as text: see engine/vector_math.inl, which comes first. Two numbers
// at a time in each lane, by arithmetic that carries nothing from one to the
// other.

namespace baton::engine::cpu {
namespace {

// The same number in both halves of a word.
constexpr uint32_t InBoth(uint32_t x) { return x << 16 | x; }

// Sets bit 15 of a half that is not zero.
// REQUIRES: halves of at most 0x7fff.
inline Words NotZero(Words halves) {
  return (halves + InBoth(0x7fff)) & InBoth(0x8000);
}

// The numbers in the lowest four bits of each half, whose exponents are `base`:
// that of 0.5 in both halves, where bfloat16 has it.
inline Words Mxfp4Pair(Words codes, Words base) {
  const Words magnitude = codes & InBoth(7);
  const Words sign = (codes & InBoth(8)) << 12;
  const Words some = NotZero(magnitude);
  // 0.5 is 1 and has no mantissa.
  const Words half = some & ~NotZero(magnitude & InBoth(6));
  const Words bits = (magnitude << 6) - (half >> 9) + base;
  // All ones where bit 15 is set.
  const Words mask = (some << 1) - (some >> 15);
  return (bits & mask) | sign;
}

void UnpackMxfp4(const UnpackArgs& args) {
  constexpr int32_t kVectors = kPanelColumns / kLanes;
  constexpr int32_t kGroupSteps = 4;
  constexpr int32_t kStepPairs = 4;
  const int64_t pair_stride = int64_t{args.panels} * kPanelPairElements;
  for (int32_t g = 0; g < args.groups; ++g) {
    for (int32_t p = 0; p < args.panels; ++p) {
      const uint8_t* const b =
          args.b + g * kGroupSteps * args.step_stride + p * 4 * kPanelColumns;
      const uint8_t* const exponents =
          args.exponents + g * args.exponent_stride + p * kPanelColumns;
      uint16_t* const out = args.out +
                            g * kGroupSteps * kStepPairs * pair_stride +
                            p * kPanelPairElements;
      for (int32_t v = 0; v < kVectors; ++v) {
        const Words base = (__builtin_convertvector(
                                Load<Bytes>(exponents + v * kLanes), Words) &
                            0xffu) -
                           1u;
        const Words shifted = base << 7 | base << 23;
        for (int32_t s = 0; s < kGroupSteps; ++s) {
          Words codes = Load<Words>(b + s * args.step_stride + 4 * v * kLanes);
          for (int32_t k = 0; k < kStepPairs; ++k) {
            Store(out + (s * kStepPairs + k) * pair_stride + 2 * v * kLanes,
                  Mxfp4Pair(codes, shifted));
            codes >>= 4;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton::engine::cpu
