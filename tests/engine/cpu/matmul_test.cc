#include "engine/cpu/matmul.h"

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/cpu/kernel_choice.h"
#include "engine/float_convert.h"

namespace baton::engine::cpu {
namespace {

// A tensor with memory of its own.
struct OwnedTensor {
  OwnedTensor(DType dtype, int64_t outputs, int64_t inputs, uint32_t seed) {
    std::mt19937 bits(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < outputs * inputs; ++i) {
      const float value = normal(bits);
      char element[4];
      if (dtype == DType::kF32) {
        std::memcpy(element, &value, 4);
      } else {
        const uint16_t rounded = FloatToBf16(value);
        std::memcpy(element, &rounded, 2);
      }
      content.append(element, DTypeBytes(dtype));
      values.push_back(Bf16ToFloat(FloatToBf16(value)));
    }
    view.name = "w";
    view.rows = outputs;
    view.columns = inputs;
    view.values.dtype = dtype;
    view.values.shape = {outputs, inputs};
    view.values.bytes = absl::MakeConstSpan(
        reinterpret_cast<const std::byte*>(content.data()), content.size());
  }

  std::string content;
  std::vector<float> values;  // rounded to bfloat16
  WeightMatrix view;
};

std::vector<uint16_t> RandomInput(int32_t rows, int64_t stride,
                                  int32_t inputs) {
  std::mt19937 bits(rows);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> a(rows * stride);
  for (int32_t r = 0; r < rows; ++r) {
    for (int32_t k = 0; k < inputs; ++k) {
      a[r * stride + k] = FloatToBf16(normal(bits));
    }
  }
  return a;
}

TEST(PackedMatrixTest, PadsEachPartAndReadsBack) {
  ThreadTeam team(2);
  const OwnedTensor a(DType::kF32, 5, 7, 1), b(DType::kBf16, 33, 7, 2);
  const PackedMatrix m = PackedMatrix::Pack({&a.view, &b.view}, team);
  EXPECT_EQ(m.inputs(), 7);
  EXPECT_EQ(m.input_pairs(), 4);
  EXPECT_EQ(m.outputs(), 16 + 48);
  std::vector<float> row(7);
  for (int32_t n = 0; n < m.outputs(); ++n) {
    m.ReadOutput(n, row.data());
    for (int32_t k = 0; k < 7; ++k) {
      float expected = 0.0f;
      if (n < 5) expected = a.values[n * 7 + k];
      if (n >= 16 && n < 16 + 33) expected = b.values[(n - 16) * 7 + k];
      EXPECT_EQ(row[k], expected) << n << " " << k;
    }
  }
}

class MatmulTest : public testing::TestWithParam<const Kernels*> {};

INSTANTIATE_TEST_SUITE_P(
    Isa, MatmulTest,
    testing::ValuesIn(AvailableKernels().begin(), AvailableKernels().end()),
    [](const testing::TestParamInfo<const Kernels*>& info) {
      return std::string(info.param->name);
    });

TEST_P(MatmulTest, IsCloseToDoubleForOddShapes) {
  ThreadTeam team(2);
  for (const auto& [outputs, inputs] :
       {std::pair{1, 1}, {5, 7}, {16, 16}, {70, 33}, {200, 1}, {130, 301}}) {
    const OwnedTensor w(DType::kBf16, outputs, inputs, 3);
    const PackedMatrix b = PackedMatrix::Pack({&w.view}, team);
    const int64_t stride = 2 * b.input_pairs() + 6;
    for (const int32_t rows : {1, 2, 5, 13, 33, 100}) {
      const std::vector<uint16_t> a = RandomInput(rows, stride, inputs);
      std::vector<float> c(rows * b.outputs(), NAN);
      Matmul(*GetParam(), team, a.data(), stride, rows, b, c.data(),
             b.outputs());
      for (int32_t r = 0; r < rows; ++r) {
        for (int32_t n = 0; n < b.outputs(); ++n) {
          double sum = 0.0, magnitude = 0.0;
          for (int32_t k = 0; n < outputs && k < inputs; ++k) {
            const double product = double{Bf16ToFloat(a[r * stride + k])} *
                                   w.values[int64_t{n} * inputs + k];
            sum += product;
            magnitude += std::abs(product);
          }
          ASSERT_NEAR(c[r * b.outputs() + n], sum,
                      magnitude * (inputs + 1) * 0x1p-24)
              << rows << "x" << outputs << "x" << inputs;
        }
      }
    }
  }
}

// Large enough for every blocking: many rows, several blocks of k, several
// items per thread.
TEST_P(MatmulTest, ARowIsTheSameInAnyCompanyAndOnAnyNumberOfThreads) {
  constexpr int32_t kRows = 130, kOutputs = 150, kInputs = 2500;
  ThreadTeam one(1), three(3);
  const OwnedTensor w(DType::kBf16, kOutputs, kInputs, 4);
  const PackedMatrix b = PackedMatrix::Pack({&w.view}, one);
  const std::vector<uint16_t> a = RandomInput(kRows, kInputs, kInputs);
  std::vector<float> expected(kRows * b.outputs());
  for (int32_t r = 0; r < kRows; ++r) {
    Matmul(*GetParam(), one, a.data() + r * kInputs, kInputs, 1, b,
           expected.data() + r * b.outputs(), b.outputs());
  }
  for (ThreadTeam* team : {&one, &three}) {
    for (const int32_t rows : {2, 7, 8, 23, 24, 64, 96, 130}) {
      for (const int32_t first : {0, kRows - rows}) {
        std::vector<float> c(rows * b.outputs());
        Matmul(*GetParam(), *team, a.data() + first * kInputs, kInputs, rows, b,
               c.data(), b.outputs());
        ASSERT_EQ(0,
                  std::memcmp(c.data(), expected.data() + first * b.outputs(),
                              c.size() * sizeof(float)))
            << rows << " rows from " << first << " on " << team->num_threads()
            << " threads";
      }
    }
  }
}

}  // namespace
}  // namespace baton::engine::cpu
