// The products with int8 and int4 weights for instruction sets without a
// byte dot product, as text: see engine/cpu/panel_matmul.inl. The including
// file has also defined, in baton::engine:
//   Quad SetQuad(const int8_t*)             four activations
//   WeightQuads SplitQuads(Words)           four unsigned weights per lane
//   Ints TimesHalf(Ints, int32_t)           products of numbers of 16 bits, the
//                                           first of each not negative
//   Ints DotQuads(Ints sum, WeightQuads, Quad)

namespace baton::engine::cpu {
namespace {

constexpr int32_t kQuadsPerGroup = kGroupInputs / 4;

// kRows rows times kPanels panels.
template <int32_t kRows, int32_t kPanels, bool kInt4>
void QuantTile(const QuantMatmulArgs& args, int32_t first_row, int32_t panel) {
  constexpr int32_t kVectors = kPanels * kPanelVectors;
  const int8_t* a = args.a + first_row * args.a_stride;
  const uint8_t* b = args.b + panel * args.panel_stride;
  float* const c = args.c + first_row * args.c_stride + panel * kPanelColumns;
  // Of vector v: its panel's, and where it lies in it.
  const auto in_panel = [](int32_t v) { return v % kPanelVectors * kLanes; };
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
  for (int32_t g = 0; g < args.groups; ++g) {
    Ints dot[kRows][kVectors];
    Floats w_scale[kVectors];
#pragma GCC unroll 8
    for (int32_t v = 0; v < kVectors; ++v) {
      Ints zero = Ints{} + 128;
      if (kInt4) {
        const Words codes = __builtin_convertvector(
            Load<Halves>(
                args.group_codes +
                (panel + v / kPanelVectors) * args.code_panel_stride +
                g * args.code_group_stride + in_panel(v)),
            Words);
        zero = Int4Zeros(codes);
        w_scale[v] = Int4Scales(codes);
      }
#pragma GCC unroll 8
      for (int32_t r = 0; r < kRows; ++r) {
        dot[r][v] = TimesHalf(
            zero, -args.a_sums[(first_row + r) * args.group_stride + g]);
      }
    }
    for (int32_t q = 0; q < kQuadsPerGroup; q += kInt4 ? 2 : 1) {
#pragma GCC unroll 8
      for (int32_t v = 0; v < kVectors; ++v) {
        const Words bytes = Load<Words>(
            b + v / kPanelVectors * args.panel_stride + 4 * in_panel(v));
        const auto add = [&](const WeightQuads& w, int64_t first) {
#pragma GCC unroll 8
          for (int32_t r = 0; r < kRows; ++r) {
            const Quad quad = SetQuad(a + r * args.a_stride + first);
            dot[r][v] = DotQuads(dot[r][v], w, quad);
          }
        };
        add(SplitQuads(kInt4 ? bytes & 0x0f0f0f0fu : bytes), 0);
        if (kInt4) add(SplitQuads(bytes >> 4 & 0x0f0f0f0fu), 4);
      }
      a += kInt4 ? 8 : 4;
      b += args.step_stride;
    }
#pragma GCC unroll 8
    for (int32_t r = 0; r < kRows; ++r) {
      const Floats a_scale =
          Set(args.a_scales[(first_row + r) * args.group_stride + g]);
#pragma GCC unroll 8
      for (int32_t v = 0; v < kVectors; ++v) {
        const Floats scale = kInt4 ? a_scale * w_scale[v] : a_scale;
        sum[r][v] =
            Fma(__builtin_convertvector(dot[r][v], Floats), scale, sum[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int32_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int32_t v = 0; v < kVectors; ++v) {
      if (args.last) {
        sum[r][v] =
            sum[r][v] * Load<Floats>(args.column_scales +
                                     panel * kPanelColumns + v * kLanes);
      }
      Store(c + r * args.c_stride + v * kLanes, sum[r][v]);
    }
  }
}

template <bool kInt4>
void QuantMatmul(const QuantMatmulArgs& args) {
  int32_t panel = 0;
  if (args.rows == 1) {
    // As in Matmul: one stream of weights.
    constexpr int32_t kPanels = kInt4 ? 2 : 4;
    for (; panel + kPanels <= args.panels; panel += kPanels) {
      QuantTile<1, kPanels, kInt4>(args, 0, panel);
    }
  }
  for (; panel < args.panels; ++panel) {
    int32_t row = 0;
    for (; row + 2 <= args.rows; row += 2) {
      QuantTile<2, 1, kInt4>(args, row, panel);
    }
    if (row < args.rows) QuantTile<1, 1, kInt4>(args, row, panel);
  }
}

void MatmulInt8(const QuantMatmulArgs& args) { QuantMatmul<false>(args); }
void MatmulInt4(const QuantMatmulArgs& args) { QuantMatmul<true>(args); }

}  // namespace
}  // namespace baton::engine::cpu
