#include "worker/kv_offload.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "scheduling/block_hash.h"

namespace baton::worker {
namespace {

using scheduling::CachedPrefix;
using scheduling::PooledBlocks;
using scheduling::PrefixCache;
using scheduling::PrefixText;
using scheduling::Sequence;

// Blocks that are read or written together, at most; and of all blocks.
constexpr int32_t kPieceBlocks = 16;
constexpr int32_t kPieceShare = 32;
// Of what computing takes, until a load is given up.
constexpr double kPatience = 2;
// What is left of what speaks against loading after one that did not begin for
// it: things may have changed.
constexpr double kDoubt = 0.95;

PrefixText TextOf(const Sequence& sequence, int32_t num_tokens) {
  return {.salt = sequence.cache_salt(),
          .tokens = absl::MakeConstSpan(sequence.tokens())
                        .first(static_cast<size_t>(num_tokens))};
}

}  // namespace

KvOffload::KvOffload(const Parts& parts, std::unique_ptr<KvStore> store)
    : stage_(parts.engine->kv_stage()),
      pool_(parts.pool),
      cache_(parts.cache),
      staged_(parts.staged),
      staged_share_(parts.staged_share),
      clock_(parts.clock),
      least_patience_(parts.least_patience),
      patience_at_first_(parts.patience_at_first),
      num_layers_(parts.engine->kv_layout().num_layers),
      block_size_(parts.engine->kv_layout().block_size),
      block_bytes_(parts.engine->kv_layout().block_bytes()),
      max_pending_(parts.pool->size()),
      store_(std::move(store)),
      places_(store_->num_places()),
      stored_({.block_size = block_size_}, &places_),
      stamps_(static_cast<size_t>(store_->num_places())) {
  CHECK_EQ(stage_ != nullptr, staged_ != nullptr);
  if (stage_ != nullptr) CHECK_GE(staged_share_, 1);
  Restore(store_->TakeStored());
}

KvOffload::~KvOffload() {
  store_.reset();  // it may still use blocks
}

void KvOffload::Restore(const std::vector<StoredBlock>& stored) {
  std::optional<PooledBlocks> all = places_.Allocate(places_.size());
  CHECK(all.has_value());
  std::vector<BlockId> restored;
  for (const StoredBlock& block : stored) {
    last_stamp_ = std::max(last_stamp_, block.stamp);
    const bool first = block.before == PrefixCache::kNoBlock;
    const auto in_range = [this](BlockId place) {
      return place >= 0 && place < places_.size();
    };
    if (!in_range(block.place) || stamps_[block.place] != 0) continue;
    if (block.tokens.size() != static_cast<size_t>(block_size_)) continue;
    // The one before it is there, and not another one in its place.
    if (!first && (!in_range(block.before) || block.before_stamp == 0 ||
                   stamps_[block.before] != block.before_stamp)) {
      continue;
    }
    if (!stored_.Restore(block.place, block.before, block.salt, block.tokens)) {
      continue;
    }
    stamps_[block.place] = block.stamp;
    restored.push_back(block.place);
  }
  // Given back oldest first, so that these are evicted first.
  std::reverse(restored.begin(), restored.end());
  PooledBlocks in_order = places_.Hold(std::move(restored));
  all->Release();
}

int32_t KvOffload::StoredTokens(const Sequence& sequence,
                                int32_t max_tokens) const {
  if (stored_.num_blocks() == 0) return 0;
  return stored_.CachedTokens(TextOf(sequence, max_tokens));
}

int32_t KvOffload::PieceBlocks() const {
  const int32_t most = std::clamp(pool_->size() / kPieceShare, 1, kPieceBlocks);
  if (stage_ == nullptr) return most;
  return std::clamp(staged_share_ / 4, 1, most);
}

double KvOffload::SecondsOf(int32_t num_blocks) const {
  if (read_bytes_ == 0) return 0;
  return static_cast<double>(num_blocks * block_bytes_) * read_seconds_ /
         read_bytes_;
}

bool KvOffload::Hangs() const {
  const absl::Time now = clock_->Now();
  return std::any_of(
      loadings_.begin(), loadings_.end(),
      [now](const Loading& loading) { return now >= loading.until; });
}

bool KvOffload::Load(Sequence* sequence, const scheduling::StepCost& cost,
                     int32_t chunk) {
  CHECK(!sequence->loading());
  const int32_t computed = sequence->computed();
  CHECK_EQ(computed % block_size_, 0);
  stats_.queried_tokens +=
      static_cast<uint64_t>(sequence->num_tokens() - computed);
  if (stored_.num_blocks() == 0 || Hangs()) return false;
  CachedPrefix note;
  PooledBlocks places =
      stored_.Hold(TextOf(*sequence, sequence->MaxCached()), &note);
  const int32_t first = computed / block_size_;
  const int32_t count = places.size() - first;
  if (count <= 0) return false;
  absl::Duration patience = patience_at_first_;
  if (cost.known()) {
    const double compute =
        cost.PrefillSeconds(computed, int64_t{count} * block_size_, chunk);
    if (SecondsOf(count) > compute) {
      ++stats_.loads_skipped;
      read_seconds_ *= kDoubt;
      return false;
    }
    patience = std::max(least_patience_, absl::Seconds(kPatience * compute));
  }
  const absl::Time now = clock_->Now();
  Loading& loading = loadings_.emplace_back();
  loading.sequence = sequence;
  loading.blocks =
      pool_->Hold({sequence->blocks().ids().begin() + first,
                   sequence->blocks().ids().begin() + first + count});
  loading.places = std::move(places);
  loading.first = first;
  loading.count = loading.good = count;
  loading.began = now;
  loading.until = now + patience;
  sequence->SetLoading(true);
  IssueLoads();
  return true;
}

void KvOffload::StopLoading(Sequence* sequence) {
  if (!sequence->loading()) return;
  sequence->SetLoading(false);
  for (Loading& loading : loadings_) {
    if (loading.sequence == sequence) loading.sequence = nullptr;
  }
  EndLoadings();
}

void KvOffload::Save(const Sequence& sequence) {
  if (sequence.prefix().kept_out) return;
  const int32_t full = sequence.computed() / block_size_;
  if (full == 0) return;
  if (sequence.cache_salt().size() > KvStore::kMaxSalt) return;
  const PrefixText text = TextOf(sequence, full * block_size_);
  Saving saving;
  // What is there is as if it had been stored now.
  saving.places = stored_.Hold(text, &saving.at);
  const int32_t first = saving.at.num_blocks;
  Hash128 hash = saving.at.hash;
  for (int32_t i = first; i < full; ++i) {
    hash = scheduling::ChainedHash(
        hash, text.tokens.subspan(static_cast<size_t>(i) * block_size_,
                                  static_cast<size_t>(block_size_)));
    if (pending_.contains(hash)) break;  // another one stores it
    saving.names.push_back(hash);
  }
  const auto room = static_cast<size_t>(max_pending_ - num_pending_);
  if (saving.names.size() > room) {
    stats_.dropped_backlog += saving.names.size() - room;
    saving.names.resize(room);
  }
  const auto count = static_cast<int32_t>(saving.names.size());
  if (count == 0) return;
  const auto tokens = text.tokens.first(static_cast<size_t>(first + count) *
                                        static_cast<size_t>(block_size_));
  saving.text = {std::string(text.salt), {tokens.begin(), tokens.end()}};
  saving.before = stored_.EndOf(saving.at);
  if (saving.before != PrefixCache::kNoBlock) {
    saving.before_stamp = stamps_[saving.before];
  }
  // What the cache has not got now it will not get any more.
  if (cache_->HoldNext(saving.text.view(), first, &saving.cached).size() <
      first) {
    stats_.dropped_backlog += saving.names.size();
    return;
  }
  saving.issued = first;
  saving.end = first + count;
  pending_.insert(saving.names.begin(), saving.names.end());
  num_pending_ += count;
  savings_.push_back(std::move(saving));
  IssueSaves();
}

void KvOffload::Poll() {
  for (const KvStore::Done& done : store_->Poll()) OnStoreDone(done);
  for (size_t i = copying_.size(); i > 0; --i) {
    const uint64_t id = copying_.front();
    copying_.pop_front();
    if (stage_->Done(pieces_.at(id)->ticket)) {
      OnCopied(id);
    } else {
      copying_.push_back(id);
    }
  }
  CheckTime();
  EndLoadings();
  EndSavings();
  IssueLoads();
  IssueSaves();
}

void KvOffload::Clear() {
  for (Saving& saving : savings_) {
    saving.failed = true;
    Drop(&saving, &stats_.dropped_error);
  }
  // What is on its way in is not to be trusted either.
  for (Loading& loading : loadings_) loading.good = 0;
  stored_.Clear();
  store_->Forget();
}

void KvOffload::Flush(absl::Time until) {
  for (Poll(); !savings_.empty() && clock_->Now() < until; Poll()) {
    store_->Await(absl::Milliseconds(5));
  }
}

std::vector<absl::Span<const BlockId>> KvOffload::Filling() const {
  std::vector<absl::Span<const BlockId>> filling;
  for (const Loading& loading : loadings_) {
    filling.push_back(loading.blocks.ids());
  }
  return filling;
}

std::vector<absl::Span<const BlockId>> KvOffload::Draining() const {
  std::vector<absl::Span<const BlockId>> draining;
  for (const auto& [id, piece] : pieces_) {
    if (piece->saving != nullptr) draining.push_back(piece->blocks.ids());
  }
  return draining;
}

std::vector<absl::Span<const BlockId>> KvOffload::Staged() const {
  std::vector<absl::Span<const BlockId>> staged;
  for (const auto& [id, piece] : pieces_) staged.push_back(piece->staged.ids());
  return staged;
}

void KvOffload::CheckInvariants() const {
  places_.CheckInvariants();
  stored_.CheckInvariants();
  int32_t pending = 0;
  for (const Saving& saving : savings_) {
    pending += saving.end - saving.issued;
  }
  for (const absl::Span<const BlockId> blocks : Draining()) {
    pending += static_cast<int32_t>(blocks.size());
    for (const BlockId block : blocks) CHECK_GE(pool_->references(block), 1);
  }
  CHECK_EQ(pending, num_pending_);
  CHECK_LE(num_pending_, max_pending_);
  for (const Loading& loading : loadings_) {
    CHECK_EQ(loading.blocks.size(), loading.count);
    for (const BlockId block : loading.blocks.ids()) {
      CHECK_GE(pool_->references(block), loading.sequence != nullptr ? 2 : 1);
    }
    if (loading.sequence != nullptr) CHECK(loading.sequence->loading());
  }
  for (const auto& [id, piece] : pieces_) {
    if (piece->saving == nullptr) continue;
    for (const BlockId place : piece->places.ids()) {
      CHECK_GE(places_.references(place), 1);
      CHECK(!places_.is_kept(place));
    }
  }
}

}  // namespace baton::worker
