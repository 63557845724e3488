// Memory of a device, as far as a hand-off can tell: addresses that the CPU
// cannot read or write (whoever does ends with SIGSEGV), who hashes pages
// there, and what stands behind them for those who play the device.
#pragma once

#include <sys/mman.h>
#include <xxhash.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/log.h"
#include "kv_transfer/handoff.h"
#include "kv_transfer/link_probe.h"
#include "kv_transfer/page_hasher.h"

namespace baton::kv_transfer {

class DeviceMemory final : public PageHasher {
 public:
  // Stands for `behind`, which outlives it, and for spare memory beside it.
  explicit DeviceMemory(absl::Span<std::byte> behind)
      : behind_(behind), spare_(LinkProbe::kMaxPayloadBytes) {
    void* const at = mmap(nullptr, behind.size() + spare_.size(), PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    device_ = static_cast<std::byte*>(at);
  }
  ~DeviceMemory() override { munmap(device_, behind_.size() + spare_.size()); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // `kv`, there.
  KvGeometry Place(KvGeometry kv) {
    CHECK_EQ(kv.memory.data(), behind_.data());
    kv.memory = {device_, behind_.size()};
    kv.descriptor = -1;
    kv.spare = {device_ + behind_.size(), spare_.size()};
    kv.hasher = this;
    return kv;
  }

  // What stands behind an address; null: it is not of this memory.
  std::byte* Behind(const std::byte* at) {
    if (at < device_ || at >= device_ + behind_.size() + spare_.size()) {
      return nullptr;
    }
    const auto offset = static_cast<size_t>(at - device_);
    return offset < behind_.size() ? behind_.data() + offset
                                   : spare_.data() + (offset - behind_.size());
  }

  int hashed() const { return hashed_; }

  std::vector<uint64_t> HashPages(absl::Span<const ByteSpan> runs,
                                  int64_t page_bytes,
                                  uint64_t first_seed) override {
    CHECK(page_bytes >= kShortestPage && page_bytes % kStripeBytes == 0);
    std::vector<std::byte> bytes;
    for (const ByteSpan run : runs) {
      CHECK(!run.empty() && run.size() % kStripeBytes == 0);
      const std::byte* const from = Behind(run.data());
      CHECK(from != nullptr && Behind(&run.back()) == from + run.size() - 1);
      bytes.insert(bytes.end(), from, from + run.size());
    }
    CHECK(bytes.size() % page_bytes == 0);
    std::vector<uint64_t> hashes;
    for (size_t at = 0; at < bytes.size(); at += page_bytes) {
      hashes.push_back(XXH3_64bits_withSeed(bytes.data() + at, page_bytes,
                                            first_seed + hashes.size()));
    }
    hashed_ += static_cast<int>(hashes.size());
    return hashes;
  }

 private:
  const absl::Span<std::byte> behind_;
  std::vector<std::byte> spare_;
  std::byte* device_ = nullptr;
  std::atomic<int> hashed_ = 0;
};

}  // namespace baton::kv_transfer
