// One worker of a stress run: a process with one side of the hand-off over a
// real transport, which does what its driver says (notes.h), computes nothing,
// and checks all that it sees: what landed is what was sent and stays so, a
// transfer ends once, and blocks are nobody's or one's (checked_blocks.h).
//
// One thread, besides the transport's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/scoped_fd.h"
#include "kv_transfer/handoff.h"
#include "kv_transfer/transport.h"
#include "tests/stress/checked_blocks.h"
#include "tests/stress/notes.h"

namespace baton::stress {

// The KV of every worker.
inline constexpr int32_t kLayers = 4;
inline constexpr int32_t kPoolBlocks = 128;
inline constexpr int64_t kPageBytes = 4096;
// Of one transfer.
inline constexpr int32_t kMaxBlocks = 16;

struct WorkerOptions {
  int notes_fd = -1;
  uint64_t incarnation = 0;
  // "ucx", "tcp", "local" or "auto".
  std::string transport = "auto";
  uint64_t seed = 1;
  // Receivers: through LateWriteTransport.
  bool late_writes = false;
  kv_transfer::Fence removed_fence = kv_transfer::Fence::kNone;
};

// How a failed transfer may have ended, when nobody breaks the protocol. KV
// that arrives altered is one: a worker whose peer stood still too long takes
// its pages back while they may still be read there, and the checksum is for
// that.
bool MayFailWith(kv_transfer::TransferOutcome outcome);

class StressWorker {
 public:
  virtual ~StressWorker() = default;
  StressWorker(const StressWorker&) = delete;
  StressWorker& operator=(const StressWorker&) = delete;

  // Until the driver says quit, or is gone. The process's exit status.
  int Run();

 protected:
  explicit StressWorker(const WorkerOptions& options);

  // What the driver says, besides lease and quit.
  virtual void OnNote(const Note& note) = 0;
  // What the hand-off says.
  virtual void OnEvents() = 0;
  // A turn of what a worker does by itself; whether there is more to do soon.
  virtual bool Work() = 0;

  const WorkerOptions& options() const { return options_; }
  std::unique_ptr<kv_transfer::Transport> MakeTransport(bool listen) const;
  kv_transfer::HandoffOptions MakeHandoffOptions(v1::WorkerRole role);
  void Say(std::string word, std::vector<uint64_t> numbers) {
    socket_.Send({std::move(word), std::move(numbers)});
  }
  // In [0, bound).
  int Below(int bound) {
    return static_cast<int>(random_() % static_cast<uint64_t>(bound));
  }

  CheckedBlocks blocks_{kLayers, kPoolBlocks, kPageBytes};

 private:
  absl::Time LeaseUntil(uint64_t holder) ABSL_LOCKS_EXCLUDED(mu_);
  void TakeNotes();
  void Sleep(bool busy);

  const WorkerOptions options_;
  NoteSocket socket_;
  ScopedFd wake_;
  std::mt19937_64 random_;
  bool quit_ = false;

  absl::Mutex mu_;
  std::map<uint64_t, absl::Time> leases_ ABSL_GUARDED_BY(mu_);
};

std::unique_ptr<StressWorker> MakeStressSender(const WorkerOptions& options);
std::unique_ptr<StressWorker> MakeStressReceiver(const WorkerOptions& options);

}  // namespace baton::stress
