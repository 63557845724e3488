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
  for (; i < n; i += kLanes) {
    const int32_t count = n - i < kLanes ? n - i : kLanes;
    const Floats a = LoadPart<Floats>(x + i, count);
    even = Fma(a, a, even);
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
  for (int32_t i = 0; i < half; i += kLanes) {
    const int32_t count = half - i < kLanes ? half - i : kLanes;
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
  for (int32_t i = 0; i < n; i += kLanes) {
    const int32_t count = n - i < kLanes ? n - i : kLanes;
    const Floats v =
        LoadPart<Floats>(x + i, count) * Set(factor) + Set(0.0f);
    StorePart(y + i, Narrow(RoundToBf16(v)), count);
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

float Softmax(const float* scores, int32_t n, int32_t begin, int32_t end,
              float factor, SoftmaxState* state, uint16_t* probabilities) {
  if (begin >= end) {
    for (int32_t i = 0; i < n; i += kLanes) {
      Store(probabilities + i, Halves{});
    }
    return 1.0f;
  }
  const Ints lanes = LaneNumbers();
  const Floats hidden = Set(-__builtin_inff());
  const auto score = [&](int32_t i) {
    const Ints index = lanes + i;
    const Ints visible = (index >= begin) & (index < end);
    return visible ? Load<Floats>(scores + i) * Set(factor) : hidden;
  };
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

void PackValues(const uint16_t* const* values, int32_t rows, int32_t head_dim,
                uint16_t* panels, int64_t panel_stride) {
  for (int32_t row = 0; row < rows; row += 2) {
    const uint16_t* const first = values[row];
    const uint16_t* const second = values[row + 1];
    for (int32_t d = 0; d < head_dim; d += kLanes) {
      const int32_t count = head_dim - d < kLanes ? head_dim - d : kLanes;
      const Words low = __builtin_convertvector(
          LoadPart<Halves>(first + d, count), Words);
      const Words high = __builtin_convertvector(
          LoadPart<Halves>(second + d, count), Words);
      uint16_t* const out = panels + d / kPanelColumns * panel_stride +
                            row / 2 * kPanelPairElements +
                            d % kPanelColumns * 2;
      Store(out, low | (high << 16));
    }
    for (int32_t d = (head_dim + kLanes - 1) / kLanes * kLanes;
         d % kPanelColumns != 0; d += kLanes) {
      uint16_t* const out = panels + d / kPanelColumns * panel_stride +
                            row / 2 * kPanelPairElements +
                            d % kPanelColumns * 2;
      Store(out, Words{});
    }
  }
}

}  // namespace
}  // namespace baton::engine::cpu
