#include "engine/quantize_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/e4m3.h"
#include "engine/float_convert.h"

namespace baton::engine {
namespace {

// Adding it rounds to an integer.
constexpr float kMagic = 12582912.0f;

// Scales that are tried, as shares of the one with which 16 values span all
// weights. Below 1 the outermost are clipped, which pays when the others are
// much smaller. The first is for weights whose squares are not finite.
constexpr float kInt4Shares[] = {1.0f, 0.95f, 0.90f, 0.85f, 0.80f};

// How far below an output's largest exponent of a scale the others may be.
constexpr int32_t kExponentSpan = 31;

bool AllFinite(absl::Span<const float> weights) {
  bool finite = true;
  for (const float w : weights) {
    finite &= std::fabs(w) <= std::numeric_limits<float>::max();
  }
  return finite;
}

inline float Clamp(float x, float least, float greatest) {
  return std::min(greatest, std::max(least, x));
}
inline float RoundHalfEven(float x) { return x + kMagic - kMagic; }

// (q - zero) of the nearest q of [0, 15].
inline float OnGrid(float w, float inverse, float zero) {
  return Clamp(RoundHalfEven(w * inverse), 0.0f - zero, 15.0f - zero);
}

float SquaredError(absl::Span<const float> weights, float scale, float zero) {
  const float inverse = 1.0f / scale;
  // Lanes of their own let the compiler use vectors.
  float sums[16] = {};
  size_t i = 0;
  for (; i + 16 <= weights.size(); i += 16) {
    for (size_t lane = 0; lane < 16; ++lane) {
      const float w = weights[i + lane];
      const float error = w - OnGrid(w, inverse, zero) * scale;
      sums[lane] += error * error;
    }
  }
  float sum = 0.0f;
  for (; i < weights.size(); ++i) {
    const float error = weights[i] - OnGrid(weights[i], inverse, zero) * scale;
    sum += error * error;
  }
  for (const float lane : sums) sum += lane;
  return sum;
}

// The exponent's bits of a bfloat16 that is a scale; 0 of what is none.
int32_t ExponentOf(uint16_t scale) {
  const int32_t exponent = scale >> 7;  // of a negative one, too large
  return exponent < 255 ? exponent : 0;
}

}  // namespace

std::string QuantizedIdentity(absl::string_view model,
                              absl::string_view dtype) {
  if (dtype == "bf16" || dtype == "mxfp4") return std::string(model);
  return absl::StrCat(model, "-", dtype, "-", kQuantizationVersion);
}

float QuantizeInt8(absl::Span<const float> weights, int8_t* q) {
  if (!AllFinite(weights)) {
    std::fill_n(q, weights.size(), int8_t{1});
    return std::numeric_limits<float>::quiet_NaN();
  }
  float largest = 0.0f;
  for (const float w : weights) largest = std::max(largest, std::fabs(w));
  const float scale = largest / 127.0f;
  const float inverse = scale > 0.0f ? 127.0f / largest : 0.0f;
  if (!std::isfinite(inverse)) {
    // What is all but zero becomes zero.
    std::fill_n(q, weights.size(), int8_t{1});
    return 0.0f;
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    q[i] = static_cast<int8_t>(weights[i] * inverse + kMagic - kMagic);
  }
  return scale;
}

Int4Grid FindInt4Grid(absl::Span<const float> weights) {
  float least = 0.0f;
  float greatest = 0.0f;
  for (const float w : weights) {
    least = std::min(least, w);
    greatest = std::max(greatest, w);
  }
  // Halves and fifteenths first: the difference might not be finite.
  const float middle = 0.5f * least + 0.5f * greatest;
  const float step = greatest * (1.0f / 15.0f) - least * (1.0f / 15.0f);
  Int4Grid best;
  float best_error = std::numeric_limits<float>::infinity();
  for (const float share : kInt4Shares) {
    const uint16_t bits = FloatToBf16(step * share);
    if (ExponentOf(bits) == 0) continue;
    const float scale = Bf16ToFloat(bits);
    const float zero =
        Clamp(RoundHalfEven(7.5f - middle * (1.0f / scale)), 0.0f, 15.0f);
    const float error = SquaredError(weights, scale, zero);
    if (best.scale == 0.0f || error < best_error) {
      best_error = error;
      best = {scale, static_cast<int32_t>(zero)};
    }
  }
  return best;
}

float QuantizeInt4(absl::Span<const float> weights,
                   absl::Span<const Int4Grid> grids, uint8_t* q,
                   uint16_t* codes) {
  const size_t groups =
      (weights.size() + kInt4GroupInputs - 1) / kInt4GroupInputs;
  std::fill_n(q, weights.size(), uint8_t{0});
  std::fill_n(codes, groups, uint16_t{0});
  if (!AllFinite(weights)) return std::numeric_limits<float>::quiet_NaN();
  int32_t top = 0;  // the largest exponent of a scale
  std::vector<int32_t> zeros(groups);
  for (size_t g = 0; g < groups; ++g) {
    const size_t first = g * kInt4GroupInputs;
    const auto group = weights.subspan(first, kInt4GroupInputs);
    Int4Grid grid = grids.empty() ? Int4Grid{} : grids[g];
    if (ExponentOf(FloatToBf16(grid.scale)) == 0) grid = FindInt4Grid(group);
    const float inverse = grid.scale > 0.0f ? 1.0f / grid.scale : 0.0f;
    const auto zero = static_cast<float>(grid.zero);
    for (size_t i = 0; i < group.size(); ++i) {
      q[first + i] =
          static_cast<uint8_t>(OnGrid(group[i], inverse, zero) + zero);
    }
    zeros[g] = grid.zero;
    codes[g] = FloatToBf16(grid.scale);  // for now
    top = std::max(top, ExponentOf(codes[g]));
  }
  for (size_t g = 0; g < groups; ++g) {
    const int32_t exponent = ExponentOf(codes[g]) - top + kExponentSpan;
    if (ExponentOf(codes[g]) == 0 || exponent < 0) {
      // Next to the output's others these weights are zero.
      const size_t first = g * kInt4GroupInputs;
      std::fill_n(q + first,
                  std::min<size_t>(kInt4GroupInputs, weights.size() - first),
                  static_cast<uint8_t>(zeros[g]));
      codes[g] = static_cast<uint16_t>(zeros[g]);
    } else {
      codes[g] = static_cast<uint16_t>(exponent << 11 | (codes[g] & 127) << 4 |
                                       zeros[g]);
    }
  }
  return std::bit_cast<float>(static_cast<uint32_t>(top) << 23);
}

float QuantizeFp8(absl::Span<const float> weights, uint8_t* q) {
  if (!AllFinite(weights)) {
    std::fill_n(q, weights.size(), uint8_t{0});
    return std::numeric_limits<float>::quiet_NaN();
  }
  float largest = 0.0f;
  for (const float w : weights) largest = std::max(largest, std::fabs(w));
  const float scale = largest / kE4m3Max;
  const float inverse = scale > 0.0f ? kE4m3Max / largest : 0.0f;
  if (!std::isfinite(inverse)) {
    // What is all but zero becomes zero.
    std::fill_n(q, weights.size(), uint8_t{0});
    return 0.0f;
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    q[i] = FloatToE4m3(weights[i] * inverse);
  }
  return scale;
}

}  // namespace baton::engine
