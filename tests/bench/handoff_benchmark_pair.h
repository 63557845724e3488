// The decode worker's side of handoff_benchmark: a receiver in this process, a
// sender in another one, what they do, and how fast the machine moves the same
// bytes without them. Each function has the sender write its pages anew first,
// and brings those here into the caches or out of them; all return seconds. One
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/scoped_fd.h"
#include "common/shared_memory.h"
#include "engine/cpu/memory_arena.h"
#include "kv_transfer/handoff_receiver.h"
#include "kv_transfer/transport.h"
#include "tests/bench/handoff_benchmark_sender.h"
#include "tests/bench/handoff_benchmark_setup.h"

namespace baton::kv_transfer {

class Pair final {
 public:
  // `warm`: what is written to was read right before; otherwise it is in no
  // cache.
  Pair(const std::string& kind, const Plan& plan, bool warm);

  int64_t BytesOf(int32_t n) const { return plan_.BytesOf(n); }

  // One hand-off of n blocks, by the sender's clock.
  double Transfer(int32_t n);

  // Of n blocks each, `count` hand-offs, two of them under way: the next one is
  // granted when one has landed, as under load. Of the plan's blocks, two times
  // n. Seconds for each of them.
  double InARow(int32_t n, int count);

  // The same bytes from the sender's memory to ours, by memcpy, and by stores
  // that leave the caches alone; in runs as long as there are on both sides.
  struct Copied {
    // By the sender's clock: a byte says that there is something to copy, and
    // one comes back when it is done.
    double between_processes = 0;
    // By ours: nothing but the copy.
    double alone = 0;
  };
  Copied Copy(int32_t n);
  Copied StreamingCopy(int32_t n);
  // The same bytes through a TCP connection, 1 MB at a time.
  double TcpStream(int32_t n);
  // The same `count` times, with the pages and in the state of the caches that
  // InARow has: the first n blocks and the next ones in turn, of a stream the
  // first n. Seconds for each.
  double CopyInARow(int32_t n, int count);
  double StreamingCopyInARow(int32_t n, int count);
  double TcpInARow(int32_t n, int count);
  // Hashing what just landed, once, on one thread. Nothing is written anew.
  double Hash(int32_t n);

 private:
  // From the `first`th block on, when the sender says that there is something.
  template <typename CopyRun>
  Copied CopyOnce(int32_t first, int32_t n, CopyRun copy_run);
  template <typename CopyRun>
  double CopiesInARow(int32_t n, int count, CopyRun copy_run);
  double TcpOnce(int32_t n);
  void Write(int32_t n);
  // For the next hand-off, from the `first`th of our blocks on.
  void Open(int32_t first, int32_t n);

  const Plan plan_;
  const bool warm_;
  const std::vector<BlockId> blocks_;
  engine::cpu::MemoryArena arena_;
  KvGeometry kv_;
  Bell bell_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<HandoffReceiver> receiver_;
  std::unique_ptr<SenderProcess> sender_;
  ScopedFd stream_;
  std::unique_ptr<SharedMemoryView> view_;
  uint64_t last_transfer_ = 0;
  uint64_t writes_ = 0;
  volatile uint64_t sink_ = 0;
};

}  // namespace baton::kv_transfer
