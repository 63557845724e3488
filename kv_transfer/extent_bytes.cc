#include "kv_transfer/extent_bytes.h"

#include <algorithm>
#include <cstring>

#include "common/log.h"

namespace baton::kv_transfer {
namespace {

// Calls visit(offset in memory, length, offset in the run) for what the run's
// bytes [from, from + count) are made of.
template <typename Visit>
void ForBytes(absl::Span<const Extent> extents, uint64_t from, uint64_t count,
              const Visit& visit) {
  uint64_t begin = 0;  // of the extent, in the run
  uint64_t done = 0;
  for (const Extent& extent : extents) {
    if (done == count) break;
    const uint64_t at = from + done;
    if (at < begin + extent.length) {
      const uint64_t skip = at - begin;
      const uint64_t n = std::min(extent.length - skip, count - done);
      visit(extent.offset + skip, n, done);
      done += n;
    }
    begin += extent.length;
  }
  CHECK_EQ(done, count);
}

}  // namespace

void AddExtents(const KvGeometry& kv, absl::Span<const Extent> extents,
                PagesChecksum* checksum) {
  std::vector<ByteSpan> runs;
  for (const Extent& extent : extents) {
    const ByteSpan run = kv.memory.subspan(extent.offset, extent.length);
    if (kv.hasher == nullptr) {
      checksum->Add(run);
    } else {
      runs.push_back(run);
    }
  }
  if (!runs.empty()) checksum->AddHashed(*kv.hasher, runs);
}

void ReadExtents(absl::Span<const std::byte> memory,
                 absl::Span<const Extent> extents, uint64_t from,
                 absl::Span<std::byte> out) {
  ForBytes(extents, from, out.size(), [&](uint64_t at, uint64_t n, uint64_t i) {
    std::memcpy(out.data() + i, memory.data() + at, n);
  });
}

void WriteExtents(absl::Span<std::byte> memory,
                  absl::Span<const Extent> extents, uint64_t from,
                  ByteSpan in) {
  ForBytes(extents, from, in.size(), [&](uint64_t at, uint64_t n, uint64_t i) {
    std::memcpy(memory.data() + at, in.data() + i, n);
  });
}

std::vector<Extent> FirstBytes(absl::Span<const Extent> extents,
                               uint64_t bytes) {
  std::vector<Extent> first;
  for (const Extent& extent : extents) {
    if (bytes == 0) break;
    first.push_back(extent);
    first.back().length = std::min(bytes, extent.length);
    bytes -= first.back().length;
  }
  CHECK_EQ(bytes, 0u);
  return first;
}

}  // namespace baton::kv_transfer
