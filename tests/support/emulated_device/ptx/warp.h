// A warp that executes what the compiler made of a kernel. For device.cc.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "tests/support/emulated_device/ptx/program.h"

namespace baton::engine::cuda::emulated::ptx {

inline constexpr int kLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

// The lanes of a mask, rising: for (const int lane : LanesOf(mask)).
class LanesOf final {
 public:
  explicit LanesOf(uint32_t mask) : mask_(mask) {}
  struct Iterator {
    uint32_t left;
    int operator*() const { return std::countr_zero(left); }
    Iterator& operator++() {
      left &= left - 1;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return left != other.left; }
  };
  Iterator begin() const { return {mask_}; }
  Iterator end() const { return {0}; }

 private:
  uint32_t mask_;
};

enum class LaneState : uint8_t {
  kReady,
  kAtWarp,     // for the other lanes
  kAtBlock,    // for the other threads
  kAtCluster,  // for the other blocks
  kAtBarrier,  // for a phase of a barrier
  kDone,
};

// An asynchronous copy of 16 bytes, or of zeros.
struct AsyncCopy {
  std::byte* to;
  const std::byte* from;
  std::array<std::byte, 16> bytes;
  uint32_t address;
};

// A product of a group of warps, and what it read.
struct GroupProduct {
  const Instruction* instruction;
  bool add;
  uint64_t matrix;
  std::vector<float> right;  // [rows][16]
  std::array<std::array<uint32_t, kLanes>, 4> left;
};

struct Warp {
  Warp(const Kernel& kernel, int threads_before);

  // Registers hold one value after another, of lane 0 to 31.
  template <typename T>
  T* At(int number) {
    return reinterpret_cast<T*>(registers.data() + kernel.offsets[number]);
  }
  uint32_t& Mask(int predicate) { return *At<uint32_t>(predicate); }
  // The low bits of a register of any width.
  uint64_t Bits(int number, int lane) {
    switch (kernel.widths[number]) {
      case 2:
        return At<uint16_t>(number)[lane];
      case 4:
        return At<uint32_t>(number)[lane];
      default:
        return At<uint64_t>(number)[lane];
    }
  }
  void SetBits(int number, int lane, uint64_t bits) {
    switch (kernel.widths[number]) {
      case 2:
        At<uint16_t>(number)[lane] = static_cast<uint16_t>(bits);
        return;
      case 4:
        At<uint32_t>(number)[lane] = static_cast<uint32_t>(bits);
        return;
      default:
        At<uint64_t>(number)[lane] = bits;
    }
  }

  const Kernel& kernel;
  int first_thread = 0;  // of its block
  int block = 0;         // of its cluster
  std::vector<std::byte> registers;
  std::array<int, kLanes> pc = {};
  std::array<LaneState, kLanes> state = {};
  std::array<int64_t, kLanes> cluster_phase = {};
  std::array<std::vector<AsyncCopy>, kLanes> open_copies;
  std::array<std::vector<std::vector<AsyncCopy>>, kLanes> copy_groups;
  uint32_t awaited = 0;  // lanes that have waited for earlier kernels
  bool group_fenced = false;
  std::vector<GroupProduct> open_products;
  std::vector<std::vector<GroupProduct>> product_groups;
  // Sums that products are to change, by their first register: [element][lane].
  struct Sums {
    std::vector<std::array<float, kLanes>> values;
    int products = 0;
  };
  std::map<int, Sums> sums;
  std::vector<std::vector<std::byte>> local;  // of each lane
};

// Of an instruction that needs nothing but registers. Null when it is none.
Handler ArithmeticHandler(const Instruction& instruction);

}  // namespace baton::engine::cuda::emulated::ptx
