// Every kernel of every instruction set that this CPU has, against arithmetic
// in double.
#include "engine/cpu/kernels.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/cpu/kernel_choice.h"
#include "engine/float_convert.h"

namespace baton::engine::cpu {
namespace {

// Lengths around the vector widths (4, 8, 16), and some of real models.
constexpr int32_t kLengths[] = {1,  2,  3,  7,  8,   9,   15,  16,
                                17, 31, 32, 33, 100, 255, 576, 1024};

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class Random final {
 public:
  explicit Random(uint32_t seed) : bits_(seed) {}
  float Normal(float scale = 1.0f) { return scale * normal_(bits_); }
  std::vector<float> Row(int32_t n, float scale = 1.0f) {
    std::vector<float> row(n);
    for (float& x : row) x = Normal(scale);
    return row;
  }
  std::vector<uint16_t> Bf16Row(int64_t n, float scale = 1.0f) {
    std::vector<uint16_t> row(n);
    for (uint16_t& x : row) x = FloatToBf16(Normal(scale));
    return row;
  }

 private:
  std::mt19937 bits_;
  std::normal_distribution<float> normal_;
};

class KernelsTest : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels() const { return *GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(
    Isa, KernelsTest,
    testing::ValuesIn(AvailableKernels().begin(), AvailableKernels().end()),
    [](const testing::TestParamInfo<const Kernels*>& info) {
      return std::string(info.param->name);
    });

// A product whose parts have exactly the size they need, so that
// AddressSanitizer sees an access beyond it.
struct Product {
  Product(int32_t rows, int32_t panels, int32_t k_pairs, uint32_t seed)
      : rows(rows), panels(panels), k_pairs(k_pairs) {
    Random random(seed);
    a = random.Bf16Row(int64_t{rows} * 2 * k_pairs);
    b = random.Bf16Row(int64_t{panels} * k_pairs * kPanelPairElements);
  }

  MatmulArgs Args(std::vector<float>* c) const {
    MatmulArgs args;
    args.a = a.data();
    args.a_stride = 2 * k_pairs;
    args.rows = rows;
    args.b = b.data();
    args.panel_stride = int64_t{k_pairs} * kPanelPairElements;
    args.panels = panels;
    args.k_pairs = k_pairs;
    args.c = c->data();
    args.c_stride = panels * kPanelColumns;
    return args;
  }

  std::vector<float> Run(const Kernels& kernels) const {
    std::vector<float> c(int64_t{rows} * panels * kPanelColumns, kNaN);
    kernels.matmul(Args(&c));
    return c;
  }

  int32_t rows, panels, k_pairs;
  std::vector<uint16_t> a, b;
};

TEST_P(KernelsTest, MatmulIsCloseToDouble) {
  for (const int32_t k_pairs : {1, 2, 3, 17, 64, 333}) {
    for (const int32_t panels : {1, 2, 3, 4, 5, 9}) {
      for (int32_t rows = 1; rows <= 33; rows += rows < 9 ? 1 : 4) {
        const Product p(rows, panels, k_pairs, rows * 100 + k_pairs);
        const std::vector<float> c = p.Run(kernels());
        for (size_t i = 0; i < c.size(); ++i) {
          const int64_t row = i / (panels * kPanelColumns);
          const int64_t column = i % (panels * kPanelColumns);
          double sum = 0.0, magnitude = 0.0;
          for (int32_t k = 0; k < 2 * k_pairs; ++k) {
            const double x = Bf16ToFloat(p.a[row * 2 * k_pairs + k]);
            const double y = Bf16ToFloat(
                p.b[column / 16 * k_pairs * kPanelPairElements +
                    k / 2 * kPanelPairElements + column % 16 * 2 + k % 2]);
            sum += x * y;
            magnitude += std::abs(x * y);
          }
          // Each of 2 * k_pairs additions rounds by at most 2^-24 of its
          // result.
          ASSERT_NEAR(c[i], sum, magnitude * 2 * k_pairs * 0x1p-24)
              << rows << " rows, row " << row << ", column " << column
              << ", pairs " << k_pairs;
        }
      }
    }
  }
}

TEST_P(KernelsTest, MatmulOfARowIsTheSameInAnyCompany) {
  for (const int32_t k_pairs : {1, 3, 65, 512}) {
    const Product all(64, 5, k_pairs, k_pairs);
    const std::vector<float> expected = all.Run(kernels());
    const int64_t columns = all.panels * kPanelColumns;
    for (int32_t rows = 1; rows <= 33; ++rows) {
      for (const int32_t first : {0, 1, 13, 64 - rows}) {
        std::vector<float> c(rows * columns, kNaN);
        MatmulArgs args = all.Args(&c);
        args.a += first * args.a_stride;
        args.rows = rows;
        kernels().matmul(args);
        ASSERT_EQ(0, std::memcmp(c.data(), expected.data() + first * columns,
                                 c.size() * sizeof(float)))
            << rows << " rows from " << first;
      }
    }
  }
}

TEST_P(KernelsTest, MatmulOfAPanelIsTheSameInAnyCompany) {
  const Product all(7, 9, 100, 3);
  const std::vector<float> expected = all.Run(kernels());
  for (int32_t panel = 0; panel < all.panels; ++panel) {
    std::vector<float> c(expected.size(), kNaN);
    MatmulArgs args = all.Args(&c);
    args.b += panel * args.panel_stride;
    args.panels = 1;
    args.c += panel * kPanelColumns;
    kernels().matmul(args);
    for (int32_t r = 0; r < all.rows; ++r) {
      const int64_t at = r * args.c_stride + panel * kPanelColumns;
      ASSERT_EQ(
          0, std::memcmp(&c[at], &expected[at], kPanelColumns * sizeof(float)))
          << panel;
    }
  }
}

TEST_P(KernelsTest, MatmulCutIntoAccumulatingCallsIsTheSame) {
  const Product all(11, 3, 100, 4);
  const std::vector<float> expected = all.Run(kernels());
  std::vector<float> c(expected.size(), kNaN);
  MatmulArgs args = all.Args(&c);
  for (const auto& [first, count] :
       {std::pair{0, 1}, {1, 31}, {32, 60}, {92, 8}}) {
    args.a = all.a.data() + 2 * first;
    args.b = all.b.data() + first * kPanelPairElements;
    args.k_pairs = count;
    args.accumulate = first > 0;
    kernels().matmul(args);
  }
  EXPECT_EQ(0,
            std::memcmp(c.data(), expected.data(), c.size() * sizeof(float)));
}

TEST_P(KernelsTest, RoundRowRoundsToNearestEven) {
  std::vector<float> x = {0.0f,
                          -0.0f,
                          1.0f,
                          kInfinity,
                          -kInfinity,
                          kNaN,
                          std::numeric_limits<float>::max(),
                          std::numeric_limits<float>::denorm_min(),
                          1e-40f};
  for (const uint32_t bits :
       {0x3f807fffu, 0x3f808000u, 0x3f808001u, 0x3f818000u, 0x7f7f8000u,
        0x7f800001u, 0xff800001u, 0x7fffffffu, 0x00008000u}) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    x.push_back(value);
  }
  for (const float value : Random(5).Row(200, 100.0f)) x.push_back(value);
  for (const size_t n : {x.size(), x.size() - 1, x.size() - 7, size_t{3}}) {
    std::vector<uint16_t> y(n);
    kernels().round_row(x.data(), static_cast<int32_t>(n), y.data());
    for (size_t i = 0; i < n; ++i) {
      const bool tiny = std::fpclassify(x[i]) == FP_SUBNORMAL;
      if (tiny && (y[i] & 0x7fffu) == 0) continue;
      EXPECT_EQ(y[i], FloatToBf16(x[i])) << x[i];
    }
  }
}

TEST_P(KernelsTest, CopyCopiesThatManyValues) {
  std::vector<uint16_t> from(96);
  std::iota(from.begin(), from.end(), 1);
  for (const int32_t n : {32, 64, 96}) {
    std::vector<uint16_t> to(97, 999);
    kernels().copy(from.data(), n, to.data());
    for (int32_t i = 0; i < 97; ++i) {
      EXPECT_EQ(to[i], i < n ? from[i] : 999) << n;
    }
  }
}

TEST_P(KernelsTest, RmsNorm) {
  for (const int32_t n : kLengths) {
    Random random(n);
    const std::vector<float> x = random.Row(n, 3.0f);
    const std::vector<float> weight = random.Row(n);
    double squares = 0.0;
    for (const float v : x) squares += double{v} * v;
    const double inverse = 1.0 / std::sqrt(squares / n + 1e-5);
    std::vector<float> y(n);
    kernels().rms_norm(x.data(), weight.data(), n, 1e-5f, y.data());
    for (int32_t i = 0; i < n; ++i) {
      const double expected = x[i] * inverse * weight[i];
      ASSERT_NEAR(y[i], expected, 2e-6 * std::abs(expected)) << n;
    }
    std::vector<float> in_place = x;
    kernels().rms_norm(in_place.data(), weight.data(), n, 1e-5f,
                       in_place.data());
    EXPECT_EQ(in_place, y);
  }
}

TEST_P(KernelsTest, Rope) {
  for (const int32_t half : kLengths) {
    Random random(half);
    std::vector<float> x = random.Row(2 * half);
    const std::vector<float> before = x;
    std::vector<float> cos(half), sin(half);
    for (int32_t i = 0; i < half; ++i) {
      cos[i] = std::cos(0.1f * i);
      sin[i] = std::sin(0.1f * i);
    }
    kernels().rope(x.data(), cos.data(), sin.data(), half);
    for (int32_t i = 0; i < half; ++i) {
      const double a = before[i], b = before[half + i];
      ASSERT_NEAR(x[i], a * cos[i] - b * sin[i], 1e-6);
      ASSERT_NEAR(x[half + i], b * cos[i] + a * sin[i], 1e-6);
    }
  }
}

TEST_P(KernelsTest, AddAndScale) {
  for (const int32_t n : kLengths) {
    Random random(n);
    const std::vector<float> x = random.Row(n), y = random.Row(n);
    std::vector<float> sum = x, scaled = x;
    std::vector<uint16_t> rounded(n);
    kernels().add(sum.data(), y.data(), n);
    kernels().scale(scaled.data(), 0.3f, n);
    kernels().scale_round(x.data(), 0.3f, n, rounded.data());
    for (int32_t i = 0; i < n; ++i) {
      ASSERT_EQ(sum[i], x[i] + y[i]);
      ASSERT_EQ(scaled[i], x[i] * 0.3f);
      ASSERT_EQ(rounded[i], FloatToBf16(x[i] * 0.3f));
    }
  }
  const float negative_zero = -0.0f;
  uint16_t rounded;
  kernels().scale_round(&negative_zero, 1.0f, 1, &rounded);
  EXPECT_EQ(rounded, 0);
}

TEST_P(KernelsTest, SoftmaxOverSeveralCallsIsTheSoftmaxOfAll) {
  constexpr float kFactor = 0.7f;
  Random random(9);
  const std::vector<float> scores = random.Row(48 + 16 + 64, 4.0f);
  // Only some scores of each call are visible.
  struct Call {
    int32_t first, n, begin, end;
  };
  const Call calls[] = {
      {0, 48, 5, 48}, {48, 16, 0, 16}, {48, 16, 3, 3}, {64, 64, 0, 61}};
  double max = -INFINITY, sum = 0.0;
  for (const Call& c : calls) {
    for (int32_t i = c.begin; i < c.end; ++i) {
      max = std::max(max, double{scores[c.first + i]} * kFactor);
    }
  }
  for (const Call& c : calls) {
    for (int32_t i = c.begin; i < c.end; ++i) {
      sum += std::exp(double{scores[c.first + i]} * kFactor - max);
    }
  }
  SoftmaxState state{-kInfinity, 0.0f};
  for (const Call& c : calls) {
    std::vector<uint16_t> p(c.n, 0xffff);
    const float old_max = state.max;
    const float rescale =
        kernels().softmax(scores.data() + c.first, c.n, c.begin, c.end, kFactor,
                          &state, p.data());
    EXPECT_NEAR(rescale,
                c.begin == c.end ? 1.0 : std::exp(double{old_max} - state.max),
                1e-6);
    for (int32_t i = 0; i < c.n; ++i) {
      const bool visible = i >= c.begin && i < c.end;
      const double expected =
          visible ? std::exp(double{scores[c.first + i]} * kFactor - state.max)
                  : 0.0;
      ASSERT_NEAR(Bf16ToFloat(p[i]), expected, expected * (0x1p-8 + 1e-5));
      if (!visible) {
        ASSERT_EQ(p[i], 0);
      }
    }
  }
  EXPECT_NEAR(state.max, max, 1e-5);
  EXPECT_NEAR(state.sum, sum, sum * 0x1p-8);
}

TEST_P(KernelsTest, SoftmaxOfARowIsTheSameWithMoreInvisibleScores) {
  const std::vector<float> scores = Random(10).Row(64, 4.0f);
  for (int32_t end = 1; end <= 16; ++end) {
    std::vector<uint16_t> few(16), many(64);
    SoftmaxState a{-kInfinity, 0.0f}, b{-kInfinity, 0.0f};
    kernels().softmax(scores.data(), 16, 0, end, 1.0f, &a, few.data());
    kernels().softmax(scores.data(), 64, 0, end, 1.0f, &b, many.data());
    EXPECT_EQ(a.max, b.max);
    EXPECT_EQ(a.sum, b.sum);
    many.resize(16);
    EXPECT_EQ(few, many);
  }
}

TEST_P(KernelsTest, SoftmaxPassesNaNOn) {
  std::vector<float> scores(16, 1.0f);
  scores[3] = kNaN;
  std::vector<uint16_t> p(16);
  SoftmaxState state{-kInfinity, 0.0f};
  kernels().softmax(scores.data(), 16, 0, 16, 1.0f, &state, p.data());
  EXPECT_TRUE(std::isnan(state.sum));
}

TEST_P(KernelsTest, QuantizeRoundsToNearestOf255Steps) {
  for (const int32_t n : kLengths) {
    Random random(n);
    const std::vector<float> x = random.Row(n, 3.0f);
    std::vector<int8_t> q(n + 1, 99);
    int32_t sum = 0;
    const float scale = kernels().quantize(x.data(), n, q.data(), &sum);
    float largest = 0.0f;
    int32_t expected_sum = 0;
    for (int32_t i = 0; i < n; ++i) {
      largest = std::max(largest, std::abs(x[i]));
      expected_sum += q[i];
      ASSERT_NEAR(q[i] * scale, x[i], 0.5001f * scale) << n << " " << i;
    }
    EXPECT_FLOAT_EQ(scale, largest / 127.0f);
    EXPECT_EQ(sum, expected_sum);
    EXPECT_EQ(q[n], 99) << "wrote beyond the end";
  }
}

TEST_P(KernelsTest, QuantizeOfZerosAndOfWhatIsNotFinite) {
  for (const int32_t n : {1, 16, 37, 64}) {
    std::vector<float> x(n);
    std::vector<int8_t> q(n, 99);
    int32_t sum = 99;
    EXPECT_EQ(kernels().quantize(x.data(), n, q.data(), &sum), 0.0f);
    EXPECT_EQ(sum, 0);
    EXPECT_EQ(q, std::vector<int8_t>(n, 0));
    x[n - 1] = 1e-42f;
    EXPECT_EQ(kernels().quantize(x.data(), n, q.data(), &sum), 0.0f);
    for (const float bad : {kNaN, std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
      x[n / 2] = bad;
      EXPECT_FALSE(
          std::isfinite(kernels().quantize(x.data(), n, q.data(), &sum)));
    }
  }
}

TEST_P(KernelsTest, DequantizePairsScalesBothHalves) {
  constexpr int32_t kPairs = 3 * kPanelColumns;
  std::vector<int8_t> pairs(2 * kPairs);
  for (size_t i = 0; i < pairs.size(); ++i) {
    pairs[i] = static_cast<int8_t>(i * 37 % 255 - 127);
  }
  Random random(5);
  const std::vector<float> low = random.Row(kPanelColumns);
  const std::vector<float> high = random.Row(kPanelColumns);
  std::vector<uint16_t> out(2 * kPairs);
  kernels().dequantize_pairs(pairs.data(), kPairs, low.data(), high.data(),
                             out.data());
  for (int32_t i = 0; i < kPairs; ++i) {
    const int32_t c = i % kPanelColumns;
    EXPECT_EQ(out[2 * i], FloatToBf16(pairs[2 * i] * low[c])) << i;
    EXPECT_EQ(out[2 * i + 1], FloatToBf16(pairs[2 * i + 1] * high[c])) << i;
  }
}

TEST_P(KernelsTest, ValuesOfKeysAreTheSameElements) {
  constexpr int32_t kElements = 3 * kPanelColumns;
  constexpr int64_t kStride = 5 * kPanelPairElements * kPanelColumns / 2;
  // Element e of the key in slot s.
  const auto value = [](int32_t e, int32_t s) {
    return static_cast<uint16_t>(1000 + 100 * e + s);
  };
  std::vector<uint16_t> keys(kElements * kPanelColumns);
  for (int32_t e = 0; e < kElements; ++e) {
    for (int32_t s = 0; s < kPanelColumns; ++s) {
      keys[e / 2 * kPanelPairElements + 2 * s + e % 2] = value(e, s);
    }
  }
  std::vector<uint16_t> values(3 * kStride, 7);
  kernels().values_of_keys(keys.data(), kElements, kStride, values.data());
  for (int32_t p = 0; p < 3; ++p) {
    const uint16_t* const panel = values.data() + p * kStride;
    for (int32_t e = 0; e < kPanelColumns; ++e) {
      for (int32_t s = 0; s < kPanelColumns; ++s) {
        EXPECT_EQ(panel[s / 2 * kPanelPairElements + 2 * e + s % 2],
                  value(p * kPanelColumns + e, s))
            << p << " " << e << " " << s;
      }
    }
    EXPECT_EQ(panel[kPanelPairElements * kPanelColumns / 2], 7);
  }
}

TEST_P(KernelsTest, MergeSoftmaxIsTheWeightedSum) {
  constexpr int32_t kWidth = 48;
  Random random(6);
  const std::vector<float> a = random.Row(kWidth), b = random.Row(kWidth);
  std::vector<float> sums = a;
  SoftmaxState total = {1.5f, 3.0f};
  const SoftmaxState part = {2.25f, 7.0f};
  kernels().merge_softmax(&total, sums.data(), part, b.data(), kWidth);
  EXPECT_EQ(total.max, 2.25f);
  EXPECT_NEAR(total.sum, 3.0 * std::exp(1.5 - 2.25) + 7.0, 1e-5);
  for (int32_t i = 0; i < kWidth; ++i) {
    EXPECT_NEAR(sums[i], a[i] * std::exp(1.5 - 2.25) + b[i], 1e-5);
  }
}

TEST_P(KernelsTest, MergeSoftmaxWithNothingChangesNothing) {
  constexpr int32_t kWidth = 16;
  const SoftmaxState nothing = {-std::numeric_limits<float>::infinity(), 0.0f};
  const SoftmaxState something = {-0.7f, 1.3f};
  Random random(7);
  const std::vector<float> values = random.Row(kWidth);
  const std::vector<float> zeros(kWidth);
  std::vector<float> sums = values;
  SoftmaxState total = something;
  kernels().merge_softmax(&total, sums.data(), nothing, zeros.data(), kWidth);
  EXPECT_EQ(sums, values);
  EXPECT_EQ(total.sum, something.sum);
  sums = zeros;
  total = nothing;
  kernels().merge_softmax(&total, sums.data(), something, values.data(),
                          kWidth);
  EXPECT_EQ(sums, values);
  EXPECT_EQ(total.max, something.max);
  EXPECT_EQ(total.sum, something.sum);
}

TEST(KernelChoiceTest, FindsByNameAndTheBestByDefault) {
  ASSERT_FALSE(AvailableKernels().empty());
  EXPECT_EQ(std::string(AvailableKernels().back()->name), "portable");
  EXPECT_EQ(*FindKernels(""), AvailableKernels().front());
  for (const Kernels* kernels : AvailableKernels()) {
    EXPECT_EQ(*FindKernels(kernels->name), kernels);
  }
  const auto unknown = FindKernels("sse9");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.status().message()),
              testing::AllOf(testing::HasSubstr("sse9"),
                             testing::HasSubstr("portable")));
}

}  // namespace
}  // namespace baton::engine::cpu
