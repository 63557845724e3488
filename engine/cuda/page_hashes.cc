#include "engine/cuda/page_hashes.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/status_macros.h"

namespace baton::engine::cuda {
namespace {

constexpr int64_t kRunBytes = PageHashes::kMaxRuns * int64_t{sizeof(HashRun)};
constexpr int64_t kHashBytes = PageHashes::kMaxRuns * int64_t{sizeof(uint64_t)};
constexpr int64_t kFirstRunBytes =
    (PageHashes::kMaxRuns + 1) * int64_t{sizeof(int32_t)};

}  // namespace

absl::StatusOr<std::unique_ptr<PageHashes>> PageHashes::Create(int32_t device) {
  UseDevice(device);
  BATON_ASSIGN_OR_RETURN(
      PinnedBuffer lists,
      PinnedBuffer::Allocate(kRunBytes + kHashBytes + kFirstRunBytes,
                             "lists of KV pages to hash"));
  return std::unique_ptr<PageHashes>(new PageHashes(device, std::move(lists)));
}

PageHashes::PageHashes(int32_t device, PinnedBuffer lists)
    : device_(device),
      // Others wait for its few and short kernels.
      stream_(/*urgent=*/true),
      lists_(std::move(lists)),
      runs_(lists_.as<HashRun>()),
      first_run_(
          reinterpret_cast<int32_t*>(lists_.data() + kRunBytes + kHashBytes)),
      hashes_(reinterpret_cast<uint64_t*>(lists_.data() + kRunBytes)) {}

std::vector<uint64_t> PageHashes::Hash(
    absl::Span<const absl::Span<const std::byte>> runs, int64_t page_bytes,
    uint64_t first_seed) {
  CHECK(page_bytes >= kShortestHashedPage && page_bytes % kHashStripeBytes == 0)
      << page_bytes;
  std::vector<uint64_t> hashes;
  absl::MutexLock lock(&mu_);
  UseDevice(device_);
  int32_t listed_runs = 0;  // of whole pages, and of the one that is begun
  int32_t listed_pages = 0;
  int64_t filled = 0;  // of that one
  const auto hash_listed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    HashListed(listed_pages, page_bytes, first_seed + hashes.size(), &hashes);
    // What is begun comes first next time.
    const int32_t begun = first_run_[listed_pages];
    std::copy(runs_ + begun, runs_ + listed_runs, runs_);
    listed_runs -= begun;
    listed_pages = 0;
  };
  first_run_[0] = 0;
  for (absl::Span<const std::byte> run : runs) {
    CHECK(run.size() % kHashStripeBytes == 0) << run.size();
    while (!run.empty()) {
      if (listed_runs == kMaxRuns) {
        CHECK_GT(listed_pages, 0) << "a page has too many runs";
        hash_listed();
      }
      const int64_t n =
          std::min(static_cast<int64_t>(run.size()), page_bytes - filled);
      runs_[listed_runs++] = {run.data(), n};
      run.remove_prefix(n);
      filled += n;
      if (filled < page_bytes) continue;
      filled = 0;
      first_run_[++listed_pages] = listed_runs;
    }
  }
  CHECK_EQ(filled, 0) << "not whole pages";
  if (listed_pages > 0) hash_listed();
  return hashes;
}

void PageHashes::HashListed(int32_t pages, int64_t page_bytes,
                            uint64_t first_seed,
                            std::vector<uint64_t>* hashes) {
  PageHashArgs args;
  args.runs = runs_;
  args.first_run = first_run_;
  args.pages = pages;
  args.page_bytes = page_bytes;
  args.first_seed = first_seed;
  args.hashes = hashes_;
  RunPageHash(args, stream_.handle());
  stream_.Wait();
  hashes->insert(hashes->end(), hashes_, hashes_ + pages);
}

}  // namespace baton::engine::cuda
