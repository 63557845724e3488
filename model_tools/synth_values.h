// Random weights as bytes: normal values that are a pure function of seed,
// tensor and index, so that it does not matter who computes which part.
//
// Pure; any thread, apart from the construction of NormalValues.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/dtype.h"

namespace baton::model_tools {

// Writes random bytes [first, first + out.size()) of the tensor `name` of the
// model `seed`.
// REQUIRES: first is a multiple of kRandomGranule.
inline constexpr int64_t kRandomGranule = 16;
void FillRandom(uint64_t seed, absl::string_view name, int64_t first,
                absl::Span<std::byte> out);

// IEEE half, rounded to nearest even; what is beyond its range is infinity.
uint16_t FloatToF16(float value);

// Values of mean `center` and standard deviation `spread`, rounded to `dtype`.
// There are 65,536 different ones, each as likely: the quantiles in the middle
// of as many equal parts of the distribution (the outermost are 4.3 standard
// deviations away).
class NormalValues final {
 public:
  // REQUIRES: dtype is F32, F16 or BF16.
  NormalValues(engine::DType dtype, float center, float spread);

  // Writes elements [first, first + n) of the tensor `name` of the model
  // `seed`, where out holds n elements.
  // REQUIRES: first is a multiple of kGranule.
  void Fill(uint64_t seed, absl::string_view name, int64_t first,
            absl::Span<std::byte> out) const;

  // Elements that come from one draw.
  static constexpr int64_t kGranule = 8;

 private:
  template <typename T>
  void FillAs(const std::vector<T>& values, uint64_t seed,
              absl::string_view name, int64_t first,
              absl::Span<std::byte> out) const;

  std::vector<uint16_t> halves_;  // F16 or BF16, by 16 random bits
  std::vector<float> floats_;     // F32
};

}  // namespace baton::model_tools
