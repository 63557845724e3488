// The kernels that work on one row, as text shared by the files that are
// compiled for one instruction set each: see engine/vector_math.inl, which
// comes first. The including file has also defined
//   Halves ToBf16(Floats)   rounds to nearest even; NaN stays NaN; what is
//                           smaller than any normal number may become zero

namespace baton::engine::cpu {
namespace {

void RoundRow(const float* x, int32_t n, uint16_t* y) {
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Store(y + i, ToBf16(Load<Floats>(x + i)));
  }
  if (i < n) {
    const Floats part = LoadPart<Floats>(x + i, n - i);
    StorePart(y + i, ToBf16(part), n - i);
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
    Store(y + i, ToBf16(v));
  }
  if (i < n) {
    const Floats v = LoadPart<Floats>(x + i, n - i) * Set(factor) + Set(0.0f);
    StorePart(y + i, ToBf16(v), n - i);
  }
}

inline Floats Swiglu(Floats gate, Floats up) {
  return gate / (Set(1.0f) + Exp(-gate)) * up;
}

void SwigluRow(const float* gate, const float* up, int32_t n, float* y) {
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Store(y + i, Swiglu(Load<Floats>(gate + i), Load<Floats>(up + i)));
  }
  if (i < n) {
    const Floats part = Swiglu(LoadPart<Floats>(gate + i, n - i),
                               LoadPart<Floats>(up + i, n - i));
    StorePart(y + i, part, n - i);
  }
}

inline Floats LimitedSwiglu(Floats gate, Floats up, Floats limit) {
  // What is not a number stays so.
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : up;
  up = up < -limit ? -limit : up;
  return gate / (Set(1.0f) + Exp(gate * Set(-1.702f))) * (up + Set(1.0f));
}

void LimitedSwigluRow(const float* gate, const float* up, float limit,
                      int32_t n, float* y) {
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Store(y + i, LimitedSwiglu(Load<Floats>(gate + i), Load<Floats>(up + i),
                               Set(limit)));
  }
  if (i < n) {
    const Floats part =
        LimitedSwiglu(LoadPart<Floats>(gate + i, n - i),
                      LoadPart<Floats>(up + i, n - i), Set(limit));
    StorePart(y + i, part, n - i);
  }
}

inline Floats Geglu(Floats gate, Floats up) {
  // -2 sqrt(2 / pi), and that times 0.044715.
  const Floats slope = Fma(gate * gate, Set(-0.07135481627f),
                           Set(-1.5957691216f));
  return gate / (Set(1.0f) + Exp(gate * slope)) * up;
}

void GegluRow(const float* gate, const float* up, int32_t n, float* y) {
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Store(y + i, Geglu(Load<Floats>(gate + i), Load<Floats>(up + i)));
  }
  if (i < n) {
    const Floats part = Geglu(LoadPart<Floats>(gate + i, n - i),
                              LoadPart<Floats>(up + i, n - i));
    StorePart(y + i, part, n - i);
  }
}

inline Floats Magnitude(Floats x) {
  return (Floats)(Bits(x) & 0x7fffffffu);
}

// Calls body(vector, index, count) for the `n` values from x on, kLanes at a
// time; lanes from `count` on are zero.
template <typename Body>
inline void ForVectors(const float* x, int32_t n, Body body) {
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(Load<Floats>(x + i), i, kLanes);
  if (i < n) body(LoadPart<Floats>(x + i, n - i), i, n - i);
}

float Quantize(const float* x, int32_t n, int8_t* q, int32_t* sum) {
  // Below this 127 / max would not be finite.
  constexpr float kTiny = 1e-35f;
  // Adding it rounds to an integer that then stands in the low bits.
  const Floats magic = Set(12582912.0f);
  Floats max = Set(0.0f);
  Floats probe = Set(0.0f);  // NaN when a value is not finite
  ForVectors(x, n, [&](Floats v, int32_t, int32_t) {
    max = Max(Magnitude(v), max);
    probe += v * Set(0.0f);
  });
  const float largest = MaxLanes(max);
  const float factor = largest > kTiny ? 127.0f / largest : 0.0f;
  // Unsigned: what is not finite gives any number.
  Words total = {};
  ForVectors(x, n, [&](Floats v, int32_t i, int32_t count) {
    const Ints rounded =
        (Ints)Bits(v * Set(factor) + magic) - (Ints)Bits(magic);
    total += (Words)rounded;
    const Bytes bytes = __builtin_convertvector(rounded, Bytes);
    if (count == kLanes) {
      Store(q + i, bytes);
    } else {
      StorePart(q + i, bytes, count);
    }
  });
  const float scale =
      (largest > kTiny ? largest / 127.0f : 0.0f) + SumLanes(probe);
  uint32_t lanes = 0;
  for (int32_t lane = 0; lane < kLanes; ++lane) lanes += total[lane];
  *sum = scale != scale ? 0 : static_cast<int32_t>(lanes);
  return scale;
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
    const Halves p = ToBf16(Exp(score(i) - Set(new_max)));
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

void MergeSoftmax(SoftmaxState* total, float* sums, const SoftmaxState& part,
                  const float* part_sums, int32_t n) {
  if (part.sum == 0.0f) return;
  const float max = total->max > part.max ? total->max : part.max;
  const float keep = total->sum == 0.0f ? 0.0f : Exp(Set(total->max - max))[0];
  const float add = Exp(Set(part.max - max))[0];
  for (int32_t i = 0; i < n; i += kLanes) {
    Store(sums + i, Load<Floats>(sums + i) * Set(keep) +
                        Load<Floats>(part_sums + i) * Set(add));
  }
  total->max = max;
  total->sum = total->sum * keep + part.sum * add;
}

void Copy(const uint16_t* from, int32_t n, uint16_t* to) {
  for (int32_t i = 0; i < n; i += 2 * kLanes) {
    Store(to + i, Load<Words>(from + i));
  }
}

void DequantizePairs(const int8_t* pairs, int32_t n, const float* low_scales,
                     const float* high_scales, uint16_t* out) {
  for (int32_t i = 0; i < n; i += kPanelColumns) {
    for (int32_t c = 0; c < kPanelColumns; c += kLanes) {
      const Words both = __builtin_convertvector(
          Load<Halves>(reinterpret_cast<const uint16_t*>(pairs) + i + c),
          Words);
      const Ints low = (Ints)(both << 24) >> 24;
      const Ints high = (Ints)(both << 16) >> 24;
      const Words low_bits = RoundToBf16(__builtin_convertvector(low, Floats) *
                                         Load<Floats>(low_scales + c));
      const Words high_bits =
          RoundToBf16(__builtin_convertvector(high, Floats) *
                      Load<Floats>(high_scales + c));
      Store(out + 2 * (i + c), low_bits | high_bits << 16);
    }
  }
}

}  // namespace
}  // namespace baton::engine::cpu
