#include "scheduling/prefix_index.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduling/block_hash.h"

namespace baton::scheduling::prefix_index_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Chain = std::vector<Hash128>;

// Names of a prompt of so many blocks. Prompts of one family begin alike:
// `forks` are the blocks at which this one goes its own way.
Chain Prompt(uint64_t family, int32_t blocks,
             const std::map<int32_t, uint64_t>& forks = {}) {
  Chain chain;
  Hash128 hash = ChainStart("");
  for (int32_t i = 0; i < blocks; ++i) {
    const auto fork = forks.find(i);
    hash = ChainedHash(
        hash, {static_cast<TokenId>(family),
               static_cast<TokenId>(fork == forks.end() ? 0 : fork->second)});
    chain.push_back(hash);
  }
  return chain;
}

absl::Span<const Hash128> Front(const Chain& chain, size_t blocks) {
  return absl::MakeConstSpan(chain).subspan(0, blocks);
}

class PrefixIndexTest : public testing::Test {
 protected:
  std::vector<PrefixMatch> Match(absl::Span<const Hash128> chain) {
    std::vector<PrefixMatch> matches;
    index_.Match(chain, &matches);
    return matches;
  }

  PrefixIndex index_{PrefixIndex::Options{}};
};

constexpr WorkerId kA{11}, kB{12}, kC{13};

TEST_F(PrefixIndexTest, SaysWhoHasHowMuch) {
  const Chain prompt = Prompt(1, 10);
  EXPECT_THAT(Match(prompt), IsEmpty());
  index_.Store(kB, prompt);
  index_.Store(kA, Front(prompt, 3));
  index_.Store(kC, Prompt(2, 5));
  EXPECT_THAT(Match(prompt),
              ElementsAre(PrefixMatch{kA, 3}, PrefixMatch{kB, 10}));
  EXPECT_THAT(Match(Front(prompt, 5)),
              ElementsAre(PrefixMatch{kA, 3}, PrefixMatch{kB, 5}));
  EXPECT_THAT(Match(Front(prompt, 1)),
              ElementsAre(PrefixMatch{kA, 1}, PrefixMatch{kB, 1}));
  EXPECT_THAT(Match({}), IsEmpty());
  EXPECT_THAT(Match(Prompt(1, 10, {{4, 1}})),
              ElementsAre(PrefixMatch{kA, 3}, PrefixMatch{kB, 4}));
  EXPECT_THAT(Match(Prompt(3, 10)), IsEmpty());
  EXPECT_EQ(index_.num_blocks(), 15);
  EXPECT_EQ(index_.num_held(), 18);
  index_.CheckInvariants();
}

TEST_F(PrefixIndexTest, WhatIsRemovedIsGone) {
  const Chain prompt = Prompt(1, 10);
  index_.Store(kA, prompt);
  index_.Store(kB, prompt);
  index_.Remove(kA, absl::MakeConstSpan(prompt).subspan(6));
  EXPECT_THAT(Match(prompt),
              ElementsAre(PrefixMatch{kA, 6}, PrefixMatch{kB, 10}));
  index_.Remove(kA, prompt);
  index_.Remove(kA, prompt);  // again: nothing
  index_.Remove(kC, prompt);  // never there
  EXPECT_THAT(Match(prompt), ElementsAre(PrefixMatch{kB, 10}));
  index_.Remove(kB, prompt);
  EXPECT_THAT(Match(prompt), IsEmpty());
  EXPECT_EQ(index_.num_blocks(), 0);
  EXPECT_EQ(index_.num_held(), 0);
  index_.CheckInvariants();
}

TEST_F(PrefixIndexTest, StoredTwiceIsThereOnce) {
  const Chain prompt = Prompt(1, 4);
  index_.Store(kA, prompt);
  index_.Store(kA, prompt);
  EXPECT_EQ(index_.num_held(), 4);
  index_.Remove(kA, prompt);
  EXPECT_THAT(Match(prompt), IsEmpty());
}

TEST_F(PrefixIndexTest, AWorkerIsForgottenAtOnceAndCleanedUpLater) {
  const Chain prompt = Prompt(1, 10);
  index_.Store(kA, prompt);
  index_.Store(kB, Front(prompt, 4));
  index_.Forget(kA);
  index_.Forget(kA);
  index_.Forget(kC);
  EXPECT_THAT(Match(prompt), ElementsAre(PrefixMatch{kB, 4}));
  EXPECT_EQ(index_.num_held(), 14) << "not cleaned up yet";
  index_.CheckInvariants();
  for (int i = 0; i < 5000; ++i) index_.Clean();
  EXPECT_EQ(index_.num_held(), 4);
  EXPECT_EQ(index_.num_blocks(), 4);
  EXPECT_THAT(Match(prompt), ElementsAre(PrefixMatch{kB, 4}));
  index_.CheckInvariants();
}

TEST_F(PrefixIndexTest, AWorkerThatBeginsAnewHasOnlyWhatItSaysThen) {
  const Chain prompt = Prompt(1, 10);
  index_.Store(kA, prompt);
  index_.Forget(kA);
  index_.Store(kA, Front(prompt, 2));
  EXPECT_THAT(Match(prompt), ElementsAre(PrefixMatch{kA, 2}));
  index_.Remove(kA, absl::MakeConstSpan(prompt).subspan(1));
  EXPECT_THAT(Match(prompt), ElementsAre(PrefixMatch{kA, 1}));
  index_.CheckInvariants();
}

TEST_F(PrefixIndexTest, WhereFewStopFewBlocksAreLookedUp) {
  const Chain prompt = Prompt(1, 6250);
  const auto lookups = [&] {
    const int64_t before = index_.num_lookups();
    Match(prompt);
    return index_.num_lookups() - before;
  };
  EXPECT_LE(lookups(), 1) << "nobody has anything";
  for (uint64_t i = 0; i < 100; ++i) index_.Store(WorkerId{100 + i}, prompt);
  EXPECT_LE(lookups(), 2) << "all have all";
  index_.Store(kA, Front(prompt, 1234));
  EXPECT_LE(lookups(), 2 + 13);
  EXPECT_EQ(Match(prompt).front(), (PrefixMatch{kA, 1234}));
  index_.Store(kB, Front(prompt, 5000));
  EXPECT_LE(lookups(), 2 + 2 * 13);
}

// Never more blocks than the worker has, and never more look-ups than blocks.
TEST_F(PrefixIndexTest, HolesDoNoHarm) {
  const Chain prompt = Prompt(1, 100);
  index_.Store(kA, prompt);
  index_.Store(kB, Front(prompt, 60));
  index_.Store(kC, absl::MakeConstSpan(prompt).subspan(50));  // not the first
  index_.Remove(kA, absl::MakeConstSpan(prompt).subspan(30, 10));
  const int64_t before = index_.num_lookups();
  const auto matches = Match(prompt);
  EXPECT_LE(index_.num_lookups() - before, 100);
  ASSERT_GE(matches.size(), 2u);
  EXPECT_EQ(matches[0], (PrefixMatch{kA, 100}));
  EXPECT_EQ(matches[1], (PrefixMatch{kB, 60}));
  // Without the first block nobody is looked for.
  index_.Remove(kA, Front(prompt, 1));
  index_.Remove(kB, Front(prompt, 1));
  EXPECT_THAT(Match(prompt), IsEmpty());
}

TEST(PrefixIndexBoundTest, DropsWhatFindsNoRoom) {
  constexpr int64_t kBytes = 64 << 10;
  PrefixIndex index({.max_bytes = kBytes});
  const Chain prompt = Prompt(1, 10000);
  for (int i = 0; i < 3; ++i) {
    index.Store(kA, prompt);
    EXPECT_LE(index.bytes(), kBytes);
  }
  EXPECT_GE(index.num_blocks(), 500);
  EXPECT_EQ(index.num_dropped(), 3 * (10000 - index.num_blocks()));
  index.CheckInvariants();
  // What came first is there.
  std::vector<PrefixMatch> matches;
  index.Match(Front(prompt, 500), &matches);
  EXPECT_THAT(matches, ElementsAre(PrefixMatch{kA, 500}));
  // What is removed makes room.
  index.Remove(kA, prompt);
  EXPECT_EQ(index.num_blocks(), 0);
  const Chain other = Prompt(2, 500);
  index.Store(kB, other);
  index.Match(other, &matches);
  EXPECT_THAT(matches, ElementsAre(PrefixMatch{kB, 500}));
}

TEST(PrefixIndexBoundTest, ManyWorkersOfOneBlockStayWithinTheBound) {
  constexpr int64_t kBytes = 32 << 10;
  PrefixIndex index({.max_bytes = kBytes});
  const Chain prompt = Prompt(1, 50);
  for (uint64_t worker = 1; worker <= 1000; ++worker) {
    index.Store(WorkerId{worker}, prompt);
    ASSERT_LE(index.bytes(), kBytes);
  }
  EXPECT_GT(index.num_dropped(), 0);
  EXPECT_GT(index.num_held(), 3 * 50);
  EXPECT_EQ(index.num_held() + index.num_dropped(), 50 * 1000);
  index.CheckInvariants();
}

// Workers come and go without end: their numbers and their room come back.
TEST(PrefixIndexBoundTest, WhatWorkersLeaveBehindIsCleanedUp) {
  constexpr int64_t kBytes = 128 << 10;
  PrefixIndex index({.max_bytes = kBytes});
  for (uint64_t life = 1; life <= 70000; ++life) {
    const WorkerId worker{life};
    index.Store(worker, Prompt(life, 20));
    index.Forget(worker);
  }
  EXPECT_EQ(index.num_dropped(), 0);
  EXPECT_LT(index.num_held(), 4000);
  index.CheckInvariants();
  while (index.num_held() > 0) index.Clean();
  EXPECT_EQ(index.num_blocks(), 0);
  index.CheckInvariants();
}

// What an index does, in the plainest way, of workers whose blocks come and go
// as those of a prefix cache: none goes before those behind it.
class Model {
 public:
  void Store(WorkerId worker, const Chain& chain) {
    Blocks& blocks = held_[worker];
    uint64_t before = 0;
    for (const Hash128& name : chain) {
      if (blocks.emplace(name.low, Block{name, before, 0}).second &&
          before != 0) {
        ++blocks.at(before).behind;
      }
      before = name.low;
    }
  }
  // Takes away some blocks that have none behind them.
  Chain Evict(WorkerId worker, size_t count, std::mt19937* random) {
    Blocks& blocks = held_[worker];
    Chain gone;
    for (; count > 0 && !blocks.empty(); --count) {
      auto it = blocks.lower_bound(uint64_t{(*random)()} << 32);
      if (it == blocks.end()) it = blocks.begin();
      while (it->second.behind > 0) {
        if (++it == blocks.end()) it = blocks.begin();
      }
      gone.push_back(it->second.name);
      if (it->second.before != 0) --blocks.at(it->second.before).behind;
      blocks.erase(it);
    }
    return gone;
  }
  void Forget(WorkerId worker) { held_.erase(worker); }

  // Block after block.
  std::vector<PrefixMatch> Match(const Chain& chain) const {
    std::vector<PrefixMatch> matches;
    for (const auto& [worker, blocks] : held_) {
      int32_t count = 0;
      for (const Hash128& name : chain) {
        if (!blocks.contains(name.low)) break;
        ++count;
      }
      if (count > 0) matches.push_back({worker, count});
    }
    return matches;
  }
  int64_t num_held() const {
    int64_t count = 0;
    for (const auto& [worker, blocks] : held_) {
      count += static_cast<int64_t>(blocks.size());
    }
    return count;
  }

 private:
  struct Block {
    Hash128 name;
    uint64_t before = 0;
    int behind = 0;
  };
  using Blocks = std::map<uint64_t, Block>;

  std::map<WorkerId, Blocks> held_;
};

// A prompt drawn at random; many begin alike.
Chain DrawPrompt(std::mt19937* random) {
  std::map<int32_t, uint64_t> forks;
  for (uint32_t i = (*random)() % 3; i > 0; --i) {
    forks[static_cast<int32_t>((*random)() % 60)] = (*random)() % 3;
  }
  return Prompt((*random)() % 2, 1 + static_cast<int32_t>((*random)() % 80),
                forks);
}

// Halving finds what looking at each block does.
TEST(PrefixIndexRandomTest, AgreesWithThePlainModel) {
  std::mt19937 random(7);
  PrefixIndex index({.max_bytes = int64_t{8} << 20});
  Model model;
  std::vector<PrefixMatch> matches;
  int64_t matched = 0;
  for (int i = 0; i < 8000; ++i) {
    const WorkerId worker{1 + random() % 20};
    const Chain prompt = DrawPrompt(&random);
    const uint32_t what = random() % 100;
    if (what < 30) {
      index.Store(worker, prompt);
      model.Store(worker, prompt);
    } else if (what < 60) {
      index.Remove(worker, model.Evict(worker, random() % 40, &random));
    } else if (what == 60) {
      index.Forget(worker);
      model.Forget(worker);
    } else {
      index.Match(prompt, &matches);
      ASSERT_EQ(matches, model.Match(prompt)) << "step " << i;
      matched += static_cast<int64_t>(matches.size());
    }
    if (i % 500 == 0) index.CheckInvariants();
  }
  EXPECT_GT(matched, 1000);
  for (int i = 0; i < 5000; ++i) index.Clean();
  EXPECT_EQ(index.num_held(), model.num_held());
  EXPECT_EQ(index.num_dropped(), 0);
}

// With news lost at random, and hardly any room: what is said is a hint, but it
// is no invention, and the bound holds.
TEST(PrefixIndexRandomTest, LostNewsDoNoHarm) {
  std::mt19937 random(8);
  constexpr int64_t kBytes = 40 << 10;
  PrefixIndex index({.max_bytes = kBytes});
  std::map<WorkerId, std::set<uint64_t>> stored;
  std::vector<PrefixMatch> matches;
  for (int i = 0; i < 8000; ++i) {
    const WorkerId worker{1 + random() % 20};
    const Chain prompt = DrawPrompt(&random);
    const size_t first = random() % prompt.size();
    const auto part = absl::MakeConstSpan(prompt).subspan(first);
    const uint32_t what = random() % 100;
    if (what < 45) {
      index.Store(worker, part);
      for (const Hash128& name : part) stored[worker].insert(name.low);
    } else if (what < 60) {
      index.Remove(worker, part);
      for (const Hash128& name : part) stored[worker].erase(name.low);
    } else if (what == 60) {
      index.Forget(worker);
      stored.erase(worker);
    } else {
      index.Match(prompt, &matches);
      for (const PrefixMatch& match : matches) {
        const auto last = static_cast<size_t>(match.blocks) - 1;
        ASSERT_LT(last, prompt.size());
        ASSERT_TRUE(stored[match.worker].contains(prompt[last].low));
      }
    }
    ASSERT_LE(index.bytes(), kBytes);
    if (i % 500 == 0) index.CheckInvariants();
  }
  EXPECT_GT(index.num_dropped(), 0);
}

}  // namespace
}  // namespace baton::scheduling::prefix_index_test
