#include "decode_worker/swap_store.h"

#include <utility>

#include "absl/time/time.h"
#include "common/log.h"

namespace baton::decode_worker {
namespace {

// What a copy still weighs after the next one.
constexpr double kForgetting = 0.9;

}  // namespace

SwappedKv::SwappedKv(SwapStore* store, int32_t num_blocks)
    : store_(store),
      num_blocks_(num_blocks),
      bytes_(std::make_unique_for_overwrite<std::byte[]>(
          static_cast<size_t>(store->BytesOf(num_blocks)))) {
  store_->bytes_ += store_->BytesOf(num_blocks_);
  ++store_->num_sequences_;
}

SwappedKv::SwappedKv(SwappedKv&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)),
      num_blocks_(other.num_blocks_),
      bytes_(std::move(other.bytes_)) {}

SwappedKv::~SwappedKv() {
  if (store_ == nullptr) return;
  store_->bytes_ -= store_->BytesOf(num_blocks_);
  --store_->num_sequences_;
}

absl::Span<std::byte> SwappedKv::bytes() const {
  return {bytes_.get(), static_cast<size_t>(store_->BytesOf(num_blocks_))};
}

SwapStore::SwapStore(int64_t capacity_bytes, const engine::KvLayout& layout,
                     engine::KvCopy* copy, const Clock* clock)
    : capacity_(capacity_bytes), layout_(layout), copy_(copy), clock_(clock) {
  CHECK_GE(capacity_, 0);
}

SwapStore::~SwapStore() { CHECK_EQ(num_sequences_, 0); }

int64_t SwapStore::BytesOf(int32_t num_blocks) const {
  return num_blocks * layout_.block_bytes();
}

SwappedKv SwapStore::Save(absl::Span<const BlockId> blocks) {
  const auto num_blocks = static_cast<int32_t>(blocks.size());
  CHECK_LE(BytesOf(num_blocks), room());
  const absl::Time start = clock_->Now();
  SwappedKv kv(this, num_blocks);
  copy_->ToHost(blocks, kv.bytes());
  Measured(static_cast<double>(BytesOf(num_blocks)),
           absl::ToDoubleSeconds(clock_->Now() - start));
  return kv;
}

void SwapStore::Restore(const SwappedKv& kv, absl::Span<const BlockId> blocks) {
  const absl::Time start = clock_->Now();
  copy_->FromHost(kv.bytes(), blocks);
  Measured(static_cast<double>(BytesOf(kv.num_blocks())),
           absl::ToDoubleSeconds(clock_->Now() - start));
}

void SwapStore::Measured(double bytes, double seconds) {
  copied_bytes_ = kForgetting * copied_bytes_ + bytes;
  copied_seconds_ = kForgetting * copied_seconds_ + seconds;
  last_seconds_ = seconds;
}

double SwapStore::bytes_per_second() const {
  return copied_seconds_ > 0 ? copied_bytes_ / copied_seconds_ : 0;
}

}  // namespace baton::decode_worker
