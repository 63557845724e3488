#include "engine/cpu/matmul.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/cpu/kernel_choice.h"
#include "engine/float_convert.h"
#include "tests/engine/cpu/owned_matrix.h"
#include "tests/engine/grouped_matrix.h"

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
    view.name = std::string("w");
    view.rows = outputs;
    view.columns = inputs;
    view.values.dtype = dtype;
    view.values.shape = {outputs, inputs};
    view.values.bytes = absl::MakeConstSpan(
        reinterpret_cast<const std::byte*>(content.data()), content.size());
  }

  operator const WeightMatrix&() const { return view; }

  std::string content;
  std::vector<float> values;  // rounded to bfloat16
  WeightMatrix view;
};

constexpr WeightDtype kDtypes[] = {WeightDtype::kBf16, WeightDtype::kInt8,
                                   WeightDtype::kInt4};

TEST(PackedMatrixTest, ReadsBackWhatItRounded) {
  ThreadTeam team(2);
  for (const int32_t unit : {1, 2, 4}) {
    for (const auto& [outputs, inputs] :
         {std::pair{5, 7}, {33, 64}, {70, 200}}) {
      const OwnedTensor tensor(DType::kF32, outputs, inputs, 1);
      for (const WeightDtype dtype : kDtypes) {
        const OwnedMatrix owned(dtype, unit, tensor, team);
        EXPECT_EQ(owned.matrix.outputs() % (16 * unit), 0);
        const std::vector<float> values = owned.Values();
        for (int32_t n = 0; n < owned.matrix.outputs(); ++n) {
          for (int32_t k = 0; k < inputs; ++k) {
            const float found = values[int64_t{n} * inputs + k];
            if (n >= outputs) {
              ASSERT_EQ(found, 0.0f);
              continue;
            }
            const float original = tensor.values[int64_t{n} * inputs + k];
            // Values are normal, at most about 4: half a step of 127, or of 8
            // (of which a quarter may be clipped).
            const float bound = dtype == WeightDtype::kBf16   ? 0.0f
                                : dtype == WeightDtype::kInt8 ? 0.025f
                                                              : 1.0f;
            ASSERT_NEAR(found, original, bound)
                << WeightDtypeName(dtype) << " " << n << " " << k;
          }
        }
      }
    }
  }
}

TEST(PackedMatrixTest, Int4HalvesTheErrorThatEightStepsAllow) {
  ThreadTeam team(1);
  const OwnedTensor tensor(DType::kBf16, 64, 256, 2);
  const OwnedMatrix owned(WeightDtype::kInt4, 4, tensor, team);
  const std::vector<float> values = owned.Values();
  double squares = 0.0;
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    const double error = values[i] - tensor.values[i];
    squares += error * error;
  }
  // The largest of 64 normal values is about 2.4, a step of the grid 0.3, and
  // rounding to it has a variance of 0.3^2 / 12.
  EXPECT_LT(squares / tensor.values.size(), 0.010);
  EXPECT_GT(squares / tensor.values.size(), 0.003);
}

// But for scales, which become bfloat16.
TEST(PackedMatrixTest, Int4IsWhatAGptqOrAwqCheckpointHas) {
  ThreadTeam team(2);
  const GroupedMatrix q(40, 320, 128, 4, 4);
  const std::vector<TestTensor> gptq = q.Gptq("m", 1, true);
  const std::vector<TestTensor> awq = q.Awq("m");
  for (const WeightMatrix& source : {q.View(gptq, WeightEncoding::kGptq, 1),
                                     q.View(awq, WeightEncoding::kAwq, 0)}) {
    const OwnedMatrix owned(WeightDtype::kInt4, 4, source, team);
    const std::vector<float> values = owned.Values();
    for (int64_t n = 0; n < q.outputs; ++n) {
      for (int64_t k = 0; k < q.inputs; ++k) {
        const float weight = q.Weight(n, k);
        ASSERT_NEAR(values[n * q.inputs + k], weight,
                    std::fabs(weight) * 0x1p-8f)
            << n << " " << k;
      }
    }
  }
}

TEST(PackedMatrixTest, WeightsThatAreNotFiniteStaySo) {
  ThreadTeam team(1);
  using Limits = std::numeric_limits<float>;
  for (const float bad :
       {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
    // The first, some and the last of a group.
    for (const int place : {3 * 64, 3 * 64 + 10, 3 * 64 + 63}) {
      OwnedTensor tensor(DType::kF32, 16, 64, 3);
      std::memcpy(tensor.content.data() + 4 * place, &bad, 4);
      for (const WeightDtype dtype : kDtypes) {
        const OwnedMatrix owned(dtype, 1, tensor, team);
        const std::vector<float> values = owned.Values();
        EXPECT_FALSE(std::isfinite(values[place]))
            << WeightDtypeName(dtype) << " " << bad << " " << place;
        EXPECT_TRUE(std::isfinite(values[place + 64]));
      }
    }
  }
}

// The squares of their errors are not finite.
TEST(PackedMatrixTest, HugeWeightsStayHuge) {
  ThreadTeam team(1);
  OwnedTensor tensor(DType::kF32, 16, 64, 3);
  for (int i = 0; i < 64; ++i) {
    const float huge = (i - 20) * 1e30f;
    std::memcpy(tensor.content.data() + 4 * (3 * 64 + i), &huge, 4);
  }
  for (const WeightDtype dtype : kDtypes) {
    const OwnedMatrix owned(dtype, 1, tensor, team);
    const std::vector<float> values = owned.Values();
    for (int i = 0; i < 64; ++i) {
      // Half a step of int4, where the largest lies at 6.4 of 8.
      EXPECT_NEAR(values[3 * 64 + i], (i - 20) * 1e30f, 3.7e30f)
          << WeightDtypeName(dtype) << " " << i;
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
  for (const WeightDtype dtype : kDtypes) {
    for (const auto& [outputs, inputs] :
         {std::pair{1, 1}, {5, 7}, {16, 16}, {70, 33}, {200, 1}, {130, 301}}) {
      const OwnedTensor w(DType::kBf16, outputs, inputs, 3);
      const OwnedMatrix owned(dtype, outputs > 100 ? 4 : 1, w, team);
      const PackedMatrix& b = owned.matrix;
      const std::vector<float> weights = owned.Values();
      for (const int32_t rows : {1, 2, 5, 13, 33, 100}) {
        const std::vector<float> a = RandomInput(rows, inputs);
        const std::vector<float> c =
            ProductOf(*GetParam(), team, a, 0, rows, b);
        for (int32_t r = 0; r < rows; ++r) {
          float largest = 0.0f;
          for (int32_t k = 0; k < inputs; ++k) {
            largest = std::max(largest, std::abs(a[r * inputs + k]));
          }
          for (int32_t n = 0; n < b.outputs(); ++n) {
            double sum = 0.0, magnitude = 0.0, weight = 0.0;
            for (int32_t k = 0; k < inputs; ++k) {
              const double w_nk = weights[int64_t{n} * inputs + k];
              const double x = dtype == WeightDtype::kBf16
                                   ? Bf16ToFloat(FloatToBf16(a[r * inputs + k]))
                                   : a[r * inputs + k];
              sum += x * w_nk;
              magnitude += std::abs(x * w_nk);
              weight += std::abs(w_nk);
            }
            // Rounding of the sums; and half a step of 127 per activation.
            double bound = magnitude * (inputs + 1) * 0x1p-24;
            if (dtype != WeightDtype::kBf16) {
              bound += weight * largest * 0.501 / 127.0 + 1e-6;
            }
            ASSERT_NEAR(c[int64_t{r} * b.outputs() + n], sum, bound)
                << WeightDtypeName(dtype) << " " << rows << "x" << outputs
                << "x" << inputs;
          }
        }
      }
    }
  }
}

// Large enough for every blocking: many rows, several blocks of k, several
// items per thread.
TEST_P(MatmulTest, ARowIsTheSameInAnyCompanyAndOnAnyNumberOfThreads) {
  constexpr int32_t kRows = 600, kOutputs = 150, kInputs = 1300;
  ThreadTeam one(1), three(3);
  const OwnedTensor w(DType::kBf16, kOutputs, kInputs, 4);
  const std::vector<float> a = RandomInput(kRows, kInputs);
  for (const WeightDtype dtype : kDtypes) {
    for (const int32_t unit : {2, 4}) {
      const OwnedMatrix owned(dtype, unit, w, one);
      const PackedMatrix& b = owned.matrix;
      std::vector<float> expected;
      for (int32_t r = 0; r < kRows; ++r) {
        const std::vector<float> row = ProductOf(*GetParam(), one, a, r, 1, b);
        expected.insert(expected.end(), row.begin(), row.end());
      }
      for (ThreadTeam* team : {&one, &three}) {
        for (const int32_t rows : {2, 3, 4, 7, 8, 23, 24, 64, 96, 130, 600}) {
          for (const int32_t first : {0, kRows - rows}) {
            const std::vector<float> c =
                ProductOf(*GetParam(), *team, a, first, rows, b);
            ASSERT_EQ(
                0, std::memcmp(c.data(),
                               expected.data() + int64_t{first} * b.outputs(),
                               c.size() * sizeof(float)))
                << WeightDtypeName(dtype) << " " << rows << " rows from "
                << first << " on " << team->num_threads() << " threads";
          }
        }
      }
    }
  }
}

// Groups without rows, with few, and with more than a strip has.
TEST_P(MatmulTest, GroupsOfRowsHaveMatricesOfTheirOwn) {
  constexpr int32_t kOutputs = 150, kInputs = 130;
  const int32_t kRows[] = {0, 1, 300, 0, 7, 520, 0};
  ThreadTeam one(1), three(3);
  for (const WeightDtype dtype : kDtypes) {
    std::vector<OwnedTensor> tensors;
    tensors.reserve(std::size(kRows));
    std::vector<OwnedMatrix> matrices;
    matrices.reserve(std::size(kRows));
    std::vector<RowGroup> groups;
    int32_t rows = 0;
    for (const int32_t count : kRows) {
      tensors.emplace_back(DType::kBf16, kOutputs, kInputs, 10 + rows);
      matrices.emplace_back(dtype, 2, tensors.back(), one);
      groups.push_back({rows, count, &matrices.back().matrix});
      rows += count;
    }
    const std::vector<float> a = RandomInput(rows, kInputs);
    const int32_t outputs = matrices[0].matrix.outputs();
    for (ThreadTeam* team : {&one, &three}) {
      Activations input(dtype, kInputs);
      input.Reserve(rows);
      for (int32_t r = 0; r < rows; ++r) {
        input.Write(*GetParam(), r, 0, a.data() + int64_t{r} * kInputs,
                    kInputs);
      }
      std::vector<float> c(int64_t{rows} * outputs, NAN);
      Matmul matmul(*GetParam(), *team);
      matmul.RunGroups(input, groups, 4, [&](const Strip& strip) {
        for (int32_t i = 0; i < strip.rows; ++i) {
          std::memcpy(c.data() + int64_t{strip.first_row + i} * outputs +
                          strip.first_column(),
                      strip.row(i),
                      sizeof(float) * strip.panels * kPanelColumns);
        }
      });
      for (const RowGroup& group : groups) {
        if (group.rows == 0) continue;
        const std::vector<float> expected = ProductOf(
            *GetParam(), one, a, group.first_row, group.rows, *group.b);
        ASSERT_EQ(0,
                  std::memcmp(c.data() + int64_t{group.first_row} * outputs,
                              expected.data(), expected.size() * sizeof(float)))
            << WeightDtypeName(dtype) << " rows from " << group.first_row;
      }
      matmul.RunGroups(input, {}, 4, [](const Strip&) { FAIL(); });
    }
  }
}

TEST_P(MatmulTest, WhatIsNotFiniteStaysInItsRow) {
  ThreadTeam team(1);
  const OwnedTensor w(DType::kBf16, 32, 130, 5);
  for (const WeightDtype dtype : kDtypes) {
    const OwnedMatrix owned(dtype, 2, w, team);
    std::vector<float> a = RandomInput(3, 130);
    a[130 + 100] = NAN;
    const std::vector<float> c =
        ProductOf(*GetParam(), team, a, 0, 3, owned.matrix);
    for (int32_t n = 0; n < 32; ++n) {
      EXPECT_TRUE(std::isfinite(c[n]));
      EXPECT_FALSE(std::isfinite(c[32 + n])) << WeightDtypeName(dtype);
      EXPECT_TRUE(std::isfinite(c[64 + n]));
    }
  }
}

}  // namespace
}  // namespace baton::engine::cpu
