#include "scheduling/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace baton::scheduling {
namespace {

// Of the sequence's first so many tokens.
PrefixText TextOf(const Sequence& sequence, int32_t num_tokens) {
  CHECK_LE(num_tokens, sequence.num_tokens());
  return {.salt = sequence.cache_salt(),
          .tokens = absl::MakeConstSpan(sequence.tokens())
                        .first(static_cast<size_t>(num_tokens))};
}

}  // namespace

PrefixCache::PrefixCache(const PrefixCacheOptions& options, BlockPool* pool)
    : options_(options), pool_(pool) {
  CHECK_GE(options_.block_size, 1);
  if (!options_.enabled) return;
  const auto num_blocks = static_cast<size_t>(pool->size());
  entries_.resize(num_blocks);
  tokens_.resize(num_blocks * static_cast<size_t>(options_.block_size));
  pool_->SetKeeper(this);
}

PrefixCache::~PrefixCache() {
  if (!options_.enabled) return;
  Clear();
  pool_->SetKeeper(nullptr);
}

std::vector<BlockId> PrefixCache::FindPrefix(const PrefixText& text,
                                             Hash128* hash) const {
  const int32_t most =
      options_.enabled
          ? static_cast<int32_t>(text.tokens.size()) / options_.block_size
          : 0;
  std::vector<BlockId> blocks;
  BlockId at = kNoBlock;
  *hash = options_.chain_start(text.salt);
  for (int32_t i = 0; i < most; ++i) {
    const absl::Span<const TokenId> tokens = TokensOf(text, i);
    const Hash128 next = ChainedHash(*hash, tokens);
    const BlockId found = Find(next, at, text.salt, tokens);
    if (found == kNoBlock) break;
    blocks.push_back(found);
    at = found;
    *hash = next;
  }
  return blocks;
}

CachedPrefix PrefixCache::NoteOf(absl::Span<const BlockId> blocks,
                                 const Hash128& hash) const {
  const auto count = static_cast<int32_t>(blocks.size());
  return {.matched_tokens = count * options_.block_size,
          .num_blocks = count,
          .hash = hash,
          .entry = count == 0 ? 0 : entries_[blocks.back()].number};
}

int32_t PrefixCache::CachedTokens(const Sequence& sequence,
                                  int32_t max_tokens) const {
  return CachedTokens(TextOf(sequence, max_tokens));
}

int32_t PrefixCache::CachedTokens(const PrefixText& text) const {
  Hash128 hash;
  return static_cast<int32_t>(FindPrefix(text, &hash).size()) *
         options_.block_size;
}

PooledBlocks PrefixCache::Match(Sequence* sequence, int32_t max_tokens) {
  CHECK_EQ(sequence->blocks().size(), 0);
  return Hold(TextOf(*sequence, max_tokens), &sequence->prefix());
}

PooledBlocks PrefixCache::Hold(const PrefixText& text, CachedPrefix* prefix) {
  Hash128 hash;
  std::vector<BlockId> blocks = FindPrefix(text, &hash);
  *prefix = NoteOf(blocks, hash);
  return pool_->Hold(std::move(blocks));
}

PooledBlocks PrefixCache::HoldNext(const PrefixText& text, int32_t count,
                                   CachedPrefix* prefix) {
  std::vector<BlockId> blocks;
  BlockId at = kNoBlock;
  Hash128 hash = options_.chain_start(text.salt);
  if (!options_.enabled || !FindEnd(*prefix, &at, &hash)) count = 0;
  const int32_t most =
      static_cast<int32_t>(text.tokens.size()) / options_.block_size -
      prefix->num_blocks;
  for (count = std::min(count, most); count > 0; --count) {
    const absl::Span<const TokenId> tokens = TokensOf(text, prefix->num_blocks);
    const Hash128 next = ChainedHash(hash, tokens);
    const BlockId found = Find(next, at, text.salt, tokens);
    if (found == kNoBlock) break;
    blocks.push_back(found);
    at = found;
    hash = next;
    prefix->hash = hash;
    prefix->entry = entries_[at].number;
    prefix->matched_tokens += options_.block_size;
    ++prefix->num_blocks;
  }
  return pool_->Hold(std::move(blocks));
}

void PrefixCache::Insert(Sequence* sequence) {
  if (!options_.enabled) return;
  CachedPrefix& prefix = sequence->prefix();
  if (prefix.kept_out) return;
  const int32_t full = sequence->computed() / options_.block_size;
  if (prefix.num_blocks >= full) return;
  Extend(TextOf(*sequence, sequence->computed()),
         sequence->blocks().ids().subspan(prefix.num_blocks,
                                          full - prefix.num_blocks),
         &prefix);
}

void PrefixCache::Extend(const PrefixText& text,
                         absl::Span<const BlockId> blocks,
                         CachedPrefix* prefix) {
  if (!options_.enabled) return;
  BlockId at = kNoBlock;
  Hash128 hash = options_.chain_start(text.salt);
  // Without the entry before, the rest would never be found.
  if (!FindEnd(*prefix, &at, &hash)) return;
  for (const BlockId block : blocks) {
    const absl::Span<const TokenId> tokens = TokensOf(text, prefix->num_blocks);
    hash = ChainedHash(hash, tokens);
    BlockId next = Find(hash, at, text.salt, tokens);
    if (next == kNoBlock) {
      if (index_.contains(hash)) return;  // of other tokens, or another salt
      next = block;
      Add(next, hash, at, text.salt, tokens);
    }
    at = next;
    ++prefix->num_blocks;
    prefix->hash = hash;
    prefix->entry = entries_[at].number;
  }
}

BlockId PrefixCache::EndOf(const CachedPrefix& prefix) const {
  BlockId at = kNoBlock;
  Hash128 hash;
  return FindEnd(prefix, &at, &hash) ? at : kNoBlock;
}

bool PrefixCache::Restore(BlockId block, BlockId before, absl::string_view salt,
                          absl::Span<const TokenId> tokens) {
  CHECK_EQ(tokens.size(), static_cast<size_t>(options_.block_size));
  const Hash128 hash = ChainedHash(
      before == kNoBlock ? options_.chain_start(salt) : entries_[before].hash,
      tokens);
  if (index_.contains(hash)) return false;
  Add(block, hash, before, salt, tokens);
  return true;
}

void PrefixCache::Clear() {
  for (PrefixJournal* journal : journals_) journal->Lose();
  index_.clear();
  longest_idle_ = shortest_idle_ = kNoBlock;
  num_idle_ = 0;
  for (BlockId block = 0; block < static_cast<BlockId>(entries_.size());
       ++block) {
    if (entries_[block].number == 0) continue;
    entries_[block] = Entry();
    pool_->Drop(block);
  }
}

void PrefixCache::OnShared(BlockId block) {
  Entry& entry = entries_[block];
  CHECK(!entry.shared);
  const bool was_held = entry.held();
  entry.shared = true;
  if (was_held) return;
  TakeFromIdle(block);
  AddHeldBehind(entry.before);
}

void PrefixCache::OnUnshared(BlockId block) {
  Entry& entry = entries_[block];
  CHECK(entry.shared);
  entry.shared = false;
  if (entry.held()) return;
  AddToIdle(block);
  RemoveHeldBehind(entry.before);
}

void PrefixCache::AddHeldBehind(BlockId block) {
  while (block != kNoBlock) {
    Entry& entry = entries_[block];
    const bool was_held = entry.held();
    ++entry.held_behind;
    if (was_held) return;
    TakeFromIdle(block);
    block = entry.before;
  }
}

void PrefixCache::RemoveHeldBehind(BlockId block) {
  while (block != kNoBlock) {
    Entry& entry = entries_[block];
    CHECK_GT(entry.held_behind, 0);
    --entry.held_behind;
    if (entry.held()) return;
    AddToIdle(block);
    block = entry.before;
  }
}

void PrefixCache::EvictOne() {
  const BlockId block = longest_idle_;
  CHECK_NE(block, kNoBlock);
  TakeFromIdle(block);
  for (PrefixJournal* journal : journals_) {
    journal->Removed(entries_[block].hash);
  }
  CHECK_EQ(index_.erase(entries_[block].hash), 1u);
  entries_[block] = Entry();
  ++num_evictions_;
  pool_->Drop(block);
}

void PrefixCache::Add(BlockId block, const Hash128& hash, BlockId before,
                      absl::string_view salt,
                      absl::Span<const TokenId> tokens) {
  Entry& entry = entries_[block];
  CHECK_EQ(entry.number, 0u);
  pool_->Keep(block);
  entry.number = ++last_number_;
  entry.hash = hash;
  entry.before = before;
  if (before == kNoBlock && !salt.empty()) {
    entry.salt = std::make_unique<const std::string>(salt);
  }
  entry.shared = true;  // by the sequence that it comes from
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + int64_t{block} * options_.block_size);
  CHECK(index_.emplace(hash, block).second);
  for (PrefixJournal* journal : journals_) journal->Stored(hash);
  AddHeldBehind(before);
}

BlockId PrefixCache::Find(const Hash128& hash, BlockId before,
                          absl::string_view salt,
                          absl::Span<const TokenId> tokens) const {
  const auto it = index_.find(hash);
  if (it == index_.end()) return kNoBlock;
  const BlockId block = it->second;
  const Entry& entry = entries_[block];
  if (entry.before != before || TokensOf(block) != tokens) return kNoBlock;
  if (before == kNoBlock && entry.salt_text() != salt) return kNoBlock;
  return block;
}

bool PrefixCache::FindEnd(const CachedPrefix& prefix, BlockId* at,
                          Hash128* hash) const {
  if (prefix.num_blocks == 0) return true;
  const auto it = index_.find(prefix.hash);
  if (it == index_.end() || entries_[it->second].number != prefix.entry) {
    return false;
  }
  *at = it->second;
  *hash = prefix.hash;
  return true;
}

absl::Span<const TokenId> PrefixCache::TokensOf(BlockId block) const {
  const auto size = static_cast<size_t>(options_.block_size);
  return absl::MakeConstSpan(tokens_).subspan(block * size, size);
}

absl::Span<const TokenId> PrefixCache::TokensOf(const PrefixText& text,
                                                int32_t index) const {
  const auto size = static_cast<size_t>(options_.block_size);
  CHECK_LE((index + 1) * size, text.tokens.size());
  return text.tokens.subspan(index * size, size);
}

void PrefixCache::AddToIdle(BlockId block) {
  Entry& entry = entries_[block];
  entry.longer_idle = shortest_idle_;
  entry.shorter_idle = kNoBlock;
  (shortest_idle_ == kNoBlock ? longest_idle_
                              : entries_[shortest_idle_].shorter_idle) = block;
  shortest_idle_ = block;
  ++num_idle_;
}

void PrefixCache::TakeFromIdle(BlockId block) {
  Entry& entry = entries_[block];
  (entry.longer_idle == kNoBlock ? longest_idle_
                                 : entries_[entry.longer_idle].shorter_idle) =
      entry.shorter_idle;
  (entry.shorter_idle == kNoBlock ? shortest_idle_
                                  : entries_[entry.shorter_idle].longer_idle) =
      entry.longer_idle;
  entry.longer_idle = entry.shorter_idle = kNoBlock;
  --num_idle_;
}

BlockId PrefixCache::AppendNames(BlockId from, size_t most,
                                 std::vector<Hash128>* names) const {
  constexpr int64_t kBlocksPerName = 8;
  const auto end = static_cast<BlockId>(
      std::min(static_cast<int64_t>(entries_.size()),
               from + kBlocksPerName * static_cast<int64_t>(most)));
  size_t count = 0;
  for (; from < end && count < most; ++from) {
    if (entries_[from].number == 0) continue;
    names->push_back(entries_[from].hash);
    ++count;
  }
  return from;
}

std::vector<PrefixCache::Content> PrefixCache::Contents() const {
  std::vector<Content> contents;
  for (BlockId block = 0; block < static_cast<BlockId>(entries_.size());
       ++block) {
    const Entry& entry = entries_[block];
    if (entry.number == 0) continue;
    contents.push_back({.block = block,
                        .before = entry.before,
                        .tokens = TokensOf(block),
                        .salt = entry.salt_text(),
                        .number = entry.number});
  }
  return contents;
}

void PrefixCache::CheckInvariants() const {
  if (!options_.enabled) return;
  const auto num_blocks = static_cast<BlockId>(entries_.size());
  std::vector<int32_t> held_behind(entries_.size(), 0);
  size_t num_entries = 0;
  int32_t num_idle = 0;
  for (BlockId block = 0; block < num_blocks; ++block) {
    const Entry& entry = entries_[block];
    CHECK_EQ(entry.number != 0, pool_->is_kept(block)) << "block " << block;
    if (entry.number == 0) continue;
    ++num_entries;
    const auto it = index_.find(entry.hash);
    CHECK(it != index_.end() && it->second == block) << "block " << block;
    const bool first = entry.before == kNoBlock;
    CHECK(first || entries_[entry.before].number != 0) << "block " << block;
    CHECK(first || entry.salt == nullptr) << "block " << block;
    const Hash128 before = first ? options_.chain_start(entry.salt_text())
                                 : entries_[entry.before].hash;
    CHECK(entry.hash == ChainedHash(before, TokensOf(block)))
        << "block " << block;
    CHECK_EQ(entry.shared, pool_->references(block) > 1) << "block " << block;
    if (!entry.held()) ++num_idle;
    if (!first && entry.held()) ++held_behind[entry.before];
  }
  CHECK_EQ(num_entries, index_.size());
  CHECK_EQ(num_idle, num_idle_);
  for (BlockId block = 0; block < num_blocks; ++block) {
    CHECK_EQ(entries_[block].held_behind, held_behind[block])
        << "block " << block;
  }
  std::vector<bool> seen(entries_.size(), false);
  BlockId last = kNoBlock;
  for (BlockId block = longest_idle_; block != kNoBlock;
       block = entries_[block].shorter_idle) {
    const Entry& entry = entries_[block];
    CHECK(!seen[block] && entry.number != 0 && !entry.held());
    CHECK_EQ(entry.longer_idle, last);
    CHECK(entry.before == kNoBlock || !seen[entry.before])
        << "block " << block << " would go after the one before it";
    seen[block] = true;
    last = block;
    --num_idle;
  }
  CHECK_EQ(last, shortest_idle_);
  CHECK_EQ(num_idle, 0);
}

}  // namespace baton::scheduling
