// The checksum of a transfer: the sum, modulo 2^64, of XXH3-64 of each page,
// seeded with where the page belongs, and of the commit record. Pages may come
// in any order, and a page in the wrong place changes the sum. Guards against
// broken hardware and our own bugs, not against an attacker. Any thread.
#pragma once

#include <cstdint>
#include <memory>

#include "kv_transfer/handoff.h"
#include "kv_transfer/hashed_copy.h"
#include "kv_transfer/page_hasher.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

// What one wire page adds to the sum, as it goes over the wire. `index` counts
// the transfer's wire pages of that layer.
uint64_t PageChecksum(ByteSpan page, uint32_t layer, uint32_t index);

// The sum over a run of pages whose bytes come in pieces, in order. One thread.
class PagesChecksum final {
 public:
  // REQUIRES: page_bytes > 0.
  PagesChecksum(uint32_t layer, uint32_t first_page, int64_t page_bytes);
  ~PagesChecksum();
  PagesChecksum(const PagesChecksum&) = delete;
  PagesChecksum& operator=(const PagesChecksum&) = delete;

  void Add(ByteSpan bytes);
  // Copies `from` to `to` and adds it, in one pass where that can be; each byte
  // is read once, and what is added is what is stored. REQUIRES: no overlap.
  void AddCopied(ByteSpan from, absl::Span<std::byte> to, Stores stores);
  // Whole pages that the CPU does not read. REQUIRES: as PageHasher.
  void AddHashed(PageHasher& hasher, absl::Span<const ByteSpan> runs);
  // Whether any bytes came.
  bool begun() const { return index_ != first_page_ || page_filled_ != 0; }
  // REQUIRES: whole pages came.
  uint64_t sum() const;

 private:
  struct State;

  const uint32_t layer_;
  const uint32_t first_page_;
  const uint64_t page_bytes_;
  uint32_t index_;  // of the page that is being filled
  uint64_t page_filled_ = 0;
  std::unique_ptr<State> state_;  // once a page comes in pieces
  uint64_t sum_ = 0;
};

// What the commit record adds to the sum.
uint64_t RecordChecksum(const CommitRecord& record);

}  // namespace baton::kv_transfer
