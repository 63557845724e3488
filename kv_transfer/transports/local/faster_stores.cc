#include "kv_transfer/transports/local/faster_stores.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/clock.h"

namespace baton::kv_transfer {
namespace {

// More than the caches that belong to one core hold, in pieces like pages.
constexpr size_t kTrialBytes = size_t{4} << 20;
constexpr size_t kTrialPieceBytes = size_t{16} << 10;
constexpr int kTrials = 4;
constexpr double kMuch = 1.2;

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<std::byte, Free>;

Buffer Allocate(int fill) {
  Buffer buffer(static_cast<std::byte*>(
      std::aligned_alloc(kTrialPieceBytes, kTrialBytes)));
  if (buffer != nullptr) std::memset(buffer.get(), fill, kTrialBytes);
  return buffer;
}

// To memory that is in no cache, as blocks are that were free for a while.
absl::Duration Time(HashedCopy copy, const std::byte* from, std::byte* to,
                    Stores stores) {
  ThrowOutOfCaches(absl::MakeConstSpan(to, kTrialBytes));
  const absl::Time start = Clock::Monotonic()->Now();
  for (size_t at = 0; at < kTrialBytes; at += kTrialPieceBytes) {
    copy(from + at, to + at, kTrialPieceBytes, at, stores);
  }
  FinishStreaming();
  return Clock::Monotonic()->Now() - start;
}

Stores Measure() {
  if (HashedCopies().empty()) return Stores::kCached;
  const HashedCopy copy = HashedCopies().front();
  const Buffer from = Allocate(1);
  const Buffer to = Allocate(2);
  if (from == nullptr || to == nullptr) return Stores::kCached;
  // The best of each: whatever disturbs makes it slower.
  absl::Duration cached = absl::InfiniteDuration();
  absl::Duration streaming = absl::InfiniteDuration();
  for (int i = 0; i < kTrials; ++i) {
    cached =
        std::min(cached, Time(copy, from.get(), to.get(), Stores::kCached));
    streaming = std::min(streaming,
                         Time(copy, from.get(), to.get(), Stores::kStreaming));
  }
  return cached > kMuch * streaming ? Stores::kStreaming : Stores::kCached;
}

}  // namespace

Stores FasterStores() {
  static const Stores stores = Measure();
  return stores;
}

}  // namespace baton::kv_transfer
