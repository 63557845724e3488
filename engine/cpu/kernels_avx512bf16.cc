// The kernels for AVX-512 with its bfloat16 dot product: sixteen floats at a
// time, and two products per lane and instruction in a matrix product.
#include <immintrin.h>

#include "engine/cpu/kernel_sets.h"

namespace baton::engine {
namespace {

constexpr int32_t kLanes = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

inline Floats Set(float x) { return _mm512_set1_ps(x); }
inline Floats Fma(Floats a, Floats b, Floats c) {
  return _mm512_fmadd_ps(a, b, c);
}
// Their order is that of a tree that halves the vector.
inline float SumLanes(Floats v) { return _mm512_reduce_add_ps(v); }
inline float MaxLanes(Floats v) { return _mm512_reduce_max_ps(v); }

}  // namespace
}  // namespace baton::engine

#include "engine/vector_math.inl"

#include "engine/cpu/row_kernels.inl"

namespace baton::engine::cpu {
namespace {

// The two bfloat16 values at `p` in every lane.
inline __m512bh SetPair(const uint16_t* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return (__m512bh)_mm512_set1_epi32(pair);
}

// kRows rows times kPanels panels, the sums in registers.
template <int32_t kRows, int32_t kPanels>
void MatmulTile(const MatmulArgs& args, const uint16_t* a, const uint16_t* b,
                float* c) {
  __m512 sum[kRows][kPanels];
#pragma GCC unroll 8
  for (int32_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int32_t p = 0; p < kPanels; ++p) {
      sum[r][p] =
          args.accumulate
              ? _mm512_loadu_ps(c + r * args.c_stride + p * kPanelColumns)
              : _mm512_setzero_ps();
    }
  }
  const int64_t a_stride = args.a_stride;
  const int64_t panel_stride = args.panel_stride;
  for (int32_t k = 0; k < args.k_pairs; ++k) {
    __m512bh column[kPanels];
#pragma GCC unroll 8
    for (int32_t p = 0; p < kPanels; ++p) {
      column[p] = (__m512bh)_mm512_loadu_si512(b + p * panel_stride);
    }
#pragma GCC unroll 8
    for (int32_t r = 0; r < kRows; ++r) {
      const __m512bh pair = SetPair(a + r * a_stride);
#pragma GCC unroll 8
      for (int32_t p = 0; p < kPanels; ++p) {
        sum[r][p] = _mm512_dpbf16_ps(sum[r][p], column[p], pair);
      }
    }
    a += 2;
    b += kPanelPairElements;
  }
#pragma GCC unroll 8
  for (int32_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int32_t p = 0; p < kPanels; ++p) {
      _mm512_storeu_ps(c + r * args.c_stride + p * kPanelColumns, sum[r][p]);
    }
  }
}

// 6 x 4 sums, 4 columns and 1 pair fit the 32 registers.
constexpr int32_t kTileRows = 6;
constexpr int32_t kTilePanels = 4;

using Tile = void (*)(const MatmulArgs&, const uint16_t*, const uint16_t*,
                      float*);

constexpr Tile kTiles[kTilePanels][kTileRows] = {
    {MatmulTile<1, 1>, MatmulTile<2, 1>, MatmulTile<3, 1>, MatmulTile<4, 1>,
     MatmulTile<5, 1>, MatmulTile<6, 1>},
    {MatmulTile<1, 2>, MatmulTile<2, 2>, MatmulTile<3, 2>, MatmulTile<4, 2>,
     MatmulTile<5, 2>, MatmulTile<6, 2>},
    {MatmulTile<1, 3>, MatmulTile<2, 3>, MatmulTile<3, 3>, MatmulTile<4, 3>,
     MatmulTile<5, 3>, MatmulTile<6, 3>},
    {MatmulTile<1, 4>, MatmulTile<2, 4>, MatmulTile<3, 4>, MatmulTile<4, 4>,
     MatmulTile<5, 4>, MatmulTile<6, 4>},
};

void Matmul(const MatmulArgs& args) {
  // Tiles of nearly equal height: 8 rows are 4 + 4, not 6 + 2.
  const int32_t tiles = (args.rows + kTileRows - 1) / kTileRows;
  for (int32_t panel = 0; panel < args.panels; panel += kTilePanels) {
    const int32_t left = args.panels - panel;
    const int32_t panels = left < kTilePanels ? left : kTilePanels;
    const uint16_t* const b = args.b + panel * args.panel_stride;
    float* const c = args.c + panel * kPanelColumns;
    for (int32_t tile = 0; tile < tiles; ++tile) {
      const int32_t begin =
          static_cast<int32_t>(int64_t{args.rows} * tile / tiles);
      const int32_t end =
          static_cast<int32_t>(int64_t{args.rows} * (tile + 1) / tiles);
      kTiles[panels - 1][end - begin - 1](args, args.a + begin * args.a_stride,
                                          b, c + begin * args.c_stride);
    }
  }
}

// Transposes 16 rows of 16 words.
inline void Transpose(__m512i row[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int32_t i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(row[2 * i], row[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(row[2 * i], row[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int32_t i = 0; i < 4; ++i) {
    row[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    row[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    row[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    row[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  // Lane j of row[4 * i + m] now holds word 4 * j + m of rows 4 * i .. 4 * i
  // + 3.
#pragma GCC unroll 4
  for (int32_t m = 0; m < 4; ++m) {
    t[m] = _mm512_shuffle_i32x4(row[m], row[4 + m], 0x88);
    t[4 + m] = _mm512_shuffle_i32x4(row[m], row[4 + m], 0xdd);
    t[8 + m] = _mm512_shuffle_i32x4(row[8 + m], row[12 + m], 0x88);
    t[12 + m] = _mm512_shuffle_i32x4(row[8 + m], row[12 + m], 0xdd);
  }
#pragma GCC unroll 4
  for (int32_t m = 0; m < 4; ++m) {
    row[m] = _mm512_shuffle_i32x4(t[m], t[8 + m], 0x88);
    row[8 + m] = _mm512_shuffle_i32x4(t[m], t[8 + m], 0xdd);
    row[4 + m] = _mm512_shuffle_i32x4(t[4 + m], t[12 + m], 0x88);
    row[12 + m] = _mm512_shuffle_i32x4(t[4 + m], t[12 + m], 0xdd);
  }
}

// Packs 16 words of each key, or only the first `words` of them.
template <bool kAll>
inline void PackWords(const uint16_t* const keys[kPanelColumns], int32_t first,
                      int32_t words, uint16_t* out) {
  const __mmask16 mask =
      kAll ? __mmask16{0xffff} : static_cast<__mmask16>((1u << words) - 1);
  __m512i row[16];
#pragma GCC unroll 16
  for (int32_t i = 0; i < 16; ++i) {
    row[i] = kAll ? _mm512_loadu_si512(keys[i] + 2 * first)
                  : _mm512_maskz_loadu_epi32(mask, keys[i] + 2 * first);
  }
  Transpose(row);
#pragma GCC unroll 16
  for (int32_t i = 0; i < 16; ++i) {
    if (kAll || i < words) {
      _mm512_storeu_si512(out + i * kPanelPairElements, row[i]);
    }
  }
}

void PackKeys(const uint16_t* const keys[kPanelColumns], int32_t head_dim,
              uint16_t* panel) {
  const int32_t pairs = head_dim / 2;
  int32_t first = 0;
  for (; first + 16 <= pairs; first += 16) {
    PackWords<true>(keys, first, 16, panel + first * kPanelPairElements);
  }
  if (first < pairs) {
    PackWords<false>(keys, first, pairs - first,
                     panel + first * kPanelPairElements);
  }
}

}  // namespace
}  // namespace baton::engine::cpu

namespace baton::engine::cpu {

const Kernels kAvx512Bf16Kernels = {
    .name = "avx512bf16",
    .matmul = Matmul,
    .round_row = RoundRow,
    .rms_norm = RmsNorm,
    .rms_norm_round = RmsNormRound,
    .rope = Rope,
    .add = Add,
    .scale = Scale,
    .scale_round = ScaleRound,
    .swiglu_round = SwigluRound,
    .softmax = Softmax,
    .pack_keys = PackKeys,
    .pack_values = PackValues,
};

}  // namespace baton::engine::cpu
