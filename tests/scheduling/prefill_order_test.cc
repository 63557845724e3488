// Prompts of a prefill worker that are not all alike: whose turn it is, and
// that everybody's comes.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduling/block_pool.h"
#include "scheduling/prefill_scheduler.h"
#include "scheduling/prefix_cache.h"
#include "scheduling/sequence.h"

namespace baton::scheduling::prefill_order_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr int32_t kBlock = 4;
constexpr Urgency kBatch = {.request_class = RequestClass::kBatch};

// A prefill worker: what is computed leaves the queue, and its blocks are given
// back when the test says so.
class Prefiller final {
 public:
  Prefiller(int32_t blocks, const PrefillSchedulerOptions& options)
      : pool_(blocks),
        cache_({.block_size = kBlock}, &pool_),
        scheduler_(options, &pool_, &cache_) {}

  // The prompt's tokens are `first`, `first` + 1, ...
  void Add(uint64_t id, int32_t prompt, const Urgency& urgency = {},
           int32_t first = 0, double now = 0) {
    std::vector<TokenId> tokens(static_cast<size_t>(prompt));
    for (int32_t i = 0; i < prompt; ++i) tokens[i] = first + i;
    auto& sequence = waiting_[id];
    sequence =
        std::make_unique<Sequence>(SequenceId{id}, std::move(tokens), prompt,
                                   SamplingParams(), StopParams(), 0, urgency);
    scheduler_.Add(sequence.get(), now);
  }
  void Cancel(uint64_t id) {
    scheduler_.Remove(SequenceId{id});
    waiting_.erase(id);
  }
  // A step: (sequence, tokens) of each chunk.
  std::vector<std::pair<uint64_t, int64_t>> Step(
      const StepOutlook& outlook = {}) {
    scheduler_.CheckInvariants();
    pool_.CheckInvariants();
    const StepPlan plan = scheduler_.Plan(outlook);
    std::vector<std::pair<uint64_t, int64_t>> chunks;
    std::vector<uint64_t> done;
    for (const PlannedSequence& s : plan.sequences) {
      const auto id = static_cast<uint64_t>(s.sequence);
      chunks.emplace_back(id, static_cast<int64_t>(s.tokens.size()));
      Sequence* sequence = waiting_.at(id).get();
      sequence->CommitComputed(static_cast<int32_t>(s.tokens.size()));
      cache_.Insert(sequence);
      if (s.sample) done.push_back(id);
    }
    for (uint64_t id : done) {
      scheduler_.Remove(SequenceId{id});
      handing_off_[id] = std::move(waiting_.at(id));
      waiting_.erase(id);
    }
    return chunks;
  }
  void HandedOff(uint64_t id) { handing_off_.erase(id); }

  const auto& waiting() const { return waiting_; }
  const auto& handing_off() const { return handing_off_; }

 private:
  BlockPool pool_;
  PrefixCache cache_;
  PrefillScheduler scheduler_;
  std::map<uint64_t, std::unique_ptr<Sequence>> waiting_, handing_off_;
};

TEST(PrefillOrderTest, ALongPromptDoesNotJoinTheStepInWhichAShortOneEnds) {
  // 10 ms, and 1 ms for each token.
  const StepOutlook outlook = {.cost = {.fixed = 0.01, .per_token = 0.001}};
  Prefiller p(1000, {.token_budget = 512, .block_size = kBlock});
  p.Add(1, 30, {}, /*first=*/0);
  p.Add(2, 400, {}, /*first=*/1000);
  EXPECT_THAT(p.Step(outlook), ElementsAre(Pair(1, 30)));
  EXPECT_THAT(p.Step(outlook), ElementsAre(Pair(2, 400)));
  // Short ones that come together go together.
  p.Add(3, 30, {}, 2000);
  p.Add(4, 15, {}, 3000);
  EXPECT_THAT(p.Step(outlook), ElementsAre(Pair(3, 30), Pair(4, 15)));
  // With a long queue, steps are full.
  for (uint64_t i = 0; i < 60; ++i) {
    p.Add(10 + i, 100, {}, static_cast<int32_t>(4000 + 200 * i));
  }
  EXPECT_THAT(p.Step(outlook),
              ElementsAre(Pair(10, 100), Pair(11, 100), Pair(12, 100),
                          Pair(13, 100), Pair(14, 100), Pair(15, 12)));
}

TEST(PrefillOrderTest, WhoDoesNotJoinFindsInTheCacheWhatTheStepComputed) {
  const StepOutlook outlook = {.cost = {.fixed = 0.01, .per_token = 0.001}};
  Prefiller p(1000, {.token_budget = 512, .block_size = kBlock});
  p.Add(1, 200);
  p.Add(2, 240);  // begins with the same 200
  EXPECT_THAT(p.Step(outlook), ElementsAre(Pair(1, 200)));
  EXPECT_THAT(p.Step(outlook), ElementsAre(Pair(2, 40)));
}

TEST(PrefillOrderTest, AnUrgentPromptGoesBetweenTheChunksOfAnother) {
  Prefiller p(64, {.token_budget = 8, .block_size = kBlock});
  p.Add(1, 40, kBatch);
  EXPECT_THAT(p.Step(), ElementsAre(Pair(1, 8)));
  p.Add(2, 12, {}, /*first=*/1000);
  EXPECT_THAT(p.Step(), ElementsAre(Pair(2, 8)));
  // Its blocks are still there, and so is what they hold.
  EXPECT_EQ(p.waiting().at(1)->blocks().size(), 10);
  EXPECT_THAT(p.Step(), ElementsAre(Pair(2, 4), Pair(1, 4)));
  EXPECT_THAT(p.Step(), ElementsAre(Pair(1, 8)));
}

TEST(PrefillOrderTest, WhatIsInTheCacheGoesFirstAmongEquals) {
  Prefiller p(64, {.token_budget = 8, .block_size = kBlock});
  p.Add(1, 17);
  while (!p.waiting().empty()) p.Step();
  p.Add(2, 17, {}, /*first=*/1000);
  p.Add(3, 17);
  // 16 of its 17 tokens are there.
  EXPECT_THAT(p.Step(), ElementsAre(Pair(3, 1), Pair(2, 7)));
}

TEST(PrefillOrderTest, WhoIsTooLateGoesBehind) {
  Prefiller p(64, {.token_budget = 8, .block_size = kBlock});
  const StepCost cost = {.fixed = 0.01, .per_token = 0.001};
  p.Add(1, 80, {.ttft_target_seconds = 0.05}, 1000, /*now=*/5);
  p.Step({.now = 5});
  p.Add(2, 8, {.ttft_target_seconds = 0.05}, 2000, /*now=*/5);
  EXPECT_THAT(p.Step({.now = 5, .cost = cost}), ElementsAre(Pair(2, 8)));
  EXPECT_THAT(p.Step({.now = 5, .cost = cost}), ElementsAre(Pair(1, 8)));
}

TEST(PrefillOrderTest, OnlyWhatHasBegunGoesOnWhileTheFirstWaitsForBlocks) {
  // 10 blocks: 4 of the first one, and too few for the second one.
  Prefiller p(10, {.token_budget = 4, .block_size = kBlock});
  p.Add(1, 16, kBatch);
  EXPECT_THAT(p.Step(), ElementsAre(Pair(1, 4)));
  p.Add(2, 40, {}, 1000);
  p.Add(3, 4, kBatch, 2000);  // there would be blocks for it
  for (int i = 0; i < 3; ++i) EXPECT_THAT(p.Step(), ElementsAre(Pair(1, 4)));
  EXPECT_THAT(p.Step(), IsEmpty());
  p.HandedOff(1);
  EXPECT_THAT(p.Step(), ElementsAre(Pair(2, 4)));
}

TEST(PrefillOrderTest, AFloodOfUrgentOnesLeavesTheOldestItsShare) {
  Prefiller p(256, {.token_budget = 8, .block_size = kBlock, .patience = 3});
  p.Add(1, 80, kBatch);
  p.Step();
  uint64_t next = 10;
  int steps = 0;
  for (; p.waiting().contains(1) && steps < 1000; ++steps) {
    p.Add(next, 8, {.priority = 100}, static_cast<int32_t>(1000 * next));
    ++next;
    p.Step();
    for (uint64_t id = 10; id < next; ++id) p.HandedOff(id);
  }
  // 9 more chunks: of every four steps one.
  EXPECT_EQ(steps, 36);
}

// Whatever comes, with whatever urgency, and however few blocks there are: who
// is the oldest is done within a bound.
TEST(PrefillOrderTest, NobodyStarves) {
  int64_t longest_part = 0;
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto budget = static_cast<int32_t>(4 + random() % 30);
    const auto blocks = static_cast<int32_t>(20 + random() % 60);
    const auto patience = static_cast<int32_t>(1 + random() % 6);
    constexpr int kMostHandOff = 10;  // steps until blocks are given back
    Prefiller p(
        blocks,
        {.token_budget = budget, .block_size = kBlock, .patience = patience});
    const StepCost cost = {.fixed = 0.01, .per_token = 0.001};
    std::map<uint64_t, int> hand_off_ends;
    uint64_t next = 0, oldest = ~uint64_t{0};
    int oldest_since = 0, done = 0;
    for (int step = 0; step < 1500; ++step) {
      // About twice what can be done, while there is not too much of it.
      if (p.waiting().size() < 40 && random() % 2 == 0) {
        p.Add(next++, static_cast<int32_t>(1 + random() % (kBlock * 20)),
              {.request_class = random() % 3 == 0 ? RequestClass::kBatch
                                                  : RequestClass::kInteractive,
               .priority = static_cast<int32_t>(random() % 201) - 100,
               .ttft_target_seconds = 0.05 * (random() % 20)},
              static_cast<int32_t>(random() % 5) * 1000, 0.02 * step);
      }
      if (random() % 50 == 0 && !p.waiting().empty()) {
        p.Cancel(p.waiting().rbegin()->first);
      }
      if (!p.waiting().empty() && p.waiting().begin()->first != oldest) {
        oldest = p.waiting().begin()->first;
        oldest_since = step;
      }
      const int32_t tokens =
          p.waiting().empty() ? 0 : p.waiting().begin()->second->num_tokens();
      p.Step(
          {.now = 0.02 * step, .cost = random() % 5 == 0 ? StepCost() : cost});
      if (!p.waiting().empty() && p.waiting().begin()->first == oldest) {
        const int chunks = (tokens + budget - 1) / budget;
        // Steps that pass over it, and such in which all wait for blocks.
        const int passed_over = patience * (1 + kMostHandOff);
        const int until_blocks =
            (blocks * kBlock + budget - 1) / budget + kMostHandOff;
        ASSERT_LE(step - oldest_since,
                  until_blocks + (passed_over + 1) * (1 + chunks));
        longest_part = std::max<int64_t>(longest_part, step - oldest_since);
      } else {
        ++done;
      }
      for (const auto& [id, sequence] : p.handing_off()) {
        hand_off_ends.try_emplace(
            id, step + static_cast<int>(random() % kMostHandOff));
      }
      std::erase_if(hand_off_ends, [&](const auto& end) {
        if (end.second > step) return false;
        p.HandedOff(end.first);
        return true;
      });
    }
    EXPECT_GT(done, 20);
  }
  EXPECT_GT(longest_part, 20);
}

}  // namespace
}  // namespace baton::scheduling::prefill_order_test
