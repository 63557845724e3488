// Products of the device that the CPU plays: of warps, and of groups of them.
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "tests/support/emulated_device/device_target.h"
#include "tests/support/emulated_device/fibers.h"

namespace baton::engine::cuda::emulated::products_test {
namespace {

constexpr LaunchShape kWarp = {.threads = 32};
constexpr LaunchShape kGroup = {.threads = 128, .shared_bytes = 4096};

TEST(EmulatedProductsTest, MmaIsTheProductOfItsTiles) {
  float a[16][16], b[16][8], d[16][8];
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 16; ++k) a[i][k] = static_cast<float>((i * 5 + k) % 7);
    for (int n = 0; n < 8; ++n) b[i][n] = static_cast<float>((i + 3 * n) % 5);
  }
  RunKernel("mma", kWarp, [&] {
    const int g = Thread() / 4;
    const int c = Thread() % 4;
    uint32_t left[4];
    for (int i = 0; i < 4; ++i) {
      const int row = g + 8 * (i % 2);
      const int k = 2 * c + 8 * (i / 2);
      left[i] = PackBf16(a[row][k], a[row][k + 1]);
    }
    float sums[4] = {1, 2, 3, 4};
    Mma(sums, left, PackBf16(b[2 * c][g], b[2 * c + 1][g]),
        PackBf16(b[2 * c + 8][g], b[2 * c + 9][g]));
    for (int i = 0; i < 4; ++i) {
      d[g + 8 * (i / 2)][2 * c + i % 2] = sums[i] - static_cast<float>(i + 1);
    }
  });
  for (int i = 0; i < 16; ++i) {
    for (int n = 0; n < 8; ++n) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += a[i][k] * b[k][n];
      EXPECT_EQ(d[i][n], sum) << i << " " << n;
    }
  }
}

// A group's matrix of 16 rows of 64 inputs in the block's memory, as tensor
// cores want it: its place there, for each of 128 threads.
uint32_t FillMatrix() {
  const uint32_t start = cuda::SharedAddress(cuda::SharedMemory());
  const uint32_t skip = (1024 - start % 1024) % 1024;
  for (int32_t i = Thread(); i < 16 * 64; i += Threads()) {
    const int row = i / 64;
    const int input = i % 64;
    const uint16_t value = static_cast<uint16_t>(
        PackBf16(static_cast<float>((row + 3 * input) % 5), 0));
    std::memcpy(cuda::SharedMemory() + skip + row * 128 +
                    (input / 8 ^ row % 8) * 16 + input % 8 * 2,
                &value, 2);
  }
  cuda::FenceForTensorCores();
  cuda::SyncBlock();
  return start + skip;
}

// Words of a group's weights: output o of warp w, input k.
float GroupWeight(int output, int k) {
  return static_cast<float>((output * 5 + k) % 7);
}
void FillWords(uint32_t (&words)[1][4]) {
  const int warp = Thread() / 32;
  const int g = Thread() % 32 / 4;
  const int c = Thread() % 4;
  for (int i = 0; i < 4; ++i) {
    const int output = 16 * warp + g + 8 * (i % 2);
    const int k = 2 * c + 8 * (i / 2);
    words[0][i] = PackBf16(GroupWeight(output, k), GroupWeight(output, k + 1));
  }
}

// Of 128 threads: 64 outputs and 16 rows, inputs 16 to 31.
TEST(EmulatedProductsTest, GroupsOfWarpsMultiplyWhatIsInTheBlocksMemory) {
  static float d[64][16];
  RunKernel("group", kGroup, [] {
    const uint32_t matrix = FillMatrix();
    uint32_t words[1][4];
    FillWords(words);
    float sums[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    GroupMmaBegin(words);
    GroupMma(sums, words[0], GroupMatrix(matrix + 32), false);
    GroupMma(sums, words[0], GroupMatrix(matrix + 32), true);
    GroupMmaCommit();
    EXPECT_TRUE(std::isnan(sums[0]));
    GroupMmaAwait(sums);
    for (int i = 0; i < 8; ++i) {
      const int output = Thread() / 32 * 16 + Thread() % 32 / 4 + i % 4 / 2 * 8;
      d[output][i / 4 * 8 + 2 * (Thread() % 4) + i % 2] = sums[i];
    }
  });
  for (int o = 0; o < 64; ++o) {
    for (int row = 0; row < 16; ++row) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) {
        sum += GroupWeight(o, k) * static_cast<float>((row + 3 * (16 + k)) % 5);
      }
      EXPECT_EQ(d[o][row], 2 * sum) << o << " " << row;
    }
  }
}

// What a kernel may not do to what tensor cores read by themselves.
TEST(EmulatedProductsTest, DeathOfProductsThatAreTreatedIll) {
  static int how = 0;
  const auto run = [] {
    RunKernel("group", kGroup, [] {
      const uint32_t matrix = FillMatrix();
      uint32_t words[1][4];
      FillWords(words);
      float sums[8] = {};
      if (how != 0) GroupMmaBegin(words);
      GroupMma(sums, words[0], GroupMatrix(matrix), false);
      GroupMmaCommit();
      if (how == 1) std::memset(cuda::SharedMemory(), 0x40, 4096);
      if (how != 2) GroupMmaAwait(sums);
    });
  };
  how = 0;
  EXPECT_DEATH(run(), "products that were not begun");
  how = 1;
  EXPECT_DEATH(run(), "memory changed while tensor cores read it");
  how = 2;
  EXPECT_DEATH(run(), "products that nobody waited for");
  EXPECT_DEATH(RunKernel("fence", kGroup,
                         [] {
                           alignas(16) static const float from[4] = {};
                           const uint32_t matrix = FillMatrix();
                           CopyAsync16(cuda::SharedMemory(), from, true);
                           cuda::CommitCopies();
                           cuda::AwaitCopies<0>();
                           cuda::SyncBlock();
                           uint32_t words[1][4] = {};
                           float sums[8];
                           GroupMmaBegin(words);
                           GroupMma(sums, words[0], GroupMatrix(matrix), false);
                         }),
               "fenced no copies");
}

}  // namespace
}  // namespace baton::engine::cuda::emulated::products_test
