#include "tests/engine/cuda/rounded_weights.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "absl/types/span.h"
#include "common/log.h"
#include "engine/e4m3.h"
#include "engine/float_convert.h"
#include "engine/quantize_weights.h"

namespace baton::engine::cuda {

std::vector<float> RoundedRow(WeightFormat format, std::vector<float> row) {
  const size_t inputs = row.size();
  switch (format) {
    case WeightFormat::kBf16:
      for (float& w : row) w = Bf16ToFloat(FloatToBf16(w));
      break;
    case WeightFormat::kFp8: {
      std::vector<uint8_t> q(inputs);
      const float scale = QuantizeFp8(row, q.data());
      for (size_t i = 0; i < inputs; ++i) row[i] = E4m3ToFloat(q[i]) * scale;
      break;
    }
    case WeightFormat::kInt8: {
      std::vector<int8_t> q(inputs);
      const float scale = QuantizeInt8(row, q.data());
      for (size_t i = 0; i < inputs; ++i) {
        row[i] = static_cast<float>(q[i]) * scale;
      }
      break;
    }
    case WeightFormat::kInt4:
      for (size_t first = 0; first < inputs; first += 64) {
        int8_t q[64];
        const size_t count = std::min<size_t>(64, inputs - first);
        const float scale = Bf16ToFloat(
            QuantizeInt4(absl::MakeConstSpan(row).subspan(first, count), q));
        for (size_t i = 0; i < count; ++i) {
          row[first + i] = static_cast<float>(q[i]) * scale;
        }
      }
      break;
  }
  return row;
}

void RoundModelFile(WeightFormat format, const std::string& file, bool tied) {
  std::ifstream in(file, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  uint64_t header_bytes = 0;
  CHECK_GT(bytes.size(), sizeof(header_bytes)) << file;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const auto header =
      nlohmann::json::parse(bytes.substr(sizeof(header_bytes), header_bytes));
  char* const data = bytes.data() + sizeof(header_bytes) + header_bytes;
  int rounded = 0;
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__" || tensor["shape"].size() != 2) continue;
    if (name == "model.embed_tokens.weight" && !tied) continue;
    CHECK(tensor["dtype"] == "F32") << name;
    const auto rows = tensor["shape"][0].get<int64_t>();
    const auto columns = tensor["shape"][1].get<int64_t>();
    char* at = data + tensor["data_offsets"][0].get<int64_t>();
    for (int64_t r = 0; r < rows; ++r, at += columns * sizeof(float)) {
      std::vector<float> row(columns);
      std::memcpy(row.data(), at, columns * sizeof(float));
      row = RoundedRow(format, std::move(row));
      std::memcpy(at, row.data(), columns * sizeof(float));
    }
    ++rounded;
  }
  CHECK_GT(rounded, 7) << file;
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace baton::engine::cuda
