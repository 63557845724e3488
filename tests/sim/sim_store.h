// A store of KV blocks (worker/kv_store.h) whose jobs go on when the dice say
// so, and which goes wrong now and then: writes that fail, blocks that are not
// what was written. What is on its disk outlives a life of its worker, as far
// as it was written.
//
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "engine/kv_layout.h"
#include "worker/kv_store.h"

namespace baton::sim {

struct SimDisk {
  struct Block {
    worker::StoredBlock what;
    std::vector<std::byte> bytes;
    bool damaged = false;
    bool forgotten = false;
  };
  std::vector<std::optional<Block>> places;
};

class SimStore final : public worker::KvStore {
 public:
  struct Faults {
    // Whether something that may happen does, with that probability.
    std::function<bool(double)> chance;
    // Of each block that is written or read; of a job that makes a step.
    double write_fails = 0;
    double damage = 0;
    double goes_on = 1;
  };

  // The memory, of `layout`, outlives the store.
  SimStore(const engine::KvLayout& layout, absl::Span<std::byte> memory,
           int32_t num_places, std::shared_ptr<SimDisk> disk, Faults faults);

  int32_t num_places() const override { return num_places_; }
  std::vector<worker::StoredBlock> TakeStored() override;
  void Write(uint64_t job, std::vector<BlockId> blocks,
             std::vector<worker::StoredBlock> stored) override;
  void Read(uint64_t job, std::vector<Copy> copies) override;
  std::vector<Done> Poll() override;
  // Time passes by itself.
  void Await(absl::Duration) override { Pass(); }
  void Forget() override;

  // Time passes.
  void Pass();
  // All is stored, and nothing waits. What was stored may still be damaged:
  // that keeps nobody from an end.
  void BeWell() {
    faults_.write_fails = 0;
    faults_.goes_on = 1;
  }

 private:
  struct Job {
    uint64_t job = 0;  // 0: Forget
    bool write = false;
    std::vector<Copy> copies;
    std::vector<worker::StoredBlock> stored;  // of a write
    size_t next = 0;
  };

  // One block of the job; true: it is done.
  bool GoOn(Job* job);
  std::vector<std::byte> BytesOf(BlockId block) const;
  void CopyTo(BlockId block, const std::vector<std::byte>& bytes);

  const engine::KvLayout layout_;
  const absl::Span<std::byte> memory_;
  const int32_t num_places_;
  const std::shared_ptr<SimDisk> disk_;
  Faults faults_;
  std::deque<Job> writes_;
  std::deque<Job> reads_;
  std::vector<Done> done_;
};

}  // namespace baton::sim
