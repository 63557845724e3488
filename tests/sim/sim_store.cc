#include "tests/sim/sim_store.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "engine/kv_copy.h"

namespace baton::sim {

SimStore::SimStore(const engine::KvLayout& layout, absl::Span<std::byte> memory,
                   int32_t num_places, std::shared_ptr<SimDisk> disk,
                   Faults faults)
    : layout_(layout),
      memory_(memory),
      num_places_(num_places),
      disk_(std::move(disk)),
      faults_(std::move(faults)) {
  disk_->places.resize(static_cast<size_t>(num_places));
}

std::vector<worker::StoredBlock> SimStore::TakeStored() {
  std::vector<worker::StoredBlock> stored;
  for (const auto& block : disk_->places) {
    if (block.has_value() && !block->forgotten) stored.push_back(block->what);
  }
  std::sort(stored.begin(), stored.end(),
            [](const auto& a, const auto& b) { return a.stamp < b.stamp; });
  return stored;
}

void SimStore::Write(uint64_t job, std::vector<BlockId> blocks,
                     std::vector<worker::StoredBlock> stored) {
  CHECK_LT(writes_.size(), static_cast<size_t>(kMaxJobs));
  CHECK_EQ(blocks.size(), stored.size());
  Job write = {.job = job, .write = true, .stored = std::move(stored)};
  for (size_t i = 0; i < blocks.size(); ++i) {
    write.copies.push_back({blocks[i], write.stored[i].place});
  }
  writes_.push_back(std::move(write));
}

void SimStore::Read(uint64_t job, std::vector<Copy> copies) {
  CHECK_LT(reads_.size(), static_cast<size_t>(kMaxJobs));
  reads_.push_back({.job = job, .copies = std::move(copies)});
}

void SimStore::Forget() { writes_.push_back({.write = true}); }

std::vector<worker::KvStore::Done> SimStore::Poll() {
  return std::exchange(done_, {});
}

void SimStore::Pass() {
  while (!writes_.empty() && faults_.chance(faults_.goes_on)) {
    if (GoOn(&writes_.front())) writes_.pop_front();
  }
  // In any order.
  for (size_t i = 0; i < reads_.size();) {
    if (!faults_.chance(faults_.goes_on) || !GoOn(&reads_[i])) {
      ++i;
    } else {
      reads_.erase(reads_.begin() + static_cast<ptrdiff_t>(i));
    }
  }
}

bool SimStore::GoOn(Job* job) {
  if (job->job == 0) {
    for (auto& block : disk_->places) {
      if (block.has_value()) block->forgotten = true;
    }
    return true;
  }
  const auto finish = [&](size_t good, const char* error) {
    done_.push_back({job->job, static_cast<int32_t>(good), error});
    return true;
  };
  const Copy& copy = job->copies[job->next];
  std::optional<SimDisk::Block>& block = disk_->places[copy.place];
  if (job->write) {
    // Cleared before it is written: what a crash leaves in between.
    if (block.has_value()) {
      block.reset();
      return false;
    }
    if (faults_.chance(faults_.write_fails)) return finish(0, "the disk fails");
    block = {.what = job->stored[job->next], .bytes = BytesOf(copy.block)};
  } else {
    CHECK(block.has_value()) << "place " << copy.place << " was never written";
    if (faults_.chance(faults_.damage)) block->damaged = true;
    std::vector<std::byte> bytes = block->bytes;
    if (block->damaged) bytes[bytes.size() / 2] ^= std::byte{1};
    CopyTo(copy.block, bytes);
    if (block->damaged) return finish(job->next, "the sum differs");
  }
  if (++job->next < job->copies.size()) return false;
  return finish(job->next, "");
}

std::vector<std::byte> SimStore::BytesOf(BlockId block) const {
  std::vector<std::byte> bytes(static_cast<size_t>(layout_.block_bytes()));
  engine::HostKvCopy(layout_, memory_)
      .ToHost(absl::MakeConstSpan(&block, 1), absl::MakeSpan(bytes));
  return bytes;
}

void SimStore::CopyTo(BlockId block, const std::vector<std::byte>& bytes) {
  engine::HostKvCopy(layout_, memory_)
      .FromHost(bytes, absl::MakeConstSpan(&block, 1));
}

}  // namespace baton::sim
