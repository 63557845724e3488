// What threads do with memory: the device's, and their blocks'.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/log.h"
#include "tests/support/emulated_device/ptx/cluster.h"

namespace baton::engine::cuda::emulated::ptx {

namespace {

constexpr uint64_t kLeastAddress = 4096;

}  // namespace

Races::Thread Cluster::ThreadOf(int lane, const Warp& w) const {
  return {
      (w.block * static_cast<int>(shape_.threads) + w.first_thread) / kLanes,
      lane};
}

void Cluster::Touch(const Instruction& i, Races::Kind kind, uint32_t address,
                    int64_t bytes, int lane, const Warp& w) {
  if (races_ == nullptr) return;
  const uint32_t rank = address >> kRankShift;
  const Races::Race* const race = races_->Access(
      ThreadOf(lane, w), kind, rank == 0 ? w.block : static_cast<int>(rank) - 1,
      (address & ((1u << kRankShift) - 1)) - kSharedBegin, bytes, i.line);
  CHECK(race == nullptr) << "PTX of " << kernel_.name << ", line " << i.line
                         << ", lane " << lane << " of warp "
                         << ThreadOf(lane, w).warp
                         << (race->unfenced
                                 ? ": no fence between this and line "
                                 : ": nothing orders this and line ")
                         << race->line << " of thread " << race->thread;
}

std::byte* Cluster::SharedAt(uint32_t address, int64_t bytes, Warp& w,
                             const Instruction& i) {
  const uint32_t rank = address >> kRankShift;
  const int block = rank == 0 ? w.block : static_cast<int>(rank) - 1;
  const int64_t at =
      (address & ((1u << kRankShift) - 1)) - int64_t{kSharedBegin};
  if (block >= static_cast<int>(blocks_.size())) {
    Fail(i, w, "a block that the cluster does not have");
  }
  if (block != w.block && !blocks_[block].running) {
    Fail(i, w, "of a block that has ended");
  }
  if (at < 0 || at + bytes > shape_.shared_bytes) {
    Fail(i, w, "not of the block's memory");
  }
  return blocks_[block].begin + at;
}

std::byte* Cluster::At(const Instruction& i, int operand, Space space, int lane,
                       int64_t bytes, Warp& w) {
  const uint64_t address =
      w.Bits(i.operands[operand], lane) + static_cast<uint64_t>(i.offset);
  if (address % bytes != 0) Fail(i, w, "not aligned");
  if (space == Space::kShared) {
    return SharedAt(static_cast<uint32_t>(address), bytes, w, i);
  }
  // Addresses of all others are the host's.
  if (address < kLeastAddress) Fail(i, w, "a null pointer");
  return reinterpret_cast<std::byte*>(address);
}

Cluster::Barrier& Cluster::BarrierAt(uint32_t address, Warp& w,
                                     const Instruction& i) {
  SharedAt(address, 8, w, i);
  const uint32_t rank = address >> kRankShift;
  Block& block = blocks_[rank == 0 ? w.block : rank - 1];
  const auto place = block.barriers.find(address & ((1u << kRankShift) - 1));
  if (place == block.barriers.end()) Fail(i, w, "a barrier that nobody made");
  return place->second;
}

void Cluster::EndPhase(Barrier& barrier, bool late) {
  if (barrier.missing > 0 || (late && barrier.expected_bytes > 0)) return;
  int64_t bytes = 0;
  for (const Barrier::Copy& copy : barrier.copies) bytes += copy.bytes;
  if (bytes != barrier.expected_bytes) return;
  for (const Barrier::Copy& copy : barrier.copies) {
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
  barrier.copies.clear();
  barrier.expected_bytes = 0;
  barrier.missing = barrier.arrivals;
  barrier.ended.Join(barrier.arrived);
  ++barrier.ended_phases;
}

void Cluster::Arrive(Barrier& barrier, int64_t bytes, int lane, const Warp& w,
                     const Instruction& i) {
  EndPhase(barrier, /*late=*/false);
  CHECK_GT(barrier.missing, 0) << kernel_.name << ", line " << i.line
                               << ": more arrivals than a barrier's phase has";
  barrier.expected_bytes += bytes;
  --barrier.missing;
  if (races_ != nullptr) {
    barrier.arrived.Join(races_->Release(ThreadOf(lane, w)));
  }
  EndPhase(barrier, /*late=*/true);
}

uint32_t Cluster::TryWait(const Instruction& i, uint32_t mask, Warp& w) {
  uint32_t passed = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    const auto address = static_cast<uint32_t>(w.Bits(i.operands[1], lane));
    Barrier& barrier = BarrierAt(address, w, i);
    EndPhase(barrier, /*late=*/false);
    const auto parity = static_cast<int64_t>(w.Bits(i.operands[2], lane));
    if (barrier.ended_phases % 2 == parity) continue;
    passed |= 1u << lane;
    if (races_ != nullptr) {
      races_->Acquire(ThreadOf(lane, w).warp, barrier.ended);
    }
  }
  w.Mask(i.operands[0]) |= passed;
  return passed;
}

void Cluster::AwaitCopies(int64_t pending, int lane, Warp& w,
                          const Instruction& i) {
  auto& groups = w.copy_groups[lane];
  while (static_cast<int64_t>(groups.size()) > pending) {
    for (const AsyncCopy& copy : groups.front()) {
      if (copy.from != nullptr &&
          std::memcmp(copy.bytes.data(), copy.from, 16) != 0) {
        Fail(i, w, "what is copied is written meanwhile");
      }
      std::memcpy(copy.to, copy.bytes.data(), 16);
      Touch(i, Races::Kind::kWrite, copy.address, 16, lane, w);
    }
    groups.erase(groups.begin());
  }
}

namespace {

// Whether it is to wait for the kernels before: it writes, or has memory copied
// that they may write. Loads are not looked at, as the text does not say which
// are of what the host has sent for the step (fibers.h knows more).
bool ComesAfterOthers(const Instruction& i) {
  switch (i.op) {
    case Op::kStore:
    case Op::kAtomicAdd:
    case Op::kAtomicMin:
    case Op::kAtomicMax:
      return i.space == Space::kGlobal || i.space == Space::kGeneric;
    case Op::kCopyAsync:
      return !i.early;
    case Op::kCopyBulk:
      return true;
    default:
      return false;
  }
}

}  // namespace

// The memory of each lane of the mask at an operand's address.
void Cluster::PlacesOf(const Instruction& i, int operand, Races::Kind kind,
                       uint32_t mask, int64_t bytes, Warp& w,
                       std::array<std::byte*, kLanes>& places) {
  const int number = i.operands[operand];
  if (i.space != Space::kShared && w.kernel.widths[number] == 8) {
    // Without branches; where something is wrong, At says what.
    const uint64_t* const addresses = w.At<uint64_t>(number);
    const auto offset = static_cast<uint64_t>(i.offset);
    uint64_t unaligned = 0;
    bool null = false;
    for (int lane = 0; lane < kLanes; ++lane) {
      const bool wanted = mask >> lane & 1;
      const uint64_t address = addresses[lane] + offset;
      places[lane] = reinterpret_cast<std::byte*>(address);
      unaligned |= wanted ? address & (bytes - 1) : 0;
      null |= wanted & (address < kLeastAddress);
    }
    if (unaligned == 0 && !null) return;
  }
  for (const int lane : LanesOf(mask)) {
    places[lane] = At(i, operand, i.space, lane, bytes, w);
  }
  if (races_ == nullptr || i.space != Space::kShared) return;
  for (const int lane : LanesOf(mask)) {
    const uint64_t address = w.Bits(number, lane);
    Touch(i, kind, static_cast<uint32_t>(address + i.offset), bytes, lane, w);
  }
}

void Cluster::Load(const Instruction& i, uint32_t mask, Warp& w) {
  const int bytes = i.type.bytes;
  std::array<std::byte*, kLanes> from;
  PlacesOf(i, i.vector, Races::Kind::kRead, mask, int64_t{bytes} * i.vector, w,
           from);
  for (int k = 0; k < i.vector; ++k) {
    const int to = i.operands[k];
    if (bytes == 4 && w.kernel.widths[to] == 4) {
      uint32_t* const words = w.At<uint32_t>(to);
      for (const int lane : LanesOf(mask)) {
        std::memcpy(&words[lane], from[lane] + k * 4, 4);
      }
      continue;
    }
    const int unused = 64 - 8 * bytes;
    for (const int lane : LanesOf(mask)) {
      uint64_t bits = 0;
      std::memcpy(&bits, from[lane] + k * bytes, bytes);
      if (i.type.kind == 's') {
        bits = static_cast<uint64_t>(static_cast<int64_t>(bits << unused) >>
                                     unused);
      }
      w.SetBits(to, lane, bits);
    }
  }
}

void Cluster::Store(const Instruction& i, uint32_t mask, Warp& w) {
  const int bytes = i.type.bytes;
  std::array<std::byte*, kLanes> to;
  PlacesOf(i, i.vector, Races::Kind::kWrite, mask, int64_t{bytes} * i.vector, w,
           to);
  // Lane by lane: the last one's stays where several write.
  for (const int lane : LanesOf(mask)) {
    for (int k = 0; k < i.vector; ++k) {
      const uint64_t bits = w.Bits(i.operands[k], lane);
      std::memcpy(to[lane] + k * bytes, &bits, bytes);
    }
  }
}

void Cluster::ExecuteMemory(const Instruction& i, uint32_t mask, Warp& w) {
  if (ComesAfterOthers(i) && (mask & ~w.awaited) != 0) {
    Fail(i, w, "does not wait for the kernels before it");
  }
  if (i.op == Op::kLoad) return Load(i, mask, w);
  if (i.op == Op::kStore) return Store(i, mask, w);
  const int bytes = i.type.bytes;
  for (const int lane : LanesOf(mask)) {
    const auto value = [&](int operand) {
      return w.Bits(i.operands[operand], lane);
    };
    const auto shared = [&](int operand) {
      return static_cast<uint32_t>(value(operand) + i.offset);
    };
    switch (i.op) {
      case Op::kAtomicAdd:
      case Op::kAtomicMin:
      case Op::kAtomicMax: {
        if (bytes != 4 || i.type.kind != 'u') Fail(i, w, "another atomic");
        std::byte* const at = At(i, 2, i.space, lane, bytes, w);
        if (i.space == Space::kShared) {
          Touch(i, Races::Kind::kAtomic, shared(2), bytes, lane, w);
        }
        uint32_t old;
        std::memcpy(&old, at, sizeof(old));
        const auto by = static_cast<uint32_t>(value(1));
        const uint32_t now = i.op == Op::kAtomicAdd   ? old + by
                             : i.op == Op::kAtomicMin ? std::min(old, by)
                                                      : std::max(old, by);
        std::memcpy(at, &now, sizeof(now));
        if (i.operands[0] >= 0) w.SetBits(i.operands[0], lane, old);
        break;
      }
      case Op::kCopyAsync: {
        AsyncCopy copy = {
            At(i, 0, Space::kShared, lane, 16, w), nullptr, {}, shared(0)};
        Touch(i, Races::Kind::kWrite, copy.address, 16, lane, w);
        if (const uint64_t wanted = value(2); wanted != 0) {
          if (wanted != 16) Fail(i, w, "a copy of a part");
          copy.from = At(i, 1, Space::kGlobal, lane, 16, w);
          std::memcpy(copy.bytes.data(), copy.from, 16);
        }
        std::memset(copy.to, 0xff, 16);
        w.open_copies[lane].push_back(copy);
        break;
      }
      case Op::kCopyCommit:
        w.copy_groups[lane].push_back(std::move(w.open_copies[lane]));
        w.open_copies[lane].clear();
        break;
      case Op::kCopyWait:
        AwaitCopies(i.offset, lane, w, i);
        break;
      case Op::kCopyBulk: {
        const auto size = static_cast<int64_t>(value(2));
        const uint64_t from = value(1);
        if (size <= 0 || size % 16 != 0 || from % 16 != 0 ||
            shared(0) % 16 != 0) {
          Fail(i, w, "not multiples of 16");
        }
        // Without a mask, to the block's own memory.
        const auto ranks = i.operands.size() > 4
                               ? static_cast<uint32_t>(value(4))
                               : 1u << w.block;
        for (uint32_t rank = 0; ranks >> rank != 0; ++rank) {
          if ((ranks >> rank & 1) == 0) continue;
          const uint32_t there = (rank + 1) << kRankShift;
          std::byte* const to = SharedAt(shared(0) | there, size, w, i);
          std::memset(to, 0xff, size);
          Touch(i, Races::Kind::kProxyWrite, shared(0) | there, size, lane, w);
          Barrier& barrier =
              BarrierAt(static_cast<uint32_t>(value(3)) | there, w, i);
          barrier.copies.push_back(
              {to, reinterpret_cast<const std::byte*>(from), size});
          if (races_ != nullptr) {
            barrier.arrived.Join(races_->Release(ThreadOf(lane, w)));
          }
        }
        break;
      }
      case Op::kBarrierInit: {
        SharedAt(shared(0), 8, w, i);
        const auto [place, added] =
            blocks_[w.block].barriers.try_emplace(shared(0));
        const int arrivals = static_cast<int>(value(1));
        if (!added || arrivals <= 0) Fail(i, w, "a barrier is made again");
        place->second.arrivals = place->second.missing = arrivals;
        break;
      }
      case Op::kBarrierArrive:
        Arrive(BarrierAt(shared(0), w, i), 0, lane, w, i);
        break;
      case Op::kBarrierExpect:
        Arrive(BarrierAt(shared(0), w, i), static_cast<int64_t>(value(1)), lane,
               w, i);
        break;
      case Op::kFenceProxy:
        if (races_ != nullptr) races_->FenceProxy(ThreadOf(lane, w));
        break;
      case Op::kMapRank:
        w.SetBits(i.operands[0], lane,
                  (value(1) & ((1u << kRankShift) - 1)) | (value(2) + 1)
                                                              << kRankShift);
        break;
      default:
        Fail(i, w, "an instruction that is not known");
    }
  }
}

}  // namespace baton::engine::cuda::emulated::ptx
