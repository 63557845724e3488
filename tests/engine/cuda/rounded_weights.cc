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
    case WeightFormat::kInt4: {
      std::vector<uint8_t> q(inputs);
      std::vector<uint16_t> codes((inputs + 63) / 64);
      const float scale = QuantizeInt4(row, {}, q.data(), codes.data());
      for (size_t i = 0; i < inputs; ++i) {
        row[i] = static_cast<float>(q[i] - Int4Zero(codes[i / 64])) *
                 Int4Scale(codes[i / 64]) * scale;
      }
      break;
    }
  }
  return row;
}

namespace {

// A model.safetensors, in parts.
struct ModelFile {
  explicit ModelFile(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    uint64_t header_bytes = 0;
    CHECK_GT(bytes.size(), sizeof(header_bytes)) << file;
    std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
    header =
        nlohmann::json::parse(bytes.substr(sizeof(header_bytes), header_bytes));
    data = bytes.substr(sizeof(header_bytes) + header_bytes);
  }
  void Write(const std::string& file) const {
    const std::string text = header.dump();
    const uint64_t size = text.size();
    std::ofstream(file, std::ios::binary | std::ios::trunc)
        << std::string(reinterpret_cast<const char*>(&size), sizeof(size))
        << text << data;
  }

  nlohmann::json header;
  std::string data;
};

std::vector<float> RowAt(const char* at, int64_t columns) {
  std::vector<float> row(columns);
  std::memcpy(row.data(), at, columns * sizeof(float));
  return row;
}

}  // namespace

void RoundModelFile(WeightFormat format, const std::string& file, bool tied) {
  ModelFile model(file);
  int rounded = 0;
  for (const auto& [name, tensor] : model.header.items()) {
    if (name == "__metadata__" || tensor["shape"].size() != 2) continue;
    if (name == "model.embed_tokens.weight" && !tied) continue;
    CHECK(tensor["dtype"] == "F32") << name;
    const auto rows = tensor["shape"][0].get<int64_t>();
    const auto columns = tensor["shape"][1].get<int64_t>();
    char* at = model.data.data() + tensor["data_offsets"][0].get<int64_t>();
    for (int64_t r = 0; r < rows; ++r, at += columns * sizeof(float)) {
      const std::vector<float> row = RoundedRow(format, RowAt(at, columns));
      std::memcpy(at, row.data(), columns * sizeof(float));
    }
    ++rounded;
  }
  CHECK_GT(rounded, 7) << file;
  model.Write(file);
}

void StoreAsFp8(const std::string& dir) {
  const std::string file = dir + "/model.safetensors";
  const ModelFile model(file);
  ModelFile stored = model;
  stored.data.clear();
  const auto put = [&](const std::string& name, const char* dtype,
                       const nlohmann::json& shape, const std::string& bytes) {
    const size_t begin = stored.data.size();
    stored.data += bytes;
    stored.header[name] = {{"dtype", dtype},
                           {"shape", shape},
                           {"data_offsets", {begin, stored.data.size()}}};
  };
  for (const auto& [name, tensor] : model.header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = tensor["data_offsets"][0].get<int64_t>();
    const auto end = tensor["data_offsets"][1].get<int64_t>();
    CHECK(tensor["dtype"] == "F32") << name;
    if (tensor["shape"].size() != 2 ||
        name.find("_proj.weight") == std::string::npos) {
      put(name, "F32", tensor["shape"], model.data.substr(begin, end - begin));
      continue;
    }
    const auto rows = tensor["shape"][0].get<int64_t>();
    const auto columns = tensor["shape"][1].get<int64_t>();
    std::string bytes(rows * columns, 0);
    std::vector<float> scales(rows);
    for (int64_t r = 0; r < rows; ++r) {
      scales[r] = QuantizeFp8(
          RowAt(model.data.data() + begin + r * columns * sizeof(float),
                columns),
          reinterpret_cast<uint8_t*>(bytes.data()) + r * columns);
    }
    put(name, "F8_E4M3", tensor["shape"], bytes);
    put(name + "_scale", "F32", {rows, 1},
        std::string(reinterpret_cast<const char*>(scales.data()),
                    scales.size() * sizeof(float)));
  }
  stored.Write(file);
  nlohmann::json config =
      nlohmann::json::parse(std::ifstream(dir + "/config.json"));
  config["quantization_config"] = {{"quant_method", "fbgemm_fp8"}};
  std::ofstream(dir + "/config.json", std::ios::trunc) << config.dump();
}

}  // namespace baton::engine::cuda
