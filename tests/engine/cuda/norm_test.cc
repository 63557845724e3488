// RMSNorm on a device, of rows that threads hold and of longer ones, and of
// what is added to them before, against the same operations in the same order
// on the host.
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/cuda/row_kernels.h"
#include "engine/float_convert.h"
#include "tests/engine/cuda/device_fixture.h"

namespace baton::engine::cuda {
namespace {

constexpr int32_t kThreads = 256;

// The sum of squares as 256 threads add it up: each those of its elements, then
// 32 of them by halves, then warp after warp.
float SumOfSquares(const std::vector<float>& x) {
  std::vector<float> sums(kThreads);
  for (size_t i = 0; i < x.size(); ++i) sums[i % kThreads] += x[i] * x[i];
  float total = 0;
  for (int32_t warp = 0; warp < kThreads; warp += 32) {
    for (int32_t half = 16; half > 0; half /= 2) {
      std::vector<float> before(sums.begin() + warp, sums.begin() + warp + 32);
      for (int32_t lane = 0; lane < 32; ++lane) {
        sums[warp + lane] = before[lane] + before[lane ^ half];
      }
    }
    total += sums[warp];
  }
  return total;
}

class NormTest : public DeviceTest {};

TEST_F(NormTest, IsThatOfTheHost) {
  constexpr float kEps = 1e-5f;
  for (const int32_t hidden : {40, 576, 4096, 4100, 8192, 9000}) {
    for (const auto& [parts, normed] :
         {std::pair(0, false), std::pair(2, false), std::pair(1, true),
          std::pair(2, true)}) {
      SCOPED_TRACE(std::to_string(hidden) + " " + std::to_string(parts) +
                   (normed ? " normed" : ""));
      const int32_t rows = 2;
      std::vector<float> x = Floats(RandomBf16(int64_t{rows} * hidden, 1));
      const std::vector<float> weights = Floats(RandomBf16(hidden, 2));
      const std::vector<float> added =
          Floats(RandomBf16(int64_t{rows} * hidden, 3));
      NormArgs args;
      args.residual = Put(x);
      args.rows = rows;
      args.hidden = hidden;
      if (parts > 0) {
        args.part_size = hidden / parts;
        args.added = Put(added);
      }
      const std::vector<float> added_weights = Floats(RandomBf16(hidden, 4));
      if (normed) args.added_weight = Put(added_weights);
      args.weight = Put(weights);
      args.eps = kEps;
      args.out_stride = hidden + 3;
      args.out = Take<uint16_t>(rows * args.out_stride);
      RunNorm(args, stream().handle());
      const std::vector<uint16_t> out = Get(args.out, rows * args.out_stride);
      const std::vector<float> residual =
          Get(args.residual, int64_t{rows} * hidden);
      for (int32_t row = 0; row < rows; ++row) {
        std::vector<float> to_add(hidden);
        for (int32_t i = 0; parts > 0 && i < hidden; ++i) {
          to_add[i] = added[(i / args.part_size * rows + row) * args.part_size +
                            i % args.part_size];
        }
        if (normed) {
          const float inverse =
              1.0f / std::sqrt(SumOfSquares(to_add) / hidden + kEps);
          for (int32_t i = 0; i < hidden; ++i) {
            to_add[i] = to_add[i] * inverse * added_weights[i];
          }
        }
        std::vector<float> values(hidden);
        for (int32_t i = 0; i < hidden; ++i) {
          values[i] = x[row * hidden + i];
          if (parts > 0) values[i] += to_add[i];
          ASSERT_EQ(residual[row * hidden + i], values[i]) << i;
        }
        const float inverse =
            1.0f / std::sqrt(SumOfSquares(values) / hidden + kEps);
        for (int32_t i = 0; i < hidden; ++i) {
          ASSERT_EQ(out[row * args.out_stride + i],
                    FloatToBf16(values[i] * inverse * weights[i]))
              << row << " " << i;
        }
        for (int32_t i = hidden; i < args.out_stride; ++i) {
          ASSERT_EQ(out[row * args.out_stride + i], 0xffff) << "wrote outside";
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton::engine::cuda
