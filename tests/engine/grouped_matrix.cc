#include "tests/engine/grouped_matrix.h"

#include <random>

#include "common/log.h"
#include "engine/float_convert.h"

namespace baton::engine {
namespace {

template <typename T>
std::string Text(const std::vector<T>& data) {
  return std::string(reinterpret_cast<const char*>(data.data()),
                     data.size() * sizeof(T));
}

}  // namespace

GroupedMatrix::GroupedMatrix(int64_t outputs, int64_t inputs,
                             int64_t group_size, int bits, uint32_t seed)
    : outputs(outputs),
      inputs(inputs),
      groups((inputs + group_size - 1) / group_size),
      group_size(group_size),
      bits(bits) {
  std::mt19937 random(seed);
  const uint32_t mask = (1u << bits) - 1;
  for (int64_t i = 0; i < outputs * inputs; ++i) {
    values.push_back(random() & mask);
  }
  for (int64_t i = 0; i < groups * outputs; ++i) {
    zeros.push_back(random() & mask);
    // Halves with few bits: the weights are exact.
    scales.push_back(static_cast<uint16_t>(0x2000 + random() % 0x800));
  }
  for (int64_t i = 0; i < inputs; ++i) {
    group_of.push_back(static_cast<int32_t>(i / group_size));
  }
}

float GroupedMatrix::Weight(int64_t n, int64_t k) const {
  const int64_t at = group_of[k] * outputs + n;
  const int q = static_cast<int>(values[n * inputs + k]);
  return static_cast<float>(q - static_cast<int>(zeros[at])) *
         F16ToFloat(scales[at]);
}

std::vector<TestTensor> GroupedMatrix::Gptq(const std::string& module,
                                            uint32_t zero_offset,
                                            bool with_index) const {
  const int64_t per_word = 32 / bits;
  CHECK(inputs % per_word == 0 && outputs % per_word == 0) << module;
  const uint32_t mask = (1u << bits) - 1;
  std::vector<uint32_t> q(inputs / per_word * outputs);
  for (int64_t k = 0; k < inputs; ++k) {
    for (int64_t n = 0; n < outputs; ++n) {
      q[k / per_word * outputs + n] |= values[n * inputs + k]
                                       << (bits * (k % per_word));
    }
  }
  std::vector<uint32_t> z(groups * outputs / per_word);
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t n = 0; n < outputs; ++n) {
      z[g * (outputs / per_word) + n / per_word] |=
          ((zeros[g * outputs + n] - zero_offset) & mask)
          << (bits * (n % per_word));
    }
  }
  std::vector<TestTensor> tensors = {
      {module + ".qweight", "I32", {inputs / per_word, outputs}, Text(q)},
      {module + ".qzeros", "I32", {groups, outputs / per_word}, Text(z)},
      {module + ".scales", "F16", {groups, outputs}, Text(scales)}};
  if (with_index) {
    tensors.push_back({module + ".g_idx", "I32", {inputs}, Text(group_of)});
  }
  return tensors;
}

std::vector<TestTensor> GroupedMatrix::Awq(const std::string& module) const {
  CHECK(bits == 4 && outputs % 8 == 0) << module;
  constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  std::vector<uint32_t> q(inputs * outputs / 8);
  std::vector<uint32_t> z(groups * outputs / 8);
  for (int64_t block = 0; block < outputs / 8; ++block) {
    for (int i = 0; i < 8; ++i) {
      const int64_t n = block * 8 + kOrder[i];
      for (int64_t k = 0; k < inputs; ++k) {
        q[k * (outputs / 8) + block] |= values[n * inputs + k] << (4 * i);
      }
      for (int64_t g = 0; g < groups; ++g) {
        z[g * (outputs / 8) + block] |= zeros[g * outputs + n] << (4 * i);
      }
    }
  }
  return {{module + ".qweight", "I32", {inputs, outputs / 8}, Text(q)},
          {module + ".qzeros", "I32", {groups, outputs / 8}, Text(z)},
          {module + ".scales", "F16", {groups, outputs}, Text(scales)}};
}

WeightMatrix GroupedMatrix::View(const std::vector<TestTensor>& tensors,
                                 WeightEncoding encoding,
                                 int32_t zero_offset) const {
  const auto view = [&](size_t i, DType dtype) {
    TensorView view;
    view.dtype = dtype;
    view.shape = tensors[i].shape;
    view.bytes = absl::MakeConstSpan(
        reinterpret_cast<const std::byte*>(tensors[i].bytes.data()),
        tensors[i].bytes.size());
    return view;
  };
  WeightMatrix m;
  m.name = tensors[0].name;
  m.rows = outputs;
  m.columns = inputs;
  m.encoding = encoding;
  m.values = view(0, DType::kI32);
  m.zeros = view(1, DType::kI32);
  m.scales = view(2, DType::kF16);
  if (tensors.size() > 3) m.group_index = view(3, DType::kI32);
  m.bits = bits;
  m.group_size = static_cast<int32_t>(group_size);
  m.zero_offset = zero_offset;
  m.groups_in_order = true;
  for (int64_t k = 0; k < inputs; ++k) {
    m.groups_in_order = m.groups_in_order && group_of[k] == k / group_size;
  }
  return m;
}

}  // namespace baton::engine
