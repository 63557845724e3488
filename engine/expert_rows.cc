#include "engine/expert_rows.h"

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "engine/dtype.h"
#include "engine/float_convert.h"
#include "engine/mxfp4.h"

namespace baton::engine {
namespace {

void ReadMxfp4Row(const WeightMatrix& matrix, int64_t stored, float* out) {
  const int64_t groups = matrix.columns / kMxfp4Group;
  const std::byte* from =
      matrix.values.bytes.data() + stored * groups * kMxfp4GroupBytes;
  const std::byte* const scales = matrix.scales.bytes.data() + stored * groups;
  for (int64_t group = 0; group < groups; ++group) {
    const float scale = E8m0ToFloat(std::to_integer<int>(scales[group]));
    for (int64_t i = 0; i < kMxfp4GroupBytes; ++i, ++from) {
      const auto pair = std::to_integer<unsigned>(*from);
      *out++ = E2m1ToFloat(pair & 0xf) * scale;
      *out++ = E2m1ToFloat(pair >> 4) * scale;
    }
  }
}

// Input by input, as neighbouring outputs share lines of the cache.
void ReadByInput(const WeightMatrix& matrix, int64_t row, int64_t count,
                 absl::Span<float> out) {
  const int64_t element = DTypeBytes(matrix.values.dtype);
  const int64_t outputs = static_cast<int64_t>(matrix.values.bytes.size()) /
                          (element * matrix.columns);
  const int64_t first = matrix.run.At(row);
  const int64_t width = matrix.run.At(row + count - 1) - first + 1;
  std::vector<float> values(width);
  for (int64_t input = 0; input < matrix.columns; ++input) {
    ConvertToFloat(matrix.values.dtype,
                   matrix.values.bytes.subspan(
                       (input * outputs + first) * element, width * element),
                   absl::MakeSpan(values));
    for (int64_t i = 0; i < count; ++i) {
      out[i * matrix.columns + input] = values[matrix.run.At(row + i) - first];
    }
  }
}

}  // namespace

void ReadExpertRows(const WeightMatrix& matrix, int64_t row, int64_t count,
                    absl::Span<float> out) {
  if (count == 0) return;
  if (matrix.encoding == WeightEncoding::kByInput) {
    return ReadByInput(matrix, row, count, out);
  }
  for (int64_t i = 0; i < count; ++i) {
    ReadMxfp4Row(matrix, matrix.run.At(row + i),
                 out.data() + i * matrix.columns);
  }
}

}  // namespace baton::engine
