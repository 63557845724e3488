// The blocks of a cluster that execute a kernel. For device.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engine/cuda/launch_shape.h"
#include "tests/support/emulated_device/grid_order.h"
#include "tests/support/emulated_device/ptx/races.h"
#include "tests/support/emulated_device/ptx/warp.h"

namespace baton::engine::cuda::emulated::ptx {

// Of the text's kernels, dynamic memory begins here: where no matrix of tensor
// cores may.
inline constexpr uint32_t kSharedBegin = 1024 + 128;
// Names a block of the cluster in an address of shared::cluster, from 1 on.
inline constexpr int kRankShift = 24;

class Cluster final {
 public:
  // `params` are the kernel's, as its text lays them out. With `races`, ends
  // the process at accesses to blocks' memories that nothing orders.
  Cluster(const Kernel& kernel, const LaunchShape& shape,
          const std::vector<std::byte>& params, bool races);

  // Until all threads have ended. With `falling`, warps go on in falling order.
  void Run(const ClusterPlace& place, bool falling);

 private:
  // A barrier in a block's memory.
  struct Barrier {
    int arrivals = 0;
    int missing = 0;
    int64_t expected_bytes = 0;
    struct Copy {
      std::byte* to;
      const std::byte* from;
      int64_t bytes;
    };
    std::vector<Copy> copies;
    int64_t ended_phases = 0;
    Before arrived;  // of this phase and those before
    Before ended;    // of those that have ended
  };
  struct Block {
    std::vector<std::byte> memory;
    std::byte* begin = nullptr;
    std::map<uint32_t, Barrier> barriers;  // by address
    std::vector<std::unique_ptr<Warp>> warps;
    bool running = true;  // some thread of it has not ended
  };

  void Start(const ClusterPlace& place);
  // Those that depend on the place, or those that do not.
  void SetPresets(const ClusterPlace& place, bool of_place, Warp& warp);
  uint64_t ValueOf(const PresetRegister& preset, const ClusterPlace& place,
                   int lane, const Warp& warp) const;
  // Whether anything was executed.
  bool RunWarp(Warp& warp);
  // Lanes of the mask are at the same place; until they part, wait, or come to
  // `next`, where others are.
  bool RunLanes(Warp& warp, uint32_t mask, int at, int next);
  bool RunLane(Warp& warp, int lane);
  // What all lanes do together.
  void ExecuteTogether(const Instruction& i, Warp& w);
  void Execute(const Instruction& i, uint32_t mask, Warp& w);
  void ExecuteMemory(const Instruction& i, uint32_t mask, Warp& w);
  void Load(const Instruction& i, uint32_t mask, Warp& w);
  void Store(const Instruction& i, uint32_t mask, Warp& w);
  void PlacesOf(const Instruction& i, int operand, Races::Kind kind,
                uint32_t mask, int64_t bytes, Warp& w,
                std::array<std::byte*, kLanes>& places);
  // Those for whom the phase has ended; the predicate says so.
  uint32_t TryWait(const Instruction& i, uint32_t mask, Warp& w);
  void ArriveAtCluster(const Instruction& i, uint32_t mask, Warp& w);
  bool LeaveBlockBarrier(Block& block);

  void Shuffle(const Instruction& i, Warp& w);
  void Mma(const Instruction& i, Warp& w);
  void StartProduct(const Instruction& i, Warp& w);
  void AwaitProducts(int64_t pending, Warp& w);
  std::vector<float> ReadMatrix(uint64_t matrix, int rows, Warp& w,
                                const Instruction& i);
  void AwaitCopies(int64_t pending, int lane, Warp& w, const Instruction& i);
  void EndPhase(Barrier& barrier, bool late);
  void Arrive(Barrier& barrier, int64_t bytes, int lane, const Warp& w,
              const Instruction& i);

  // The memory at an operand's address.
  std::byte* At(const Instruction& i, int operand, Space space, int lane,
                int64_t bytes, Warp& w);
  std::byte* SharedAt(uint32_t address, int64_t bytes, Warp& w,
                      const Instruction& i);
  // An access to a block's memory, which is to be ordered.
  void Touch(const Instruction& i, Races::Kind kind, uint32_t address,
             int64_t bytes, int lane, const Warp& w);
  Races::Thread ThreadOf(int lane, const Warp& w) const;
  Barrier& BarrierAt(uint32_t address, Warp& w, const Instruction& i);
  [[noreturn]] void Fail(const Instruction& i, const Warp& w,
                         const char* what) const;
  [[noreturn]] void FailWaiting() const;

  const Kernel& kernel_;
  const LaunchShape& shape_;
  const std::vector<std::byte>& params_;
  bool falling_ = false;
  std::vector<Block> blocks_;
  int64_t cluster_phase_ = 0;
  int cluster_arrived_ = 0;
  std::unique_ptr<Races> races_;  // null: not looked for
};

}  // namespace baton::engine::cuda::emulated::ptx
