// Random use of the prefix cache: sequences come, are computed in parts,
// generate and go, in a pool that is too small for all.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduling/prefix_cache.h"
#include "tests/scheduling/prefix_cache_blocks.h"

namespace baton::scheduling::prefix_cache_test {
namespace {

// Remembers whole prefixes, and looks at everything each time.
class NaiveModel final {
 public:
  // The prefix of `tokens` that is there, in blocks.
  int32_t Match(const Tokens& tokens) const {
    int32_t count = 0;
    while ((count + 1) * kBlockSize <= static_cast<int32_t>(tokens.size()) &&
           idle_since_.contains(Prefix(tokens, count + 1))) {
      ++count;
    }
    return count;
  }
  void Add(const Tokens& tokens, int32_t block) {
    idle_since_.emplace(Prefix(tokens, block + 1), std::nullopt);
  }
  bool Has(const Tokens& tokens, int32_t block) const {
    return idle_since_.contains(Prefix(tokens, block + 1));
  }

  // Who is idle now, when `held` says which prefixes somebody holds a block of.
  void Update(const std::set<Tokens>& held) {
    std::vector<Tokens> idle_now;
    for (auto& [prefix, since] : idle_since_) {
      const bool is_held = std::any_of(
          held.begin(), held.end(), [&, &prefix = prefix](const Tokens& other) {
            return other.size() >= prefix.size() &&
                   std::equal(prefix.begin(), prefix.end(), other.begin());
          });
      if (is_held) {
        since.reset();
      } else if (!since.has_value()) {
        idle_now.push_back(prefix);
      }
    }
    // The end of a sequence before its beginning.
    std::sort(
        idle_now.begin(), idle_now.end(),
        [](const Tokens& a, const Tokens& b) { return a.size() > b.size(); });
    for (const Tokens& prefix : idle_now) idle_since_[prefix] = ++now_;
  }
  int32_t num_idle() const {
    return static_cast<int32_t>(std::count_if(
        idle_since_.begin(), idle_since_.end(),
        [](const auto& entry) { return entry.second.has_value(); }));
  }
  void EvictOne() {
    const auto oldest = std::min_element(
        idle_since_.begin(), idle_since_.end(),
        [](const auto& a, const auto& b) {
          return a.second.value_or(UINT64_MAX) < b.second.value_or(UINT64_MAX);
        });
    idle_since_.erase(oldest);
  }
  std::set<Tokens> Prefixes() const {
    std::set<Tokens> prefixes;
    for (const auto& [prefix, since] : idle_since_) prefixes.insert(prefix);
    return prefixes;
  }

 private:
  static Tokens Prefix(const Tokens& tokens, int32_t blocks) {
    return Tokens(tokens.begin(), tokens.begin() + blocks * kBlockSize);
  }

  std::map<Tokens, std::optional<uint64_t>> idle_since_;
  uint64_t now_ = 0;
};

class RandomUse final {
 public:
  explicit RandomUse(uint32_t seed) : random_(seed) {}

  void Step() {
    switch (random_() % 4) {
      case 0:
        Start();
        break;
      case 1:
      case 2:
        Compute();
        break;
      default:
        End();
    }
    Compare();
  }
  void EndAll() {
    while (!running_.empty()) End();
    Compare();
    EXPECT_EQ(pool_.num_in_use(), 0);
  }

  int64_t hits = 0, refused = 0, evictions = 0, copies = 0;

 private:
  // Few tokens and few lengths, so that much begins alike.
  Tokens DrawTokens() {
    Tokens tokens(1 + random_() % 28);
    const bool alike = random_() % 2 == 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = alike && i < 16 ? 7 : static_cast<TokenId>(random_() % 2);
    }
    return tokens;
  }

  void Start() {
    const Tokens tokens = DrawTokens();
    const auto length = static_cast<int32_t>(tokens.size());
    StopParams stop;
    stop.max_output_tokens = 100;
    auto sequence = std::make_unique<Sequence>(SequenceId{++last_id_}, tokens,
                                               length, SamplingParams(), stop);
    const int32_t most =
        static_cast<int32_t>(random_() % static_cast<uint32_t>(length + 1));
    PooledBlocks blocks = cache_.Match(sequence.get(), most);
    const int32_t expected = std::min(model_.Match(tokens), most / kBlockSize);
    ASSERT_EQ(blocks.size(), expected);
    ASSERT_EQ(sequence->cached(), expected * kBlockSize);
    hits += expected;
    sequence->blocks() = std::move(blocks);
    running_.push_back(std::move(sequence));
    Update();
    // Room to generate a little.
    Sequence& added = *running_.back();
    const int32_t needed = BlocksFor(tokens.size() + 8) - expected;
    const int32_t available = pool_.num_available();
    ASSERT_EQ(available, pool_.num_free() + model_.num_idle());
    const int32_t free = pool_.num_free();
    auto rest = pool_.Allocate(needed);
    ASSERT_EQ(rest.has_value(), needed <= available);
    if (!rest.has_value()) {
      ++refused;
      running_.pop_back();
      Update();
      return;
    }
    for (int32_t i = free; i < needed; ++i, ++evictions) model_.EvictOne();
    added.blocks().Append(*std::move(rest));
    if (added.cached() > 0) added.AdoptComputed(added.cached());
  }

  void Compute() {
    if (running_.empty()) return;
    Sequence& sequence = *running_[random_() % running_.size()];
    const int32_t room = sequence.blocks().size() * kBlockSize;
    if (sequence.uncomputed() == 0 && sequence.num_tokens() == room) return;
    if (sequence.uncomputed() == 0) {
      sequence.CommitSampled(static_cast<TokenId>(random_() % 2));
    }
    sequence.CommitComputed(
        1 + static_cast<int32_t>(random_() %
                                 static_cast<uint32_t>(sequence.uncomputed())));
    const Tokens& tokens = sequence.tokens();
    const CachedPrefix before = sequence.prefix();
    // Whether the sequence still stands behind an entry is the cache's affair;
    // what enters then is not.
    const bool stands =
        before.num_blocks == 0 || FindNumber(tokens, before) == before.entry;
    cache_.Insert(&sequence);
    const int32_t full = sequence.computed() / kBlockSize;
    for (int32_t i = before.num_blocks; stands && i < full; ++i) {
      if (model_.Has(tokens, i)) ++copies;
      model_.Add(tokens, i);
    }
    Update();
  }

  void End() {
    if (running_.empty()) return;
    std::swap(running_[random_() % running_.size()], running_.back());
    running_.pop_back();
    Update();
  }

  // All entries as whole prefixes.
  std::map<Tokens, PrefixCache::Content> Entries() const {
    std::map<BlockId, PrefixCache::Content> by_block;
    for (const auto& content : cache_.Contents()) {
      by_block[content.block] = content;
    }
    std::map<Tokens, PrefixCache::Content> entries;
    for (const auto& [block, content] : by_block) {
      Tokens prefix;
      for (BlockId b = block; b != PrefixCache::kNoBlock;
           b = by_block.at(b).before) {
        const auto tokens = by_block.at(b).tokens;
        prefix.insert(prefix.begin(), tokens.begin(), tokens.end());
      }
      entries[prefix] = content;
    }
    return entries;
  }
  uint64_t FindNumber(const Tokens& tokens, const CachedPrefix& prefix) const {
    const auto entries = Entries();
    const auto it = entries.find(Tokens(
        tokens.begin(), tokens.begin() + prefix.num_blocks * kBlockSize));
    return it == entries.end() ? 0 : it->second.number;
  }

  // Tells the model which entries' blocks are in some sequence's table.
  void Update() {
    std::set<BlockId> in_tables;
    for (const auto& sequence : running_) {
      const auto ids = sequence->blocks().ids();
      in_tables.insert(ids.begin(), ids.end());
    }
    std::set<Tokens> held;
    for (const auto& [prefix, content] : Entries()) {
      if (in_tables.contains(content.block)) held.insert(prefix);
    }
    model_.Update(held);
  }

  void Compare() {
    pool_.CheckInvariants();
    cache_.CheckInvariants();
    std::set<Tokens> prefixes;
    for (const auto& [prefix, content] : Entries()) prefixes.insert(prefix);
    ASSERT_EQ(prefixes, model_.Prefixes());
    ASSERT_EQ(cache_.num_evictable(), model_.num_idle());
    ASSERT_EQ(cache_.num_evictions(), evictions);
  }

  std::mt19937 random_;
  BlockPool pool_{24};
  PrefixCache cache_{{.block_size = kBlockSize}, &pool_};
  std::vector<std::unique_ptr<Sequence>> running_;
  NaiveModel model_;
  uint64_t last_id_ = 0;
};

TEST(PrefixCacheRandomTest, DoesWhatANaiveModelDoes) {
  int64_t hits = 0, refused = 0, evictions = 0, copies = 0;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    RandomUse use(seed);
    for (int i = 0; i < 500 && !testing::Test::HasFatalFailure(); ++i) {
      use.Step();
    }
    use.EndAll();
    if (testing::Test::HasFatalFailure()) return;
    hits += use.hits;
    refused += use.refused;
    evictions += use.evictions;
    copies += use.copies;
  }
  EXPECT_GT(hits, 1000);
  EXPECT_GT(refused, 100);
  EXPECT_GT(evictions, 1000);
  EXPECT_GT(copies, 100);
}

}  // namespace
}  // namespace baton::scheduling::prefix_cache_test
