// The matrix product for instruction sets without a bfloat16 dot product, as
// text shared by the files that are compiled for one of them: see
// engine/vector_math.inl, which comes first. The including file has defined
// kTileRows, the rows whose sums stay in registers together.

namespace baton::engine::cpu {
namespace {

constexpr int32_t kPanelVectors = kPanelColumns / kLanes;

inline Floats LowOfPairs(Words pairs) { return (Floats)(pairs << 16); }
inline Floats HighOfPairs(Words pairs) { return (Floats)(pairs & 0xffff0000u); }

inline uint32_t LoadPair(const uint16_t* p) {
  uint32_t pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return pair;
}

inline Floats SetBits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return Set(value);
}

// kRows rows times kPanels panels.
template <int32_t kRows, int32_t kPanels>
void MatmulTile(const MatmulArgs& args, const uint16_t* a, const uint16_t* b,
                float* c) {
  Floats sum[kRows][kPanels][kPanelVectors];
#pragma GCC unroll 4
  for (int32_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int32_t p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
      for (int32_t v = 0; v < kPanelVectors; ++v) {
        const float* const from =
            c + r * args.c_stride + p * kPanelColumns + v * kLanes;
        sum[r][p][v] = args.accumulate ? Load<Floats>(from) : Set(0.0f);
      }
    }
  }
  for (int32_t k = 0; k < args.k_pairs; ++k, b += args.pair_stride) {
    Floats low[kRows], high[kRows];
#pragma GCC unroll 4
    for (int32_t r = 0; r < kRows; ++r) {
      const uint32_t pair = LoadPair(a + r * args.a_stride + 2 * k);
      low[r] = SetBits(pair << 16);
      high[r] = SetBits(pair & 0xffff0000u);
    }
#pragma GCC unroll 4
    for (int32_t p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
      for (int32_t v = 0; v < kPanelVectors; ++v) {
        const Words pairs =
            Load<Words>(b + p * args.panel_stride + 2 * v * kLanes);
#pragma GCC unroll 4
        for (int32_t r = 0; r < kRows; ++r) {
          sum[r][p][v] = Fma(low[r], LowOfPairs(pairs), sum[r][p][v]);
          sum[r][p][v] = Fma(high[r], HighOfPairs(pairs), sum[r][p][v]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int32_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int32_t p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
      for (int32_t v = 0; v < kPanelVectors; ++v) {
        Store(c + r * args.c_stride + p * kPanelColumns + v * kLanes,
              sum[r][p][v]);
      }
    }
  }
}

// `rows` <= kRows rows times one panel: finds the tile of that many rows.
template <int32_t kRows>
void MatmulRows(const MatmulArgs& args, int32_t rows, const uint16_t* a,
                const uint16_t* b, float* c) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      MatmulTile<kRows, 1>(args, a, b, c);
    } else {
      MatmulRows<kRows - 1>(args, rows, a, b, c);
    }
  }
}

// One row or two, for which weights come from memory: several panels at a time,
// whose sums do not wait for each other, are one stream of it. Returns how many
// panels it has done.
template <int32_t kRows, int32_t kPanels>
int32_t MatmulFewRows(const MatmulArgs& args) {
  int32_t panel = 0;
  for (; panel + kPanels <= args.panels; panel += kPanels) {
    MatmulTile<kRows, kPanels>(args, args.a, args.b + panel * args.panel_stride,
                               args.c + panel * kPanelColumns);
  }
  return panel;
}

void Matmul(const MatmulArgs& args) {
  // As many sums as eight registers hold.
  constexpr int32_t kOneRowPanels = 8 / kPanelVectors;
  int32_t panel = 0;
  if (args.rows == 1) panel = MatmulFewRows<1, kOneRowPanels>(args);
  if (args.rows == 2) panel = MatmulFewRows<2, kOneRowPanels / 2>(args);
  for (; panel < args.panels; ++panel) {
    const uint16_t* const b = args.b + panel * args.panel_stride;
    for (int32_t row = 0; row < args.rows; row += kTileRows) {
      const int32_t rows =
          args.rows - row < kTileRows ? args.rows - row : kTileRows;
      MatmulRows<kTileRows>(
          args, rows, args.a + row * args.a_stride, b,
          args.c + row * args.c_stride + panel * kPanelColumns);
    }
  }
}

}  // namespace
}  // namespace baton::engine::cpu
