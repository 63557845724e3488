// What the parts of router_benchmark share: the clock, the CPUs, the board on
// which senders note when they sent a token, the window in which receivers
// count, and what the kernel says of processes.
//
// Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine
// share.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace baton::bench {

// The router has a CPU to itself; this process, with the workers and all
// clients, has another.
inline constexpr int kOwnCpu = 0, kRouterCpu = 1;

// A token of the workers stands for so many bytes of text, none of which JSON
// escapes: that is how a client that reads text counts tokens.
inline constexpr int kTokenTextBytes = 4;

int64_t NowNs();
// Until then, or for that long.
void SleepUntil(int64_t ns);
void SleepSeconds(double seconds);

// Keeps this thread, and what it starts, to a CPU; to the last one when there
// are fewer.
void KeepToCpu(int cpu);
void RaiseFileLimit();

// A folder that is gone with the object.
class ScratchFolder final {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Makes `to` the model directory `from`, but for a context of `max_context`
// tokens.
void CopyModelDir(const std::string& from, const std::string& to,
                  int max_context);

// "s17" is stream 17; -1 for what is none.
std::string StreamName(int stream);
int StreamOfName(const std::string& name);

// When which token of which stream was sent, and other times of a stream. In
// memory that child processes share. Any thread.
class TokenBoard final {
 public:
  static constexpr int kMaxStreams = 16384;

  TokenBoard();
  ~TokenBoard();
  TokenBoard(const TokenBoard&) = delete;
  TokenBoard& operator=(const TokenBoard&) = delete;

  void Sent(int stream, uint32_t index, int64_t ns);
  // 0 when too many were sent since.
  int64_t SentAt(int stream, uint32_t index) const;

  void Reserved(int stream, int64_t ns);
  int64_t ReservedAt(int stream) const;
  void Left(int stream, int64_t ns);
  int64_t LeftAt(int stream) const;
  void Cancelled(int stream, int64_t ns);
  int64_t CancelledAt(int stream) const;
  // As if it had never been.
  void Forget(int stream);

 private:
  static constexpr uint32_t kSlots = 512;
  struct Stream {
    std::atomic<int64_t> reserved, left, cancelled;
    std::atomic<uint32_t> num_sent;
  };
  struct Memory {
    // By index, then by stream: a step of many streams writes side by side.
    std::atomic<int64_t> sent[kSlots][kMaxStreams];
    Stream streams[kMaxStreams];
  };

  Memory* const memory_;
};

// Counts the tokens that come between Open and Close. Any thread.
class Window final {
 public:
  struct Counts {
    double seconds = 0;
    int64_t tokens = 0;
    // Messages that held them, and their bytes where those are known.
    int64_t events = 0;
    int64_t bytes = 0;
    // From the worker's send to here, of each token, in microseconds.
    std::vector<int32_t> micros;
    bool sorted = false;

    // In milliseconds. Sorts `micros`.
    double Quantile(double q);
  };

  explicit Window(const TokenBoard* board) : board_(board) {}

  void Open() ABSL_LOCKS_EXCLUDED(mu_);
  Counts Close() ABSL_LOCKS_EXCLUDED(mu_);

  // `count` tokens of a stream, the first of which has `index`, came at `now`.
  void Take(int stream, uint32_t index, int count, int64_t now)
      ABSL_LOCKS_EXCLUDED(mu_);
  void TakeBytes(int64_t bytes) { bytes_ += bytes; }

 private:
  const TokenBoard* const board_;
  std::atomic<bool> open_{false};
  std::atomic<int64_t> bytes_{0};
  absl::Mutex mu_;
  int64_t opened_at_ ABSL_GUARDED_BY(mu_) = 0;
  Counts counts_ ABSL_GUARDED_BY(mu_);
};

// CPU time that was used up to now, in seconds.
struct CpuTimes {
  double wall = 0;
  double process = 0;  // the one that was asked for
  double own = 0;      // this process
  double machine = 0;  // all processes
  int num_cpus = 1;
};
CpuTimes ReadCpuTimes(pid_t process);

// Between two readings, as shares of one CPU; `others` as a share of the whole
// machine: what disturbed the measurement.
struct CpuShares {
  double process = 0, own = 0, others = 0;
};
CpuShares Between(const CpuTimes& begin, const CpuTimes& end);

// Resident memory in bytes.
int64_t ResidentBytes(pid_t process);

double Median(std::vector<double> values);

}  // namespace baton::bench
