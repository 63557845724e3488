#include "engine/cpu/thread_team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "common/log.h"
#include "common/process/cpu_quota.h"

namespace baton::engine::cpu {
namespace {

// How long a thread spins before it sleeps. The loops of one forward pass
// follow each other within this time; waiting longer would take CPU from the
// network threads of the process.
constexpr std::chrono::microseconds kSpinTime(15);

constexpr uint32_t kClosed = 0xffffffffu;

uint64_t MakeTicket(uint64_t loop, uint32_t item) { return loop << 32 | item; }

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spins for a while until `done`; returns whether it is.
template <typename Done>
bool SpinUntil(Done done) {
  if (done()) return true;
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 16; ++i) {
      Pause();
      if (done()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

// The CPUs that the process may use; empty when the system does not say.
std::vector<int32_t> CpusOfProcess() {
  std::vector<int32_t> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

int32_t TeamSize(int32_t num_threads) {
  CHECK_GE(num_threads, 0);
  if (num_threads > 0) return num_threads;
  int32_t cpus = static_cast<int32_t>(CpusOfProcess().size());
  if (cpus == 0) {
    cpus =
        std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
  }
  return process::ThreadsWithin(process::CpuQuota(), cpus);
}

std::vector<int32_t> TeamCpus(int32_t num_threads, bool pin) {
  if (!pin) return {};
  std::vector<int32_t> cpus = CpusOfProcess();
  if (static_cast<int32_t>(cpus.size()) < num_threads) return {};
  cpus.resize(num_threads);
  return cpus;
}

void Pin(pthread_t thread, int32_t cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  const int error = pthread_setaffinity_np(thread, sizeof(set), &set);
  if (error != 0) {
    LOG(WARNING) << "a thread cannot be pinned to CPU " << cpu << ": "
                 << strerror(error);
  }
}

}  // namespace

ThreadTeam::ThreadTeam(int32_t num_threads, bool pin)
    : num_threads_(TeamSize(num_threads)),
      cpus_(TeamCpus(num_threads_, pin)),
      ticket_(MakeTicket(0, kClosed)) {
  for (int32_t i = 1; i < num_threads_; ++i) {
    threads_.emplace_back([this, i] { RunThread(i); });
    const pthread_t thread = threads_.back().native_handle();
    pthread_setname_np(thread, ("baton-cpu-" + std::to_string(i)).c_str());
    if (!cpus_.empty()) Pin(thread, cpus_[i]);
  }
}

ThreadTeam::~ThreadTeam() {
  stop_.store(true);
  wake_count_.fetch_add(1);
  wake_count_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadTeam::PinCaller() {
  if (cpus_.empty() || caller_pinned_) return;
  Pin(pthread_self(), cpus_[0]);
  caller_pinned_ = true;
}

void ThreadTeam::ParallelFor(int64_t num_items, Body body) {
  CHECK(num_items >= 0 && num_items < (int64_t{1} << 31)) << num_items;
  if (num_threads_ == 1 || num_items <= 1) {
    for (int64_t item = 0; item < num_items; ++item) body(item, /*thread=*/0);
    return;
  }
  const uint64_t loop = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(MakeTicket(loop, kClosed), std::memory_order_relaxed);
  // Release: who reads one of these three values also sees the loop closed.
  body_.store(&body, std::memory_order_release);
  num_items_.store(static_cast<uint32_t>(num_items), std::memory_order_release);
  items_done_.store(0, std::memory_order_release);
  ticket_.store(MakeTicket(loop, 0), std::memory_order_release);
  wake_count_.fetch_add(1, std::memory_order_seq_cst);
  wake_count_.notify_all();

  TakeItems(/*thread=*/0);
  const auto done = [&] {
    return items_done_.load(std::memory_order_acquire) == num_items;
  };
  if (!SpinUntil(done)) {
    while (!done()) {
      const uint32_t seen = items_done_.load(std::memory_order_acquire);
      if (seen != num_items) items_done_.wait(seen);
    }
  }
}

void ThreadTeam::TakeItems(int32_t thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    const uint32_t item = static_cast<uint32_t>(ticket);
    if (item == kClosed) return;
    const Body* const body = body_.load(std::memory_order_acquire);
    const uint32_t num_items = num_items_.load(std::memory_order_acquire);
    if (item >= num_items) return;
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1,
                                       std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    (*body)(item, thread);
    if (items_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_items) {
      items_done_.notify_one();
    }
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadTeam::RunThread(int32_t thread) {
  uint32_t seen = 0;
  while (true) {
    const auto woken = [&] {
      return wake_count_.load(std::memory_order_acquire) != seen;
    };
    if (!SpinUntil(woken)) wake_count_.wait(seen);
    seen = wake_count_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_acquire)) return;
    TakeItems(thread);
  }
}

}  // namespace baton::engine::cpu
