// The product with MXFP4 weights for few rows, as text of kernels_avx2.cc:
// three bits choose one of the eight magnitudes that a register holds.

namespace baton::engine::cpu {
namespace {

// What the four bits of each lane of `codes` from kBit on stand for, times
// `scale`, a power of two: exact.
template <int32_t kBit>
inline Floats Mxfp4Value(Words codes, Floats magnitudes, Floats scale) {
  const __m256i code = _mm256_srli_epi32((__m256i)codes, kBit);
  const Floats magnitude = _mm256_permutevar8x32_ps(magnitudes, code);
  const Words sign = codes << (28 - kBit) & 0x80000000u;
  return magnitude * (Floats)((Words)scale ^ sign);
}

// Adds the products of inputs 2 kPair and 2 kPair + 1 of eight.
template <int32_t kPair, int32_t kRows, int32_t kVectors>
inline __attribute__((always_inline)) void AddPair(
    const Words (&codes)[kVectors], const Floats (&scales)[kVectors],
    Floats magnitudes, const uint16_t* a, int64_t a_stride,
    Floats (&sum)[kRows][kVectors]) {
  Floats low[kRows], high[kRows];
#pragma GCC unroll 8
  for (int32_t r = 0; r < kRows; ++r) {
    const uint32_t pair = LoadPair(a + r * a_stride + 2 * kPair);
    low[r] = SetBits(pair << 16);
    high[r] = SetBits(pair & 0xffff0000u);
  }
#pragma GCC unroll 8
  for (int32_t v = 0; v < kVectors; ++v) {
    const Floats even = Mxfp4Value<4 * kPair>(codes[v], magnitudes, scales[v]);
    const Floats odd =
        Mxfp4Value<16 + 4 * kPair>(codes[v], magnitudes, scales[v]);
#pragma GCC unroll 8
    for (int32_t r = 0; r < kRows; ++r) {
      sum[r][v] = Fma(low[r], even, sum[r][v]);
      sum[r][v] = Fma(high[r], odd, sum[r][v]);
    }
  }
}

// kRows rows times kPanels panels.
template <int32_t kRows, int32_t kPanels>
void Mxfp4Tile(const Mxfp4MatmulArgs& args, int32_t panel) {
  constexpr int32_t kVectors = kPanels * kPanelVectors;
  constexpr int32_t kGroupSteps = 4;
  const Floats magnitudes = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const uint8_t* b = args.b.b + panel * 4 * kPanelColumns;
  const uint8_t* exponents = args.b.exponents + panel * kPanelColumns;
  const uint16_t* a = args.a;
  float* const c = args.c + panel * kPanelColumns;
  Floats sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int32_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int32_t v = 0; v < kVectors; ++v) {
      sum[r][v] = args.accumulate
                      ? Load<Floats>(c + r * args.c_stride + v * kLanes)
                      : Set(0.0f);
    }
  }
  for (int32_t g = 0; g < args.b.groups; ++g) {
    Floats scales[kVectors];
#pragma GCC unroll 8
    for (int32_t v = 0; v < kVectors; ++v) {
      // As they lie in the exponent of a float.
      scales[v] = (Floats)_mm256_slli_epi32(
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(
              reinterpret_cast<const __m128i*>(exponents + v * kLanes))),
          23);
    }
    for (int32_t s = 0; s < kGroupSteps; ++s) {
      Words codes[kVectors];
#pragma GCC unroll 8
      for (int32_t v = 0; v < kVectors; ++v) {
        codes[v] = Load<Words>(b + 4 * v * kLanes);
      }
      AddPair<0>(codes, scales, magnitudes, a, args.a_stride, sum);
      AddPair<1>(codes, scales, magnitudes, a, args.a_stride, sum);
      AddPair<2>(codes, scales, magnitudes, a, args.a_stride, sum);
      AddPair<3>(codes, scales, magnitudes, a, args.a_stride, sum);
      a += 8;
      b += args.b.step_stride;
    }
    exponents += args.b.exponent_stride;
  }
#pragma GCC unroll 8
  for (int32_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int32_t v = 0; v < kVectors; ++v) {
      Store(c + r * args.c_stride + v * kLanes, sum[r][v]);
    }
  }
}

void MatmulMxfp4(const Mxfp4MatmulArgs& args) {
  static_assert(kFewMxfp4Rows == 3);
  int32_t panel = 0;
  if (args.rows == 1) {
    // One stream of weights, and sums that do not wait for each other.
    for (; panel + 4 <= args.b.panels; panel += 4) {
      Mxfp4Tile<1, 4>(args, panel);
    }
    for (; panel + 2 <= args.b.panels; panel += 2) {
      Mxfp4Tile<1, 2>(args, panel);
    }
  }
  for (; panel < args.b.panels; ++panel) {
    if (args.rows == 1) Mxfp4Tile<1, 1>(args, panel);
    if (args.rows == 2) Mxfp4Tile<2, 1>(args, panel);
    if (args.rows == 3) Mxfp4Tile<3, 1>(args, panel);
  }
}

}  // namespace
}  // namespace baton::engine::cpu
