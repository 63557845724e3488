// The products with int8 and int4 weights for AVX-512 with VNNI, as text of
// kernels_avx512bf16.cc: sixteen columns and four inputs per instruction.

namespace baton::engine::cpu {
namespace {

constexpr int32_t kQuadsPerGroup = kGroupInputs / 4;

// The four bytes at `p` in every lane.
inline __m512i SetQuad(const int8_t* p) {
  int32_t quad;
  __builtin_memcpy(&quad, p, sizeof(quad));
  return _mm512_set1_epi32(quad);
}

// Adds the products of one quad of weights with each row's activations.
template <int32_t kRows, int32_t kPanels>
inline __attribute__((always_inline)) void DotQuad(
    const __m512i (&w)[kPanels], const int8_t* a, int64_t a_stride,
    __m512i (&dot)[kRows][kPanels]) {
#pragma GCC unroll 8
  for (int32_t r = 0; r < kRows; ++r) {
    const __m512i quad = SetQuad(a + r * a_stride);
#pragma GCC unroll 8
    for (int32_t p = 0; p < kPanels; ++p) {
      dot[r][p] = _mm512_dpbusd_epi32(dot[r][p], w[p], quad);
    }
  }
}

// kRows rows times kPanels panels, all sums in registers.
template <int32_t kRows, int32_t kPanels, bool kInt4>
void QuantTile(const QuantMatmulArgs& args, int32_t first_row, int32_t panel,
               Fetcher* fetcher) {
  const int64_t a_stride = args.a_stride;
  const int64_t panel_stride = args.panel_stride;
  const int64_t step_stride = args.step_stride;
  const int8_t* a = args.a + first_row * a_stride;
  const uint8_t* b = args.b + panel * panel_stride;
  const int64_t first_group = first_row * args.group_stride;
  const uint16_t* codes =
      kInt4 ? args.group_codes + panel * args.code_panel_stride : nullptr;
  float* const c = args.c + first_row * args.c_stride + panel * kPanelColumns;
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
  const __m512i low_half = _mm512_set1_epi8(0x0f);
  for (int32_t g = 0; g < args.groups; ++g) {
    fetcher->Fetch();
    __m512i dot[kRows][kPanels];
    const auto codes_of = [&](int32_t p) {
      // In one instruction: the compiler's own conversion takes five.
      return (Words)_mm512_cvtepu16_epi32((__m256i)Load<Halves>(
          codes + p * args.code_panel_stride + g * args.code_group_stride));
    };
    Ints zero[kPanels];
#pragma GCC unroll 8
    for (int32_t p = 0; p < kPanels; ++p) {
      zero[p] = kInt4 ? Int4Zeros(codes_of(p)) : Ints{} + 128;
    }
#pragma GCC unroll 8
    for (int32_t r = 0; r < kRows; ++r) {
      const int32_t a_sum =
          args.a_sums[first_group + r * args.group_stride + g];
#pragma GCC unroll 8
      for (int32_t p = 0; p < kPanels; ++p) {
        // Of numbers of 16 bits, as the upper halves of zeros are zero.
        dot[r][p] =
            _mm512_madd_epi16((__m512i)zero[p], _mm512_set1_epi32(-a_sum));
      }
    }
    for (int32_t q = 0; q < kQuadsPerGroup; q += kInt4 ? 2 : 1) {
      __m512i bytes[kPanels];
      __m512i w[kPanels];
#pragma GCC unroll 8
      for (int32_t p = 0; p < kPanels; ++p) {
        bytes[p] = _mm512_loadu_si512(b + p * panel_stride);
        w[p] = kInt4 ? _mm512_and_si512(bytes[p], low_half) : bytes[p];
      }
      DotQuad<kRows, kPanels>(w, a, a_stride, dot);
      a += 4;
      if (kInt4) {
#pragma GCC unroll 8
        for (int32_t p = 0; p < kPanels; ++p) {
          w[p] = _mm512_and_si512(_mm512_srli_epi16(bytes[p], 4), low_half);
        }
        DotQuad<kRows, kPanels>(w, a, a_stride, dot);
        a += 4;
      }
      b += step_stride;
    }
#pragma GCC unroll 8
    for (int32_t p = 0; p < kPanels; ++p) {
      __m512 w_scale = _mm512_setzero_ps();
      if (kInt4) w_scale = (__m512)Int4Scales(codes_of(p));
#pragma GCC unroll 8
      for (int32_t r = 0; r < kRows; ++r) {
        __m512 scale = _mm512_set1_ps(
            args.a_scales[first_group + r * args.group_stride + g]);
        if (kInt4) scale = _mm512_mul_ps(scale, w_scale);
        sum[r][p] =
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][p]), scale, sum[r][p]);
      }
    }
  }
#pragma GCC unroll 8
  for (int32_t p = 0; p < kPanels; ++p) {
    if (args.last) {
      const __m512 scale =
          _mm512_loadu_ps(args.column_scales + (panel + p) * kPanelColumns);
#pragma GCC unroll 8
      for (int32_t r = 0; r < kRows; ++r) {
        sum[r][p] = _mm512_mul_ps(sum[r][p], scale);
      }
    }
#pragma GCC unroll 8
    for (int32_t r = 0; r < kRows; ++r) {
      _mm512_storeu_ps(c + r * args.c_stride + p * kPanelColumns, sum[r][p]);
    }
  }
}

// 6 x 2 dot products and sums, 2 + 2 weights and 1 quad fit the 32 registers.
constexpr int32_t kQuantTileRows = 6;
// With few rows the weights' way from memory counts: more panels at a time,
// which are more streams to fetch ahead.
constexpr int32_t kQuantFewRows = 3;

template <int32_t kRows, int32_t kPanels, bool kInt4>
void QuantRows(const QuantMatmulArgs& args, int32_t rows, int32_t first_row,
               int32_t panel, Fetcher* fetcher) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      QuantTile<kRows, kPanels, kInt4>(args, first_row, panel, fetcher);
    } else {
      QuantRows<kRows - 1, kPanels, kInt4>(args, rows, first_row, panel,
                                           fetcher);
    }
  }
}

template <int32_t kMaxRows, int32_t kPanels, bool kInt4>
void QuantPanels(const QuantMatmulArgs& args, int32_t panel, Fetcher* fetcher) {
  // Tiles of nearly equal height: 8 rows are 4 + 4, not 6 + 2.
  const int32_t tiles = (args.rows + kMaxRows - 1) / kMaxRows;
  for (int32_t tile = 0; tile < tiles; ++tile) {
    const int32_t begin =
        static_cast<int32_t>(int64_t{args.rows} * tile / tiles);
    const int32_t end =
        static_cast<int32_t>(int64_t{args.rows} * (tile + 1) / tiles);
    QuantRows<kMaxRows, kPanels, kInt4>(args, end - begin, begin, panel,
                                        fetcher);
  }
}

template <bool kInt4>
void QuantMatmul(const QuantMatmulArgs& args) {
  int32_t panel = 0;
  // Calls of Fetch: one for each group of each tile.
  const int64_t tiles = (args.rows + kQuantTileRows - 1) / kQuantTileRows;
  Fetcher fetcher(args.next,
                  (args.panels + 1) / 2 * tiles * int64_t{args.groups});
  if (args.rows <= kQuantFewRows) {
    for (; panel + 4 <= args.panels; panel += 4) {
      QuantPanels<kQuantFewRows, 4, kInt4>(args, panel, &fetcher);
    }
  }
  for (; panel + 2 <= args.panels; panel += 2) {
    QuantPanels<kQuantTileRows, 2, kInt4>(args, panel, &fetcher);
  }
  if (panel < args.panels) {
    QuantPanels<kQuantTileRows, 1, kInt4>(args, panel, &fetcher);
  }
}

void MatmulInt8(const QuantMatmulArgs& args) { QuantMatmul<false>(args); }
void MatmulInt4(const QuantMatmulArgs& args) { QuantMatmul<true>(args); }

}  // namespace
}  // namespace baton::engine::cpu
