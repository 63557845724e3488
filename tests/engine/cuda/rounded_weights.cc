#include "tests/engine/cuda/rounded_weights.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>

#include "absl/types/span.h"
#include "common/json.h"
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

namespace {

// A model.safetensors that is being made.
struct ModelParts {
  void Put(const std::string& name, const char* dtype,
           const nlohmann::json& shape, const std::string& bytes) {
    const size_t begin = file.data.size();
    file.data += bytes;
    file.header[name] = {{"dtype", dtype},
                         {"shape", shape},
                         {"data_offsets", {begin, file.data.size()}}};
  }
  template <typename T>
  void Put(const std::string& name, const char* dtype,
           const nlohmann::json& shape, const std::vector<T>& values) {
    Put(name, dtype, shape,
        std::string(reinterpret_cast<const char*>(values.data()),
                    values.size() * sizeof(T)));
  }
  ModelFile file;
};

// A matrix of F32.
struct PlainMatrix {
  std::string module;
  int64_t rows;
  int64_t columns;
  const char* values;

  std::vector<float> Row(int64_t row) const {
    return RowAt(values + row * columns * sizeof(float), columns);
  }
};

// Writes the directory's layers' matrices anew, by `store`, and to its
// config.json how they are quantized.
void StoreQuantized(
    const std::string& dir, const nlohmann::json& quantization,
    const std::function<void(const PlainMatrix&, ModelParts&)>& store) {
  const std::string file = dir + "/model.safetensors";
  const ModelFile model(file);
  ModelParts stored = {model};
  stored.file.data.clear();
  for (const auto& [name, tensor] : model.header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = tensor["data_offsets"][0].get<int64_t>();
    const auto end = tensor["data_offsets"][1].get<int64_t>();
    CHECK(tensor["dtype"] == "F32") << name;
    const size_t module = name.find("_proj.weight");
    if (tensor["shape"].size() != 2 || module == std::string::npos) {
      stored.Put(name, "F32", tensor["shape"],
                 model.data.substr(begin, end - begin));
      continue;
    }
    stored.file.header.erase(name);
    store({name.substr(0, module + 5), tensor["shape"][0].get<int64_t>(),
           tensor["shape"][1].get<int64_t>(), model.data.data() + begin},
          stored);
  }
  stored.file.Write(file);
  nlohmann::json config =
      nlohmann::json::parse(std::ifstream(dir + "/config.json"));
  config["quantization_config"] = quantization;
  std::ofstream(dir + "/config.json", std::ios::trunc) << config.dump();
}

}  // namespace

void StoreAsFp8(const std::string& dir) {
  StoreQuantized(dir, {{"quant_method", "fbgemm_fp8"}},
                 [](const PlainMatrix& matrix, ModelParts& stored) {
                   std::vector<uint8_t> bytes(matrix.rows * matrix.columns);
                   std::vector<float> scales(matrix.rows);
                   for (int64_t r = 0; r < matrix.rows; ++r) {
                     scales[r] = QuantizeFp8(matrix.Row(r),
                                             bytes.data() + r * matrix.columns);
                   }
                   stored.Put(matrix.module + ".weight", "F8_E4M3",
                              {matrix.rows, matrix.columns}, bytes);
                   stored.Put(matrix.module + ".weight_scale", "F32",
                              {matrix.rows, 1}, scales);
                 });
}

void StoreAsGptq(const std::string& dir) {
  constexpr int64_t kGroup = 64;
  StoreQuantized(
      dir,
      {{"quant_method", "gptq"},
       {"bits", 4},
       {"group_size", kGroup},
       {"sym", false}},
      [](const PlainMatrix& matrix, ModelParts& stored) {
        const int64_t rows = matrix.rows;
        const int64_t columns = matrix.columns;
        CHECK(rows % 8 == 0 && columns % 8 == 0) << matrix.module;
        const int64_t groups = (columns + kGroup - 1) / kGroup;
        std::vector<uint32_t> words(columns / 8 * rows);
        std::vector<uint32_t> zeros(groups * rows / 8);
        std::vector<float> scales(groups * rows);
        for (int64_t r = 0; r < rows; ++r) {
          std::vector<uint8_t> q(columns);
          std::vector<uint16_t> codes(groups);
          const float scale =
              QuantizeInt4(matrix.Row(r), {}, q.data(), codes.data());
          for (int64_t k = 0; k < columns; ++k) {
            words[k / 8 * rows + r] |= uint32_t{q[k]} << 4 * (k % 8);
          }
          for (int64_t g = 0; g < groups; ++g) {
            scales[g * rows + r] = Int4Scale(codes[g]) * scale;
            // Stored less one.
            const auto zero = static_cast<uint32_t>(Int4Zero(codes[g]) - 1);
            zeros[(g * rows + r) / 8] |= (zero & 15) << 4 * (r % 8);
          }
        }
        stored.Put(matrix.module + ".qweight", "I32", {columns / 8, rows},
                   words);
        stored.Put(matrix.module + ".qzeros", "I32", {groups, rows / 8}, zeros);
        stored.Put(matrix.module + ".scales", "F32", {groups, rows}, scales);
      });
}

}  // namespace baton::engine::cuda
