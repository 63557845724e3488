// The kernels that work on one row, as text shared by the files that are
// compiled for one instruction set each: see engine/vector_math.inl, which
// comes first.

namespace baton::engine::cpu {
namespace {

void RoundRow(const float* x, int32_t n, uint16_t* y) {
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Store(y + i, Narrow(RoundToBf16(Load<Floats>(x + i))));
  }
  if (i < n) {
    const Floats part = LoadPart<Floats>(x + i, n - i);
    StorePart(y + i, Narrow(RoundToBf16(part)), n - i);
  }
}

// 1 / sqrt(mean(x^2) + eps). Two accumulators, by the parity of the vector.
float InverseRms(const float* x, int32_t n, float eps) {
  Floats even = Set(0.0f);
  Floats odd = Set(0.0f);
  int32_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const Floats a = Load<Floats>(x + i);
    const Floats b = Load<Floats>(x + i + kLanes);
    even = Fma(a, a, even);
    odd = Fma(b, b, odd);
  }
  if (i + kLanes <= n) {
    const Floats a = Load<Floats>(x + i);
    even = Fma(a, a, even);
    i += kLanes;
  }
  if (i < n) {
    const Floats a = LoadPart<Floats>(x + i, n - i);
    odd = Fma(a, a, odd);
  }
  const float mean = SumLanes(even + odd) / static_cast<float>(n);
  return 1.0f / __builtin_sqrtf(mean + eps);
}

void RmsNorm(const float* x, const float* weight, int32_t n, float eps,
             float* y) {
  const Floats inverse = Set(InverseRms(x, n, eps));
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Store(y + i, Load<Floats>(x + i) * inverse * Load<Floats>(weight + i));
  }
  if (i < n) {
    const Floats part = LoadPart<Floats>(x + i, n - i) * inverse *
                        LoadPart<Floats>(weight + i, n - i);
    StorePart(y + i, part, n - i);
  }
}

void RmsNormRound(const float* x, const float* weight, int32_t n, float eps,
                  uint16_t* y) {
  const Floats inverse = Set(InverseRms(x, n, eps));
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Floats v =
        Load<Floats>(x + i) * inverse * Load<Floats>(weight + i);
    Store(y + i, Narrow(RoundToBf16(v)));
  }
  if (i < n) {
    const Floats part = LoadPart<Floats>(x + i, n - i) * inverse *
                        LoadPart<Floats>(weight + i, n - i);
    StorePart(y + i, Narrow(RoundToBf16(part)), n - i);
  }
}

void Rope(float* x, const float* cos, const float* sin, int32_t half) {
  int32_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Floats a = Load<Floats>(x + i);
    const Floats b = Load<Floats>(x + half + i);
    const Floats c = Load<Floats>(cos + i);
    const Floats s = Load<Floats>(sin + i);
    Store(x + i, a * c - b * s);
    Store(x + half + i, b * c + a * s);
  }
  if (i < half) {
    const int32_t count = half - i;
    const Floats a = LoadPart<Floats>(x + i, count);
    const Floats b = LoadPart<Floats>(x + half + i, count);
    const Floats c = LoadPart<Floats>(cos + i, count);
    const Floats s = LoadPart<Floats>(sin + i, count);
    StorePart(x + i, a * c - b * s, count);
    StorePart(x + half + i, b * c + a * s, count);
  }
}

void Add(float* x, const float* y, int32_t n) {
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Store(x + i, Load<Floats>(x + i) + Load<Floats>(y + i));
  }
  for (; i < n; ++i) x[i] += y[i];
}

void Scale(float* x, float factor, int32_t n) {
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Store(x + i, Load<Floats>(x + i) * Set(factor));
  }
  for (; i < n; ++i) x[i] *= factor;
}

void ScaleRound(const float* x, float factor, int32_t n, uint16_t* y) {
  // Adding zero makes zeros positive.
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Floats v = Load<Floats>(x + i) * Set(factor) + Set(0.0f);
    Store(y + i, Narrow(RoundToBf16(v)));
  }
  if (i < n) {
    const Floats v = LoadPart<Floats>(x + i, n - i) * Set(factor) + Set(0.0f);
    StorePart(y + i, Narrow(RoundToBf16(v)), n - i);
  }
}

inline Floats Swiglu(Floats gate, Floats up) {
  return gate / (Set(1.0f) + Exp(-gate)) * up;
}

void SwigluRound(const float* gate, const float* up, int32_t n, uint16_t* y) {
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Floats v = Swiglu(Load<Floats>(gate + i), Load<Floats>(up + i));
    Store(y + i, Narrow(RoundToBf16(v)));
  }
  if (i < n) {
    const Floats part = Swiglu(LoadPart<Floats>(gate + i, n - i),
                               LoadPart<Floats>(up + i, n - i));
    StorePart(y + i, Narrow(RoundToBf16(part)), n - i);
  }
}

// The lane numbers 0, 1, 2, ...
inline Ints LaneNumbers() {
  Ints v;
  for (int32_t i = 0; i < kLanes; ++i) v[i] = i;
  return v;
}

// What Softmax does with scores that score(i) reads, kLanes from i on.
template <typename Score>
inline float SoftmaxOf(Score score, int32_t n, SoftmaxState* state,
                       uint16_t* probabilities) {
  Floats max = Set(state->max);
  for (int32_t i = 0; i < n; i += kLanes) max = Max(score(i), max);
  const float new_max = MaxLanes(max);
  Floats sum = Set(0.0f);
  for (int32_t i = 0; i < n; i += kLanes) {
    const Halves p = Narrow(RoundToBf16(Exp(score(i) - Set(new_max))));
    Store(probabilities + i, p);
    // The rounded values are what the weighted sum uses.
    sum += WidenBf16(p);
  }
  const float rescale =
      new_max == state->max ? 1.0f : Exp(Set(state->max - new_max))[0];
  state->max = new_max;
  state->sum = state->sum * rescale + SumLanes(sum);
  return rescale;
}

float Softmax(const float* scores, int32_t n, int32_t begin, int32_t end,
              float factor, SoftmaxState* state, uint16_t* probabilities) {
  if (begin >= end) {
    for (int32_t i = 0; i < n; i += kLanes) {
      Store(probabilities + i, Halves{});
    }
    return 1.0f;
  }
  const auto all = [&](int32_t i) {
    return Load<Floats>(scores + i) * Set(factor);
  };
  if (begin <= 0 && end >= n) {
    return SoftmaxOf(all, n, state, probabilities);
  }
  const Ints lanes = LaneNumbers();
  const auto visible_only = [&](int32_t i) {
    const Ints index = lanes + i;
    const Ints visible = (index >= begin) & (index < end);
    return visible ? all(i) : Set(-__builtin_inff());
  };
  return SoftmaxOf(visible_only, n, state, probabilities);
}

// Words whose halves are the elements of two rows.
inline Words Interleave(Halves low, Halves high) {
  return __builtin_convertvector(low, Words) |
         __builtin_convertvector(high, Words) << 16;
}

void PackValues(const uint16_t* const* values, int32_t rows, int32_t head_dim,
                uint16_t* panels, int64_t panel_stride) {
  const int32_t whole = head_dim / kLanes * kLanes;
  const int32_t padded =
      (head_dim + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
  const auto place = [&](int32_t row, int32_t d) {
    return panels + d / kPanelColumns * panel_stride +
           row / 2 * kPanelPairElements + d % kPanelColumns * 2;
  };
  for (int32_t row = 0; row < rows; row += 2) {
    const uint16_t* const first = values[row];
    const uint16_t* const second = values[row + 1];
    for (int32_t d = 0; d < whole; d += kLanes) {
      Store(place(row, d), Interleave(Load<Halves>(first + d),
                                      Load<Halves>(second + d)));
    }
    for (int32_t d = whole; d < padded; d += kLanes) {
      const int32_t count = d < head_dim ? head_dim - d : 0;
      Store(place(row, d), Interleave(LoadPart<Halves>(first + d, count),
                                      LoadPart<Halves>(second + d, count)));
    }
  }
}

}  // namespace
}  // namespace baton::engine::cpu
