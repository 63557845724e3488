// What the two processes of handoff_benchmark agree on: the KV that goes over,
// the options of the hand-off, and how a thread waits for its events.
//
// One thread, but for Bell.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/log.h"
#include "engine/cpu/memory_arena.h"
#include "kv_transfer/handoff.h"
#include "kv_transfer/peer_events.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

inline constexpr int32_t kBlockTokens = 16;

struct Shape {
  const char* name;
  const char* description;
  int32_t layers;
  int32_t kv_heads;
  int64_t page_bytes;
};
// Of about 100 M parameters (SmolLM2-135M).
inline constexpr Shape kBenchShape = {"bench", "30 layers x 3 heads x 64", 30,
                                      3, kBlockTokens * 3 * 64 * 2 * 2};
inline constexpr Shape kStoriesShape = {"stories", "models/stories", 6, 4,
                                        kBlockTokens * 4 * 32 * 2 * 2};

// The shape and number of blocks of both processes, as arguments.
struct Plan {
  static constexpr int kArgs = 3;

  const Shape* shape = nullptr;
  int32_t num_blocks = 0;
  bool scattered = false;

  std::vector<std::string> Args() const;
  static Plan Parse(char** args);

  int64_t BytesOf(int32_t blocks) const {
    return blocks * shape->layers * shape->page_bytes;
  }
  // In order, or shuffled by `seed`.
  std::vector<BlockId> Blocks(uint32_t seed) const;
};
// So that no page of one lies where its copy does.
inline constexpr uint32_t kSenderSeed = 1, kReceiverSeed = 2;

// As CreateTransport; "tls" is "tcp" with TLS, between members of a cluster of
// this program's own.
std::unique_ptr<Transport> OpenTransport(const std::string& kind, bool listen);

HandoffOptions OptionsOf(const Plan& plan, v1::WorkerRole role,
                         const engine::cpu::MemoryArena& arena);

inline absl::Time Now() { return Clock::Monotonic()->Now(); }
inline absl::Time InAMinute() { return Now() + absl::Minutes(1); }

// The `index`th of the CPUs that this process had at first.
int CpuAt(int index);
// Keeps this process to that one.
void KeepToCpu(int index);

double Median(std::vector<double> values);

// Lets a thread wait for the hand-off's events.
class Bell final {
 public:
  void Ring() {
    absl::MutexLock lock(&mu_);
    rung_ = true;
  }
  void Await() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&rung_));
    rung_ = false;
  }

 private:
  absl::Mutex mu_;
  bool rung_ ABSL_GUARDED_BY(mu_) = false;
};

// Of the hand-offs in a row, how many are under way.
inline constexpr int kAtOnce = 2;

// The next events of type T, one at least; others are dropped, failures end the
// program.
template <typename T, typename Side>
std::vector<T> AwaitEvents(Side& side, Bell& bell) {
  for (;;) {
    std::vector<T> found;
    for (auto& event : side.Poll()) {
      if (auto* failed = std::get_if<typename Side::Failed>(&event)) {
        LOG(FATAL) << "the transfer failed: " << failed->detail;
      }
      if (auto* refused = std::get_if<PeerRefused>(&event)) {
        LOG(FATAL) << "not paired: " << refused->reason;
      }
      if (auto* wanted = std::get_if<T>(&event)) {
        found.push_back(std::move(*wanted));
      }
    }
    if (!found.empty()) return found;
    bell.Await();
  }
}

// The last of those.
template <typename T, typename Side>
T AwaitEvent(Side& side, Bell& bell) {
  return std::move(AwaitEvents<T>(side, bell).back());
}

}  // namespace baton::kv_transfer
