#include "kv_transfer/checksum.h"

#include <xxhash.h>
#ifdef BATON_XXH_DISPATCH
// The same sums, with the widest instructions that this CPU has.
#include <xxh_x86dispatch.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "common/log.h"

namespace baton::kv_transfer {
namespace {

uint64_t Seed(uint32_t layer, uint32_t index) {
  return (uint64_t{layer} << 32) | index;
}

// Still in the nearest cache when it is hashed.
constexpr uint64_t kCopiedPieceBytes = uint64_t{16} << 10;

// A call, because compilers that see how small `n` is take a string
// instruction, which is far slower here.
[[gnu::noinline]] void CopyPiece(const std::byte* from, std::byte* to,
                                 size_t n) {
  std::memcpy(to, from, n);
}

}  // namespace

uint64_t PageChecksum(ByteSpan page, uint32_t layer, uint32_t index) {
  return XXH3_64bits_withSeed(page.data(), page.size(), Seed(layer, index));
}

struct PagesChecksum::State {
  State() : xxh(XXH3_createState()) { CHECK(xxh != nullptr); }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  XXH3_state_t* const xxh;
};

PagesChecksum::PagesChecksum(uint32_t layer, uint32_t first_page,
                             int64_t page_bytes)
    : layer_(layer),
      first_page_(first_page),
      page_bytes_(static_cast<uint64_t>(page_bytes)),
      index_(first_page) {
  CHECK_GT(page_bytes, 0);
}

PagesChecksum::~PagesChecksum() = default;

void PagesChecksum::Add(ByteSpan bytes) {
  while (!bytes.empty()) {
    if (page_filled_ == 0 && bytes.size() >= page_bytes_) {
      sum_ += PageChecksum(bytes.subspan(0, page_bytes_), layer_, index_++);
      bytes.remove_prefix(page_bytes_);
      continue;
    }
    if (state_ == nullptr) state_ = std::make_unique<State>();
    if (page_filled_ == 0) {
      XXH3_64bits_reset_withSeed(state_->xxh, Seed(layer_, index_));
    }
    const uint64_t n =
        std::min<uint64_t>(bytes.size(), page_bytes_ - page_filled_);
    XXH3_64bits_update(state_->xxh, bytes.data(), n);
    bytes.remove_prefix(n);
    page_filled_ += n;
    if (page_filled_ < page_bytes_) continue;
    sum_ += XXH3_64bits_digest(state_->xxh);
    page_filled_ = 0;
    ++index_;
  }
}

void PagesChecksum::AddHashed(PageHasher& hasher,
                              absl::Span<const ByteSpan> runs) {
  CHECK_EQ(page_filled_, 0u);
  const std::vector<uint64_t> hashes = hasher.HashPages(
      runs, static_cast<int64_t>(page_bytes_), Seed(layer_, index_));
  for (const uint64_t hash : hashes) sum_ += hash;
  index_ += static_cast<uint32_t>(hashes.size());
}

uint64_t PagesChecksum::sum() const {
  CHECK_EQ(page_filled_, 0u);
  return sum_;
}

void PagesChecksum::AddCopied(ByteSpan from, absl::Span<std::byte> to,
                              Stores stores) {
  CHECK_EQ(from.size(), to.size());
  const absl::Span<const HashedCopy> copies = HashedCopies();
  bool streamed = false;
  while (!from.empty()) {
    uint64_t n = page_bytes_ - page_filled_;
    if (n == page_bytes_ && n <= from.size() && !copies.empty() &&
        CanHashCopy(to.data(), n)) {
      sum_ += copies.front()(from.data(), to.data(), n, Seed(layer_, index_++),
                             stores);
      streamed |= stores == Stores::kStreaming;
    } else {
      n = std::min<uint64_t>({n, from.size(), kCopiedPieceBytes});
      CopyPiece(from.data(), to.data(), n);
      Add(to.first(n));
    }
    from.remove_prefix(n);
    to.remove_prefix(n);
  }
  if (streamed) FinishStreaming();
}

uint64_t RecordChecksum(const CommitRecord& record) {
  // No page has this seed: layers are fewer.
  constexpr uint64_t kSeed = ~uint64_t{0};
  const uint32_t words[] = {static_cast<uint32_t>(record.first_token),
                            record.next_token_index, record.num_tokens};
  uint8_t bytes[sizeof(words)];
  for (size_t i = 0; i < sizeof(bytes); ++i) {
    bytes[i] = static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4)));
  }
  return XXH3_64bits_withSeed(bytes, sizeof(bytes), kSeed);
}

}  // namespace baton::kv_transfer
