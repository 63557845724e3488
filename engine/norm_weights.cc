#include "engine/norm_weights.h"

#include "absl/types/span.h"
#include "engine/float_convert.h"

namespace baton::engine {

std::vector<float> NormWeights(const ModelConfig& config,
                               const TensorView& norm) {
  std::vector<float> values(norm.num_elements());
  ConvertToFloat(norm.dtype, norm.bytes, absl::MakeSpan(values));
  for (float& value : values) value += static_cast<float>(config.norm_offset);
  return values;
}

std::vector<float> NormWeights(const ModelConfig& config,
                               const std::optional<TensorView>& norm) {
  return norm ? NormWeights(config, *norm) : std::vector<float>();
}

}  // namespace baton::engine
