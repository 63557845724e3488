#include "tests/support/emulated_device/ptx/cluster.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>
#include <utility>

#include "common/log.h"

namespace baton::engine::cuda::emulated::ptx {
namespace {

constexpr size_t kMemoryAlignment = 128;

bool Together(Op op) {
  switch (op) {
    case Op::kSyncWarp:
    case Op::kShuffle:
    case Op::kMma:
    case Op::kGroupMma:
    case Op::kGroupFence:
    case Op::kGroupCommit:
    case Op::kGroupWait:
      return true;
    default:
      return false;
  }
}

}  // namespace

Warp::Warp(const Kernel& of, int threads_before)
    : kernel(of), first_thread(threads_before) {
  // As bfloat16 and float32, NaN.
  registers.assign(kernel.register_bytes, std::byte{0xff});
  if (kernel.local_bytes > 0) {
    local.assign(kLanes, std::vector<std::byte>(kernel.local_bytes + 16,
                                                std::byte{0xff}));
  }
}

Cluster::Cluster(const Kernel& kernel, const LaunchShape& shape,
                 const std::vector<std::byte>& params, bool races)
    : kernel_(kernel), shape_(shape), params_(params) {
  if (races) {
    races_ = std::make_unique<Races>(static_cast<int>(shape.cluster),
                                     static_cast<int>(shape.threads) / kLanes,
                                     shape.shared_bytes);
  }
  blocks_.resize(shape.cluster);
  for (int b = 0; b < static_cast<int>(blocks_.size()); ++b) {
    Block& block = blocks_[b];
    block.memory.resize(shape.shared_bytes + kMemoryAlignment);
    const auto at = reinterpret_cast<uintptr_t>(block.memory.data());
    block.begin = block.memory.data() +
                  (kMemoryAlignment - at % kMemoryAlignment) % kMemoryAlignment;
    for (int first = 0; first < static_cast<int>(shape.threads);
         first += kLanes) {
      block.warps.push_back(std::make_unique<Warp>(kernel_, first));
      block.warps.back()->block = b;
      SetPresets({}, /*of_place=*/false, *block.warps.back());
    }
  }
}

void Cluster::Start(const ClusterPlace& place) {
  cluster_phase_ = cluster_arrived_ = 0;
  if (races_ != nullptr) races_->Start();
  for (Block& block : blocks_) {
    // As bfloat16 and float32, NaN.
    std::fill(block.memory.begin(), block.memory.end(), std::byte{0xff});
    block.barriers.clear();
    block.running = true;
    for (const auto& warp : block.warps) {
      warp->pc.fill(0);
      warp->awaited = 0;
      warp->state.fill(LaneState::kReady);
      SetPresets(place, /*of_place=*/true, *warp);
    }
  }
}

void Cluster::SetPresets(const ClusterPlace& place, bool of_place, Warp& warp) {
  for (const PresetRegister& preset : kernel_.presets) {
    const bool depends = preset.preset == Preset::kBlockX ||
                         preset.preset == Preset::kBlockY ||
                         preset.preset == Preset::kBlockZ;
    if (depends != of_place) continue;
    const bool of_lane = preset.preset == Preset::kThreadX ||
                         preset.preset == Preset::kLocalAddress;
    uint64_t value = ValueOf(preset, place, /*lane=*/0, warp);
    for (int lane = 0; lane < kLanes; ++lane) {
      if (of_lane) value = ValueOf(preset, place, lane, warp);
      warp.SetBits(preset.number, lane, value);
    }
  }
}

uint64_t Cluster::ValueOf(const PresetRegister& preset,
                          const ClusterPlace& place, int lane,
                          const Warp& warp) const {
  const auto value = static_cast<uint64_t>(preset.value);
  switch (preset.preset) {
    case Preset::kConstant:
      return value;
    case Preset::kThreadX:
      return warp.first_thread + lane;
    case Preset::kThreadsX:
      return shape_.threads;
    case Preset::kBlockX:
      return place.x + warp.block;
    case Preset::kBlockY:
      return place.y;
    case Preset::kBlockZ:
      return place.z;
    case Preset::kBlocksX:
      return shape_.x;
    case Preset::kClusterRank:
      return warp.block;
    case Preset::kSharedAddress:
      return value + kSharedBegin;
    case Preset::kLocalAddress: {
      const auto at = reinterpret_cast<uintptr_t>(warp.local[lane].data());
      return value + (at + 15) / 16 * 16;
    }
    case Preset::kParamAddress:
      return value + reinterpret_cast<uintptr_t>(params_.data());
  }
  return value;
}

void Cluster::Fail(const Instruction& i, const Warp& w,
                   const char* what) const {
  LOG(FATAL) << "PTX of " << kernel_.name << ", line " << i.line << ", warp "
             << w.first_thread / kLanes << " of block " << w.block << ": "
             << what;
  std::abort();
}

void Cluster::FailWaiting() const {
  for (const Block& block : blocks_) {
    for (const auto& warp : block.warps) {
      for (const int lane : {0, 1, kLanes - 1}) {
        LOG(ERROR) << "block " << warp->block << ", thread "
                   << warp->first_thread + lane << ": state "
                   << static_cast<int>(warp->state[lane]) << ", line "
                   << kernel_.code[warp->pc[lane]].line;
      }
    }
  }
  LOG(FATAL) << "PTX of " << kernel_.name
             << ": threads wait for what does not come";
  std::abort();
}

void Cluster::Run(const ClusterPlace& place, bool falling) {
  falling_ = falling;
  Start(place);
  for (;;) {
    bool came_on = false;
    bool done = true;
    for (Block& block : blocks_) {
      const int warps = static_cast<int>(block.warps.size());
      for (int k = 0; k < warps; ++k) {
        Warp& warp = *block.warps[falling_ ? warps - 1 - k : k];
        for (int lane = 0; lane < kLanes; ++lane) {
          LaneState& state = warp.state[lane];
          if (state == LaneState::kAtBarrier ||
              (state == LaneState::kAtCluster &&
               warp.cluster_phase[lane] < cluster_phase_)) {
            state = LaneState::kReady;
          }
        }
        came_on |= RunWarp(warp);
      }
      came_on |= LeaveBlockBarrier(block);
      block.running = std::any_of(
          block.warps.begin(), block.warps.end(), [](const auto& warp) {
            return std::any_of(
                warp->state.begin(), warp->state.end(),
                [](LaneState state) { return state != LaneState::kDone; });
          });
      done &= !block.running;
    }
    if (done) return;
    if (!came_on) FailWaiting();
  }
}

bool Cluster::LeaveBlockBarrier(Block& block) {
  for (const auto& warp : block.warps) {
    for (const LaneState state : warp->state) {
      if (state != LaneState::kAtBlock) return false;
    }
  }
  for (const auto& warp : block.warps) warp->state.fill(LaneState::kReady);
  if (races_ != nullptr) races_->SyncBlock(block.warps[0]->block);
  return true;
}

bool Cluster::RunWarp(Warp& w) {
  bool came_on = false;
  for (;;) {
    int at = INT_MAX;
    for (int lane = 0; lane < kLanes; ++lane) {
      if (w.state[lane] == LaneState::kReady) at = std::min(at, w.pc[lane]);
    }
    if (at == INT_MAX) {
      // All that have not ended are to be at the same place.
      uint32_t live = 0;
      for (int lane = 0; lane < kLanes; ++lane) {
        if (w.state[lane] == LaneState::kDone) continue;
        if (w.state[lane] != LaneState::kAtWarp) return came_on;
        if (live != 0 && w.pc[lane] != at) return came_on;
        at = w.pc[lane];
        live |= 1u << lane;
      }
      if (live != kAllLanes) return came_on;
      w.state.fill(LaneState::kReady);
    }
    uint32_t mask = 0;
    int next = INT_MAX;
    for (int lane = 0; lane < kLanes; ++lane) {
      if (w.state[lane] != LaneState::kReady) continue;
      if (w.pc[lane] == at) {
        mask |= 1u << lane;
      } else {
        next = std::min(next, w.pc[lane]);
      }
    }
    came_on |= RunLanes(w, mask, at, next);
  }
}

bool Cluster::RunLanes(Warp& w, uint32_t mask, int at, int next) {
  bool came_on = false;
  const auto set = [&](uint32_t lanes, int pc, LaneState state) {
    for (int lane = 0; lane < kLanes; ++lane) {
      if ((lanes >> lane & 1) == 0) continue;
      w.pc[lane] = pc;
      w.state[lane] = state;
    }
  };
  for (;;) {
    if (at >= next) {
      set(mask, at, LaneState::kReady);
      return came_on;
    }
    const Instruction& i = kernel_.code[at];
    uint32_t lanes = mask;
    if (i.guard >= 0) {
      const uint32_t guard = w.Mask(i.guard);
      lanes &= i.guard_negated ? ~guard : guard;
    }
    if (lanes == 0) {
      ++at;
      continue;
    }
    kernel_.executed[at] = 1;
    if (i.run != nullptr) {
      i.run(i, lanes, w);
      came_on = true;
      ++at;
      continue;
    }
    if (i.op == Op::kBranch) {
      came_on = true;
      if (lanes == mask) {
        at = i.target;
        continue;
      }
      set(lanes, i.target, LaneState::kReady);
      set(mask & ~lanes, at + 1, LaneState::kReady);
      return true;
    }
    if (Together(i.op)) {
      if (lanes != kAllLanes) {
        if (lanes != mask) Fail(i, w, "some lanes of a warp do it");
        set(lanes, at, LaneState::kAtWarp);
        return came_on;
      }
      ExecuteTogether(i, w);
    } else if (i.op == Op::kReturn || i.op == Op::kSyncBlock ||
               i.op == Op::kClusterWait) {
      if (lanes != mask) Fail(i, w, "some lanes do it");
      LaneState state = i.op == Op::kReturn      ? LaneState::kDone
                        : i.op == Op::kSyncBlock ? LaneState::kAtBlock
                                                 : LaneState::kAtCluster;
      if (i.op == Op::kReturn && (mask & ~w.awaited) != 0) {
        Fail(i, w, "does not wait for the kernels before it");
      }
      for (int lane = 0; i.op == Op::kReturn && lane < kLanes; ++lane) {
        if ((mask >> lane & 1) &&
            (!w.open_copies[lane].empty() || !w.copy_groups[lane].empty())) {
          Fail(i, w, "copies that nobody waited for");
        }
      }
      set(mask, at + 1, state);
      return true;
    } else if (i.op == Op::kBarrierTryWait) {
      const uint32_t passed = TryWait(i, lanes, w);
      if (passed != mask) {
        if (lanes != mask) Fail(i, w, "some lanes do it");
        set(passed, at + 1, LaneState::kReady);
        set(mask & ~passed, at, LaneState::kAtBarrier);
        return came_on || passed != 0;
      }
    } else {
      Execute(i, lanes, w);
    }
    came_on = true;
    ++at;
  }
}

void Cluster::Execute(const Instruction& i, uint32_t mask, Warp& w) {
  switch (i.op) {
    case Op::kNothing:
      return;
    case Op::kAwaitKernels:
      w.awaited |= mask;
      return;
    case Op::kClusterArrive:
      return ArriveAtCluster(i, mask, w);
    default:
      return ExecuteMemory(i, mask, w);
  }
}

void Cluster::ArriveAtCluster(const Instruction& i, uint32_t mask, Warp& w) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (mask >> lane & 1) w.cluster_phase[lane] = cluster_phase_;
  }
  cluster_arrived_ += std::popcount(mask);
  if (cluster_arrived_ < static_cast<int>(shape_.cluster * shape_.threads)) {
    return;
  }
  cluster_arrived_ = 0;
  ++cluster_phase_;
  if (races_ != nullptr && i.mode != 'r') races_->SyncCluster();
}

}  // namespace baton::engine::cuda::emulated::ptx
