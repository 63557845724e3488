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
typedef int8_t Bytes __attribute__((vector_size(16)));

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

namespace baton::engine {
namespace {

inline Halves ToBf16(Floats x) { return (Halves)_mm512_cvtneps_pbh(x); }

}  // namespace
}  // namespace baton::engine

#include "engine/cpu/row_kernels.inl"

namespace baton::engine::cpu {
namespace {

// Fetches the next weights, in `calls` calls of Fetch.
class Fetcher {
 public:
  Fetcher(const NextWeights& next, int64_t calls)
      : at_(next.data),
        end_(next.data + next.bytes),
        lines_((next.bytes / 64 + calls - 1) / calls) {}
  void Fetch() {
    for (int64_t i = 0; i < lines_ && at_ < end_; ++i, at_ += 64) {
      // To the second-level cache: the first is full of what is in use.
      _mm_prefetch(at_, _MM_HINT_T1);
    }
  }

 private:
  const char* at_;
  const char* const end_;
  const int64_t lines_;
};

// Steps between two calls of Fetch in products with bf16 weights.
constexpr int32_t kFetchSteps = 16;

// The two bfloat16 values at `p` in every lane.
inline __m512bh SetPair(const uint16_t* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return (__m512bh)_mm512_set1_epi32(pair);
}

// kRows rows times kPanels panels, the sums in registers.
template <int32_t kRows, int32_t kPanels>
void MatmulTile(const MatmulArgs& args, const uint16_t* a, const uint16_t* b,
                float* c, Fetcher* fetcher) {
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
  const int64_t pair_stride = args.pair_stride;
  for (int32_t k = 0; k < args.k_pairs; ++k) {
    if (k % kFetchSteps == 0) fetcher->Fetch();
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
    b += pair_stride;
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
                      float*, Fetcher*);

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
  const int32_t passes = (args.panels + kTilePanels - 1) / kTilePanels * tiles;
  Fetcher fetcher(
      args.next,
      int64_t{passes} * ((args.k_pairs + kFetchSteps - 1) / kFetchSteps));
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
                                          b, c + begin * args.c_stride,
                                          &fetcher);
    }
  }
}

// As MXFP4's numbers with the exponent of 0.5 are, twice.
alignas(64) constexpr uint16_t kMxfp4Numbers[32] = {
    0x0000, 0x0000, 0x0080, 0x00c0, 0x0100, 0x0140, 0x0180, 0x01c0,
    0x8000, 0x8000, 0x8080, 0x80c0, 0x8100, 0x8140, 0x8180, 0x81c0,
    0x0000, 0x0000, 0x0080, 0x00c0, 0x0100, 0x0140, 0x0180, 0x01c0,
    0x8000, 0x8000, 0x8080, 0x80c0, 0x8100, 0x8140, 0x8180, 0x81c0};

void UnpackMxfp4(const UnpackArgs& args) {
  constexpr int32_t kGroupSteps = 4;
  constexpr int32_t kStepPairs = 4;
  // Of the five bits that choose from it, the first is a neighbour's.
  const __m512i numbers = _mm512_load_si512(kMxfp4Numbers);
  const __m512i magnitude = _mm512_set1_epi16(7);
  const int64_t pair_stride = int64_t{args.panels} * kPanelPairElements;
  for (int32_t g = 0; g < args.groups; ++g) {
    for (int32_t p = 0; p < args.panels; ++p) {
      const uint8_t* const b =
          args.b + g * kGroupSteps * args.step_stride + p * 4 * kPanelColumns;
      uint16_t* out = args.out + g * kGroupSteps * kStepPairs * pair_stride +
                      p * kPanelPairElements;
      const __m512i exponents = _mm512_sub_epi32(
          _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(
              args.exponents + g * args.exponent_stride + p * kPanelColumns))),
          _mm512_set1_epi32(1));
      const __m512i base = _mm512_or_si512(_mm512_slli_epi32(exponents, 7),
                                           _mm512_slli_epi32(exponents, 23));
      for (int32_t s = 0; s < kGroupSteps; ++s) {
        __m512i codes = _mm512_loadu_si512(b + s * args.step_stride);
#pragma GCC unroll 4
        for (int32_t k = 0; k < kStepPairs; ++k) {
          const __m512i number = _mm512_permutexvar_epi16(codes, numbers);
          _mm512_storeu_si512(
              out, _mm512_mask_add_epi16(
                       number, _mm512_test_epi16_mask(codes, magnitude), number,
                       base));
          out += pair_stride;
          codes = _mm512_srli_epi32(codes, 4);
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton::engine::cpu

#include "engine/cpu/quant_matmul_vnni.inl"

namespace baton::engine::cpu {
namespace {

// As values_of_keys.inl says, eight blocks at a time.
void ValuesOfKeys(const uint16_t* keys, int32_t n, int64_t panel_stride,
                  uint16_t* values) {
  constexpr int32_t kPairs = kPanelColumns / 2;
  constexpr int32_t kSwapMiddle = 0xd8;
  for (int32_t p = 0; p < n / kPanelColumns; ++p) {
    __m512i even[kPairs / 2];
    __m512i odd[kPairs / 2];
#pragma GCC unroll 4
    for (int32_t i = 0; i < kPairs / 2; ++i) {
      __m512i rows[2];
      for (int32_t j = 0; j < 2; ++j) {
        const __m512i row =
            _mm512_loadu_si512(keys + (2 * i + j) * kPanelPairElements);
        rows[j] = _mm512_shufflehi_epi16(
            _mm512_shufflelo_epi16(row, kSwapMiddle), kSwapMiddle);
      }
      even[i] = _mm512_unpacklo_epi64(rows[0], rows[1]);
      odd[i] = _mm512_unpackhi_epi64(rows[0], rows[1]);
    }
    // The lanes of four, `first` and every other one behind.
    const auto store = [&](const __m512i* from, int32_t first) {
      const __m512i low01 = _mm512_shuffle_i64x2(from[0], from[1], 0x88);
      const __m512i low23 = _mm512_shuffle_i64x2(from[2], from[3], 0x88);
      const __m512i high01 = _mm512_shuffle_i64x2(from[0], from[1], 0xdd);
      const __m512i high23 = _mm512_shuffle_i64x2(from[2], from[3], 0xdd);
      uint16_t* const to = values + first * kPanelPairElements;
      _mm512_storeu_si512(to, _mm512_shuffle_i64x2(low01, low23, 0x88));
      _mm512_storeu_si512(to + 2 * kPanelPairElements,
                          _mm512_shuffle_i64x2(high01, high23, 0x88));
      _mm512_storeu_si512(to + 4 * kPanelPairElements,
                          _mm512_shuffle_i64x2(low01, low23, 0xdd));
      _mm512_storeu_si512(to + 6 * kPanelPairElements,
                          _mm512_shuffle_i64x2(high01, high23, 0xdd));
    };
    store(even, 0);
    store(odd, 1);
    keys += kPairs * kPanelPairElements;
    values += panel_stride;
  }
}

}  // namespace

const Kernels kAvx512Bf16Kernels = {
    .name = "avx512bf16",
    .matmul = Matmul,
    .matmul_int8 = MatmulInt8,
    .matmul_int4 = MatmulInt4,
    .unpack_mxfp4 = UnpackMxfp4,
    .matmul_mxfp4 = nullptr,
    .quantize = Quantize,
    .round_row = RoundRow,
    .rms_norm = RmsNorm,
    .rope = Rope,
    .add = Add,
    .scale = Scale,
    .scale_round = ScaleRound,
    .swiglu = SwigluRow,
    .limited_swiglu = LimitedSwigluRow,
    .geglu = GegluRow,
    .softmax = Softmax,
    .merge_softmax = MergeSoftmax,
    .copy = Copy,
    .values_of_keys = ValuesOfKeys,
    .dequantize_pairs = DequantizePairs,
};

}  // namespace baton::engine::cpu
