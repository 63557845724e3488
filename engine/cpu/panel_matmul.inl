// The matrix product for instruction sets without a bfloat16 dot product, as
// text shared by the files that are compiled for one of them: see
// engine/vector_math.inl, which comes first. The including file has defined
// kTileRows, the rows whose sums stay in registers together.

namespace baton::engine::cpu {
namespace {

constexpr int32_t kPanelVectors = kPanelColumns / kLanes;

inline Floats LowOfPairs(Words pairs) { return (Floats)(pairs << 16); }
inline Floats HighOfPairs(Words pairs) {
  return (Floats)(pairs & 0xffff0000u);
}

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

// kRows rows times one panel.
template <int32_t kRows>
void MatmulTile(const MatmulArgs& args, const uint16_t* a, const uint16_t* b,
                float* c) {
  Floats sum[kRows][kPanelVectors];
  for (int32_t r = 0; r < kRows; ++r) {
    for (int32_t v = 0; v < kPanelVectors; ++v) {
      sum[r][v] = args.accumulate
                      ? Load<Floats>(c + r * args.c_stride + v * kLanes)
                      : Set(0.0f);
    }
  }
  for (int32_t k = 0; k < args.k_pairs; ++k, b += args.pair_stride) {
    Words pairs[kPanelVectors];
    for (int32_t v = 0; v < kPanelVectors; ++v) {
      pairs[v] = Load<Words>(b + 2 * v * kLanes);
    }
    for (int32_t r = 0; r < kRows; ++r) {
      const uint32_t pair = LoadPair(a + r * args.a_stride + 2 * k);
      const Floats low = SetBits(pair << 16);
      const Floats high = SetBits(pair & 0xffff0000u);
      for (int32_t v = 0; v < kPanelVectors; ++v) {
        sum[r][v] = Fma(low, LowOfPairs(pairs[v]), sum[r][v]);
        sum[r][v] = Fma(high, HighOfPairs(pairs[v]), sum[r][v]);
      }
    }
  }
  for (int32_t r = 0; r < kRows; ++r) {
    for (int32_t v = 0; v < kPanelVectors; ++v) {
      Store(c + r * args.c_stride + v * kLanes, sum[r][v]);
    }
  }
}

// `rows` <= kRows rows times one panel: finds the tile of that many rows.
template <int32_t kRows>
void MatmulRows(const MatmulArgs& args, int32_t rows, const uint16_t* a,
                const uint16_t* b, float* c) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      MatmulTile<kRows>(args, a, b, c);
    } else {
      MatmulRows<kRows - 1>(args, rows, a, b, c);
    }
  }
}

void Matmul(const MatmulArgs& args) {
  for (int32_t panel = 0; panel < args.panels; ++panel) {
    const uint16_t* const b = args.b + panel * args.panel_stride;
    for (int32_t row = 0; row < args.rows; row += kTileRows) {
      const int32_t rows =
          args.rows - row < kTileRows ? args.rows - row : kTileRows;
      MatmulRows<kTileRows>(args, rows, args.a + row * args.a_stride, b,
                            args.c + row * args.c_stride +
                                panel * kPanelColumns);
    }
  }
}

}  // namespace
}  // namespace baton::engine::cpu
