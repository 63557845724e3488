#include "engine/quantize_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/e4m3.h"
#include "engine/float_convert.h"

namespace baton::engine {
namespace {

// Adding it rounds to an integer.
constexpr float kMagic = 12582912.0f;

// The largest weight lies at step 8 times this of the grid: above 1 it is
// clipped, which pays when the others are much smaller. Weights that were such
// integers before, of a symmetric GPTQ checkpoint, are found again: of 64 of
// them, which mostly are half of a group, the largest magnitude is 5 to 8. The
// first is for weights whose squares are not finite.
constexpr float kInt4Steps[] = {0.80f, 0.85f, 0.90f,  0.95f, 1.00f, 1.05f,
                                1.10f, 1.15f, 0.875f, 0.75f, 0.625f};

bool AllFinite(absl::Span<const float> weights) {
  bool finite = true;
  for (const float w : weights) {
    finite &= std::fabs(w) <= std::numeric_limits<float>::max();
  }
  return finite;
}

inline float RoundInt4(float scaled) {
  const float rounded = scaled + kMagic - kMagic;
  return std::min(7.0f, std::max(-8.0f, rounded));
}

float SquaredError(absl::Span<const float> weights, float scale) {
  const float inverse = 1.0f / scale;
  // Lanes of their own let the compiler use vectors.
  float sums[16] = {};
  size_t i = 0;
  for (; i + 16 <= weights.size(); i += 16) {
    for (size_t lane = 0; lane < 16; ++lane) {
      const float w = weights[i + lane];
      const float error = w - RoundInt4(w * inverse) * scale;
      sums[lane] += error * error;
    }
  }
  float sum = 0.0f;
  for (; i < weights.size(); ++i) {
    const float error = weights[i] - RoundInt4(weights[i] * inverse) * scale;
    sum += error * error;
  }
  for (const float lane : sums) sum += lane;
  return sum;
}

}  // namespace

std::string QuantizedIdentity(absl::string_view model,
                              absl::string_view dtype) {
  if (dtype == "bf16") return std::string(model);
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

uint16_t QuantizeInt4(absl::Span<const float> weights, int8_t* q) {
  if (!AllFinite(weights)) {
    std::fill_n(q, weights.size(), int8_t{1});
    return FloatToBf16(std::numeric_limits<float>::quiet_NaN());
  }
  float largest = 0.0f;  // with its sign
  for (const float w : weights) {
    if (std::fabs(w) > std::fabs(largest)) largest = w;
  }
  float best_scale = 0.0f;
  float best_error = std::numeric_limits<float>::infinity();
  for (const float step : kInt4Steps) {
    // The end of the grid that reaches further is on the largest one's side.
    const float scale = Bf16ToFloat(FloatToBf16(largest / (-8.0f * step)));
    if (scale == 0.0f || !std::isfinite(1.0f / scale)) continue;
    const float error = SquaredError(weights, scale);
    // The squares of huge weights are not finite for any step.
    if (best_scale == 0.0f || error < best_error) {
      best_error = error;
      best_scale = scale;
    }
  }
  if (best_scale == 0.0f) {
    std::fill_n(q, weights.size(), int8_t{1});
    return FloatToBf16(0.0f);
  }
  const float inverse = 1.0f / best_scale;
  for (size_t i = 0; i < weights.size(); ++i) {
    q[i] = static_cast<int8_t>(RoundInt4(weights[i] * inverse));
  }
  return FloatToBf16(best_scale);
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
