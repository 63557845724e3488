// What the lanes of a warp do together.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "engine/float_convert.h"
#include "tests/support/emulated_device/ptx/cluster.h"
#include "tests/support/emulated_device/tensor_cores.h"

namespace baton::engine::cuda::emulated::ptx {
namespace {

float Half(uint32_t word, int k) {
  return Bf16ToFloat(static_cast<uint16_t>(k % 2 ? word >> 16 : word));
}

}  // namespace

void Cluster::ExecuteTogether(const Instruction& i, Warp& w) {
  switch (i.op) {
    case Op::kSyncWarp:
      if (races_ != nullptr) races_->SyncWarp(ThreadOf(0, w).warp);
      return;
    case Op::kShuffle:
      return Shuffle(i, w);
    case Op::kMma:
      return Mma(i, w);
    case Op::kGroupFence:
      w.group_fenced = true;
      return;
    case Op::kGroupMma:
      return StartProduct(i, w);
    case Op::kGroupCommit:
      w.group_fenced = false;
      w.product_groups.push_back(std::move(w.open_products));
      w.open_products.clear();
      return;
    case Op::kGroupWait:
      return AwaitProducts(i.offset, w);
    default:
      Fail(i, w, "an instruction that is not known");
  }
}

void Cluster::Shuffle(const Instruction& i, Warp& w) {
  const auto operand = [&](int k) {
    return static_cast<uint32_t>(w.Bits(i.operands[k], 0));
  };
  if (operand(4) != kAllLanes) Fail(i, w, "a shuffle of some lanes");
  const auto clamp = static_cast<int>(operand(3));
  std::array<uint32_t, kLanes> results;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int by = static_cast<int>(w.Bits(i.operands[2], lane)) & 31;
    const int segment = clamp >> 8 & 31;
    const int last = (lane & segment) | (clamp & 31 & ~segment);
    int from = lane;
    bool valid = false;
    switch (i.mode) {
      case 'u':
        from = lane - by;
        valid = from >= last;
        break;
      case 'd':
        from = lane + by;
        valid = from <= last;
        break;
      case 'b':
        from = lane ^ by;
        valid = from <= last;
        break;
      default:  // idx
        from = (lane & segment) | (by & ~segment);
        valid = from <= last;
        break;
    }
    results[lane] =
        static_cast<uint32_t>(w.Bits(i.operands[1], valid ? from : lane));
  }
  std::memcpy(w.At<uint32_t>(i.operands[0]), results.data(), sizeof(results));
}

// Operands: d, a, b and c, of 4, 4, 2 and 4 registers.
void Cluster::Mma(const Instruction& i, Warp& w) {
  uint32_t lanes[kLanes][kMmaWords];
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int k = 0; k < kMmaWords; ++k) {
      lanes[lane][k] = w.At<uint32_t>(i.operands[4 + k])[lane];
    }
  }
  JoinMma(lanes);
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int k = 0; k < 4; ++k) {
      w.At<uint32_t>(i.operands[k])[lane] = lanes[lane][6 + k];
    }
  }
}

// A matrix of the block's memory that a descriptor names ("Matrix Descriptor
// Format" of wgmma): address, stride from eight rows to the next eight, and the
// swizzle; rows of 128 bytes with inputs one after another.
std::vector<float> Cluster::ReadMatrix(uint64_t matrix, int rows, Warp& w,
                                       const Instruction& i) {
  const auto address = static_cast<uint32_t>(matrix & 0x3fff) << 4;
  const auto stride = static_cast<uint32_t>(matrix >> 32 & 0x3fff) << 4;
  if (matrix >> 62 != 1) Fail(i, w, "not swizzled over 128 bytes");
  if ((matrix >> 49 & 7) != 0) Fail(i, w, "an offset of the beginning");
  // Repeats every 1,024 bytes, where a matrix without an offset begins.
  if (address % 1024 >= 128) Fail(i, w, "a matrix that is not aligned");
  std::vector<float> values(static_cast<size_t>(rows) * 16);
  for (int row = 0; row < rows; ++row) {
    for (int k = 0; k < 16; ++k) {
      const uint32_t plain = address + row / 8 * stride + row % 8 * 128 + k * 2;
      uint16_t bits;
      const uint32_t at = plain ^ (plain >> 7 & 7) << 4;
      std::memcpy(&bits, SharedAt(at, 2, w, i), 2);
      // For all lanes, which wait for it together.
      Touch(i, Races::Kind::kProxyRead, at, 2, 0, w);
      values[row * 16 + k] = Bf16ToFloat(bits);
    }
  }
  return values;
}

// Operands: the sums, four words, the matrix, and whether to add.
void Cluster::StartProduct(const Instruction& i, Warp& w) {
  if (!w.group_fenced) Fail(i, w, "no fence before the product");
  const int half = static_cast<int>(i.operands.size()) - 6;
  GroupProduct product;
  product.instruction = &i;
  product.matrix = w.Bits(i.operands[half + 4], 0);
  const uint32_t add = w.Mask(i.operands[half + 5]);
  if (add != 0 && add != kAllLanes) Fail(i, w, "lanes do not agree");
  product.add = add != 0;
  product.right = ReadMatrix(product.matrix, 2 * half, w, i);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (w.Bits(i.operands[half + 4], lane) != product.matrix) {
      Fail(i, w, "lanes do not agree");
    }
    for (int k = 0; k < 4; ++k) {
      product.left[k][lane] = w.At<uint32_t>(i.operands[half + k])[lane];
    }
  }
  Warp::Sums& sums = w.sums[i.operands[0]];
  if (sums.products++ == 0) {
    sums.values.resize(half);
    for (int k = 0; k < half; ++k) {
      float* const at = w.At<float>(i.operands[k]);
      std::copy_n(at, kLanes, sums.values[k].begin());
      // Whoever reads them before they are awaited.
      std::fill_n(at, kLanes, std::numeric_limits<float>::quiet_NaN());
    }
  }
  w.open_products.push_back(std::move(product));
}

void Cluster::AwaitProducts(int64_t pending, Warp& w) {
  while (static_cast<int64_t>(w.product_groups.size()) > pending) {
    for (const GroupProduct& product : w.product_groups.front()) {
      const Instruction& i = *product.instruction;
      const int half = static_cast<int>(i.operands.size()) - 6;
      const std::vector<float> now = ReadMatrix(product.matrix, 2 * half, w, i);
      if (std::memcmp(now.data(), product.right.data(),
                      now.size() * sizeof(float)) != 0) {
        Fail(i, w, "the block's memory changed while it was multiplied");
      }
      float left[16][16];
      for (int lane = 0; lane < kLanes; ++lane) {
        for (int k = 0; k < 4; ++k) {
          const uint32_t word = product.left[k][lane];
          if (w.At<uint32_t>(i.operands[half + k])[lane] != word) {
            Fail(i, w, "words changed while they were multiplied");
          }
          for (const int h : {0, 1}) {
            left[lane / 4 + 8 * (k % 2)][2 * (lane % 4) + 8 * (k / 2) + h] =
                Half(word, h);
          }
        }
      }
      const auto place = w.sums.find(i.operands[0]);
      Warp::Sums& sums = place->second;
      // Sums 4r to 4r + 3 are of rows 8r + 2 (lane % 4) and + 1 of what the
      // memory holds.
      const int columns = 2 * half;
      std::vector<float> of_outputs(16 * columns);
      const auto at = [&](int k, int lane) -> float& {
        const int output = lane / 4 + 8 * (k % 4 / 2);
        return of_outputs[output * columns + k / 4 * 8 + 2 * (lane % 4) +
                          k % 2];
      };
      for (int k = 0; k < half && product.add; ++k) {
        for (int lane = 0; lane < kLanes; ++lane) {
          at(k, lane) = sums.values[k][lane];
        }
      }
      TensorCoreSteps(of_outputs.data(), left, 16,
                      reinterpret_cast<const float(*)[16]>(now.data()), columns,
                      GroupFractionBits());
      for (int k = 0; k < half; ++k) {
        for (int lane = 0; lane < kLanes; ++lane) {
          sums.values[k][lane] = at(k, lane);
        }
      }
      if (--sums.products > 0) continue;
      for (int k = 0; k < half; ++k) {
        std::copy_n(sums.values[k].begin(), kLanes, w.At<float>(i.operands[k]));
      }
      w.sums.erase(place);
    }
    w.product_groups.erase(w.product_groups.begin());
  }
}

}  // namespace baton::engine::cuda::emulated::ptx
