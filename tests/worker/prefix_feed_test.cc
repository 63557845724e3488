// What a worker tells routers of its prefix cache: whoever listens from any
// moment on, through any backlog, knows what is there.
#include "worker/prefix_feed.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduling/block_pool.h"
#include "scheduling/prefix_cache.h"
#include "scheduling/sequence.h"

namespace baton::worker::prefix_feed_test {
namespace {

using scheduling::BlockPool;
using scheduling::PooledBlocks;
using scheduling::PrefixCache;
using scheduling::Sequence;

constexpr int32_t kBlockSize = 4;

using Words = std::pair<uint64_t, uint64_t>;

// One router's end: applies what comes as the contract says.
struct Listener {
  std::set<Words> names;
  bool heard = false;
  int messages = 0;
  int resets = 0;
  int most_names = 0;

  void Take(const v1::PrefixNews& news) {
    EXPECT_TRUE(heard || news.reset()) << "the first news are a reset";
    heard = true;
    ++messages;
    if (news.reset()) {
      ++resets;
      names.clear();
    }
    ASSERT_EQ(news.removed_size() % 2, 0);
    ASSERT_EQ(news.stored_size() % 2, 0);
    most_names =
        std::max(most_names, (news.removed_size() + news.stored_size()) / 2);
    for (int i = 0; i < news.removed_size(); i += 2) {
      names.erase({news.removed(i), news.removed(i + 1)});
    }
    for (int i = 0; i < news.stored_size(); i += 2) {
      names.insert({news.stored(i), news.stored(i + 1)});
    }
  }
};

// Hands messages over at once, or keeps the ones of a session that stands
// still.
class FakeOutbox final : public ControlOutbox {
 public:
  void Send(SessionId session, v1::WorkerMessage message) override {
    ASSERT_TRUE(message.has_prefixes());
    if (still.contains(session)) {
      waiting[session].push_back(message.prefixes());
    } else {
      listeners[session].Take(message.prefixes());
    }
  }
  void SendToAll(const v1::WorkerMessage& message) override {
    FAIL() << "not for all alike";
  }
  bool Backlogged(SessionId session) override {
    return waiting[session].size() >= 3;
  }
  void GoOn(SessionId session) {
    still.erase(session);
    for (const v1::PrefixNews& news : waiting[session]) {
      listeners[session].Take(news);
    }
    waiting[session].clear();
  }

  std::map<SessionId, Listener> listeners;
  std::set<SessionId> still;
  std::map<SessionId, std::deque<v1::PrefixNews>> waiting;
};

class PrefixFeedTest : public testing::Test {
 protected:
  void Start(int32_t blocks, bool enabled = true, int32_t stored = 0) {
    pool_ = std::make_unique<BlockPool>(blocks);
    cache_ = std::make_unique<PrefixCache>(
        scheduling::PrefixCacheOptions{.enabled = enabled,
                                       .block_size = kBlockSize},
        pool_.get());
    if (stored > 0) {
      places_ = std::make_unique<BlockPool>(stored);
      stored_ = std::make_unique<PrefixCache>(
          scheduling::PrefixCacheOptions{.block_size = kBlockSize},
          places_.get());
    }
    feed_ = std::make_unique<PrefixFeed>(cache_.get(), &outbox_, stored_.get());
  }

  static std::vector<TokenId> Tokens(TokenId first, int32_t blocks) {
    std::vector<TokenId> tokens;
    for (int32_t i = 0; i < blocks * kBlockSize; ++i) {
      tokens.push_back(first + i);
    }
    return tokens;
  }

  // A prompt of so many blocks that comes, is computed and goes.
  void Run(TokenId first, int32_t blocks) {
    const std::vector<TokenId> tokens = Tokens(first, blocks);
    const int32_t count = static_cast<int32_t>(tokens.size());
    Sequence sequence(SequenceId{++last_id_}, tokens, count,
                      scheduling::SamplingParams(), scheduling::StopParams());
    PooledBlocks held = cache_->Match(&sequence, count);
    held.Append(*pool_->Allocate(blocks - held.size()));
    sequence.blocks() = std::move(held);
    if (sequence.uncomputed() > 0) {
      sequence.AdoptComputed(sequence.uncomputed());
    }
    cache_->Insert(&sequence);
  }

  // Its beginning is stored besides.
  void Store(TokenId first, int32_t blocks) {
    const std::vector<TokenId> tokens = Tokens(first, blocks);
    const scheduling::PrefixText text = {.tokens = tokens};
    scheduling::CachedPrefix at;
    const PooledBlocks held = stored_->Hold(text, &at);
    const auto rest = places_->Allocate(blocks - held.size());
    ASSERT_TRUE(rest.has_value());
    stored_->Extend(text, rest->ids(), &at);
    EXPECT_EQ(at.num_blocks, blocks);
  }

  // A turn of the loop, some time after the last one.
  void Turn(absl::Duration after = absl::Milliseconds(150)) {
    now_ += after;
    feed_->Flush(now_);
  }

  std::set<Words> InCache() {
    std::vector<Hash128> names;
    for (BlockId next = 0; next < cache_->pool_size();) {
      next = cache_->AppendNames(next, 1000, &names);
    }
    for (BlockId next = 0; stored_ != nullptr && next < places_->size();) {
      next = stored_->AppendNames(next, 1000, &names);
    }
    std::set<Words> words;
    for (const Hash128& name : names) words.insert({name.low, name.high});
    return words;
  }
  const Listener& Of(SessionId session) { return outbox_.listeners[session]; }

  absl::Time now_ = absl::UnixEpoch();
  FakeOutbox outbox_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<PrefixCache> cache_;
  std::unique_ptr<BlockPool> places_;
  std::unique_ptr<PrefixCache> stored_;
  std::unique_ptr<PrefixFeed> feed_;
  uint64_t last_id_ = 0;
};

TEST_F(PrefixFeedTest, ARouterHearsWhatIsThereAndWhatComes) {
  Start(20);
  Run(100, 3);
  feed_->AddRouter(1);
  Turn();
  EXPECT_EQ(Of(1).resets, 1);
  EXPECT_EQ(Of(1).names, InCache());
  EXPECT_EQ(Of(1).names.size(), 3u);
  Run(200, 4);
  Turn();
  EXPECT_EQ(Of(1).names, InCache());
  EXPECT_EQ(Of(1).names.size(), 7u);
  const int messages = Of(1).messages;
  Turn();
  Turn();
  EXPECT_EQ(Of(1).messages, messages) << "nothing is new";
  EXPECT_EQ(Of(1).resets, 1);
}

TEST_F(PrefixFeedTest, AnEmptyCacheIsToldOfToo) {
  Start(20);
  feed_->AddRouter(1);
  Turn();
  EXPECT_EQ(Of(1).messages, 1);
  EXPECT_EQ(Of(1).resets, 1);
}

TEST_F(PrefixFeedTest, EachRouterHearsByItself) {
  Start(20);
  feed_->AddRouter(1);
  Turn();
  Run(100, 3);
  feed_->AddRouter(2);
  Turn();
  feed_->RemoveRouter(1);
  Run(200, 3);
  Turn();
  EXPECT_EQ(Of(1).names.size(), 3u);
  EXPECT_EQ(Of(2).names, InCache());
  EXPECT_EQ(Of(2).names.size(), 6u);
}

TEST_F(PrefixFeedTest, NotMoreOftenThanOfUse) {
  Start(20);
  feed_->AddRouter(1);
  Turn();
  for (int i = 0; i < 10; ++i) {
    Run(100 + 10 * i, 1);
    Turn(absl::Milliseconds(5));
  }
  EXPECT_LE(Of(1).messages, 2);
  Turn();
  EXPECT_EQ(Of(1).names, InCache());
}

TEST_F(PrefixFeedTest, OffSaysNothing) {
  Start(20, /*enabled=*/false);
  feed_->AddRouter(1);
  Turn();
  Turn();
  EXPECT_EQ(Of(1).messages, 0);
}

TEST_F(PrefixFeedTest, AFullCacheGoesOutInPieces) {
  const int32_t blocks = 6 * PrefixFeed::kMaxNames;
  Start(blocks);
  for (int32_t i = 0; i < blocks / 1024; ++i) Run(100000 * i, 1024);
  feed_->AddRouter(1);
  Turn();
  EXPECT_LE(Of(1).messages, 4) << "a step does not wait for all of it";
  EXPECT_LT(Of(1).names.size(), InCache().size());
  // Blocks come and go while they are being told of.
  for (int i = 0; i < 10; ++i) {
    Run(-100000 * (i + 1), 1000);
    Turn();
  }
  EXPECT_EQ(Of(1).names, InCache());
  EXPECT_EQ(Of(1).resets, 1);
  EXPECT_LE(Of(1).most_names, PrefixFeed::kMaxNames);
}

TEST_F(PrefixFeedTest, ASlowRouterCostsNothingAndBeginsAnew) {
  Start(30);
  feed_->AddRouter(1);
  feed_->AddRouter(2);
  Turn();
  outbox_.still.insert(1);
  for (int i = 0; i < 50; ++i) {
    Run(100 * i, 3);
    Turn();
    EXPECT_LE(outbox_.waiting[1].size(), 4u);
  }
  EXPECT_EQ(Of(2).names, InCache());
  EXPECT_EQ(Of(2).resets, 1);
  outbox_.GoOn(1);
  Turn();
  Turn();
  EXPECT_EQ(Of(1).names, InCache());
  EXPECT_EQ(Of(1).resets, 2);
}

TEST_F(PrefixFeedTest, MoreChangesThanAreRememberedBeginAnew) {
  Start(20000);
  feed_->AddRouter(1);
  Turn();
  // In one turn.
  for (int i = 0; i < 20; ++i) Run(100000 * i, 1000);
  for (int i = 0; i < 10; ++i) Turn();
  EXPECT_EQ(Of(1).names, InCache());
  EXPECT_EQ(Of(1).resets, 2);
  cache_->Clear();
  Turn();
  EXPECT_TRUE(Of(1).names.empty());
  EXPECT_EQ(Of(1).resets, 3);
}

// Whatever is there is told of once, wherever it is.
TEST_F(PrefixFeedTest, WhatIsStoredIsThere) {
  Start(6, /*enabled=*/true, /*stored=*/5);
  Store(300, 1);
  feed_->AddRouter(1);
  Turn();
  EXPECT_EQ(Of(1).names.size(), 1u) << "of an earlier process";
  Run(100, 4);
  Store(100, 3);
  Turn();
  EXPECT_EQ(Of(1).names.size(), 5u);
  Run(200, 6);  // all others are evicted
  Turn();
  EXPECT_EQ(Of(1).names, InCache());
  EXPECT_EQ(Of(1).names.size(), 6u + 1 + 3);
  Store(200, 5);
  Turn();
  EXPECT_EQ(Of(1).names, InCache());
  EXPECT_EQ(Of(1).names.size(), 6u);
  EXPECT_EQ(Of(1).resets, 1);
  stored_->Clear();
  Turn();
  EXPECT_EQ(Of(1).names, InCache());
}

// At random: routers come, stand still and go on; blocks come and go.
TEST_F(PrefixFeedTest, WhoeverListensKnowsInTheEnd) {
  std::mt19937 random(4);
  Start(40, /*enabled=*/true, /*stored=*/50);
  for (SessionId session = 1; session <= 4; ++session) {
    feed_->AddRouter(session);
  }
  for (int i = 0; i < 3000; ++i) {
    const SessionId session = 1 + random() % 4;
    switch (random() % 8) {
      case 0:
        // A stream is never used again.
        feed_->RemoveRouter(session);
        outbox_.listeners[session] = Listener();
        outbox_.waiting[session].clear();
        feed_->AddRouter(session);
        break;
      case 1:
        outbox_.still.insert(session);
        break;
      case 2:
        outbox_.GoOn(session);
        break;
      case 3:
        if (random() % 20 == 0) cache_->Clear();
        if (random() % 20 == 0) stored_->Clear();
        break;
      case 4:
        Store(static_cast<TokenId>(1000 * (random() % 30)),
              1 + static_cast<int32_t>(random() % 20));
        break;
      default:
        Run(static_cast<TokenId>(1000 * (random() % 30)),
            1 + static_cast<int32_t>(random() % 20));
    }
    Turn(absl::Milliseconds(static_cast<int>(random() % 200)));
  }
  for (SessionId session = 1; session <= 4; ++session) outbox_.GoOn(session);
  Turn();
  Turn();
  for (SessionId session = 1; session <= 4; ++session) {
    EXPECT_EQ(Of(session).names, InCache()) << session;
  }
}

}  // namespace
}  // namespace baton::worker::prefix_feed_test
