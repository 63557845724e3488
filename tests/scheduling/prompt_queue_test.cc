// Whose turn it is among the prompts of a worker.
#include "scheduling/prompt_queue.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduling/block_pool.h"

namespace baton::scheduling {
namespace {

using ::testing::ElementsAre;

constexpr PromptPace kPace = {.chunk = 100};
// 0.11 s for a prompt of 100 tokens.
constexpr StepCost kCost = {.fixed = 0.01, .per_token = 0.001};

Urgency Batch(int32_t priority = 0) {
  return {.request_class = RequestClass::kBatch, .priority = priority};
}
Urgency Priority(int32_t priority) { return {.priority = priority}; }
Urgency Ttft(double seconds) { return {.ttft_target_seconds = seconds}; }

// A queue, and the sequences in it.
class Queue final {
 public:
  explicit Queue(int32_t patience = 1000) : queue_(patience) {}

  void Add(uint64_t id, const Urgency& urgency, int32_t prompt = 100,
           int32_t cached = 0, double now = 0) {
    auto& owned = sequences_[id];
    owned = std::make_unique<Sequence>(
        SequenceId{id}, std::vector<TokenId>(static_cast<size_t>(prompt), 1),
        prompt, SamplingParams(), StopParams(), 0, urgency);
    queue_.Add(owned.get(), now, cached);
  }
  void Remove(uint64_t id) {
    queue_.Remove(SequenceId{id});
    sequences_.erase(id);
  }
  std::vector<uint64_t> Order(const StepOutlook& outlook = {}) {
    std::vector<uint64_t> ids;
    for (const Sequence* sequence : queue_.Order(outlook, kPace)) {
      ids.push_back(static_cast<uint64_t>(sequence->id()));
    }
    return ids;
  }
  void Planned(uint64_t id) { queue_.Planned(sequences_.at(id).get()); }
  Sequence* sequence(uint64_t id) { return sequences_.at(id).get(); }
  PromptQueue& queue() { return queue_; }

 private:
  std::map<uint64_t, std::unique_ptr<Sequence>> sequences_;
  PromptQueue queue_;
};

TEST(PromptQueueTest, FirstComeFirstServedWithoutUrgency) {
  Queue q;
  for (uint64_t id : {5, 3, 4}) {
    q.Add(id, {});
    q.Order();
  }
  EXPECT_THAT(q.Order(), ElementsAre(5, 3, 4));
  q.Remove(3);
  q.Remove(77);
  EXPECT_THAT(q.Order(), ElementsAre(5, 4));
  EXPECT_EQ(q.queue().UncomputedTokens(), 200);
}

TEST(PromptQueueTest, ClassThenPriorityThenArrival) {
  Queue q;
  q.Add(1, Batch(100));
  q.Order();
  q.Add(2, Priority(-1));
  q.Order();
  q.Add(3, Batch(100));
  q.Order();
  q.Add(4, Priority(7));
  q.Order();
  q.Add(5, Batch(-100));
  q.Order();
  q.Add(6, Priority(-1));
  EXPECT_THAT(q.Order(), ElementsAre(4, 2, 6, 1, 3, 5));
}

TEST(PromptQueueTest, MoreInTheCacheFirstAmongThoseOfOneTurn) {
  Queue q;
  q.Add(1, {}, 100, /*cached=*/0);
  q.Add(2, {}, 100, /*cached=*/64);
  q.Add(3, {}, 100, /*cached=*/16);
  q.Add(4, {}, 100, /*cached=*/64);
  EXPECT_THAT(q.Order(), ElementsAre(2, 4, 3, 1));
  // Not before those that were there.
  q.Add(5, {}, 100, /*cached=*/96);
  EXPECT_THAT(q.Order(), ElementsAre(2, 4, 3, 1, 5));
}

TEST(PromptQueueTest, WhoCannotBeInTimeAnyMoreGoesBehindThoseWhoCan) {
  Queue q;
  q.Add(1, Ttft(0.2));
  q.Order();
  q.Add(2, Ttft(0.15));  // the first one takes until 0.11, it until 0.22
  q.Order();
  q.Add(3, {});
  q.Order();
  q.Add(4, Batch());
  EXPECT_THAT(q.Order({.now = 0, .cost = kCost}), ElementsAre(1, 3, 2, 4));
  // Nothing is known of the time that steps take.
  EXPECT_THAT(q.Order({.now = 9}), ElementsAre(1, 2, 3, 4));
  q.Remove(1);
  EXPECT_THAT(q.Order({.now = 0.02, .cost = kCost}), ElementsAre(2, 3, 4));
  EXPECT_THAT(q.Order({.now = 0.05, .cost = kCost}), ElementsAre(3, 2, 4));
}

TEST(PromptQueueTest, WhoIsLateCostsOthersNothing) {
  Queue q;
  q.Add(1, Ttft(0.5), /*prompt=*/1000);
  q.Order();
  q.Add(2, Ttft(0.2));
  EXPECT_THAT(q.Order({.now = 0, .cost = kCost}), ElementsAre(2, 1));
  // More of it was in the cache, or is computed: it is in time, and first.
  q.Remove(1);
  q.Add(3, Ttft(0.5), /*prompt=*/1000, /*cached=*/900);
  EXPECT_THAT(q.Order({.now = 0, .cost = kCost}), ElementsAre(2, 3));
  q.Remove(2);
  q.Add(4, Ttft(0.2), 100);
  EXPECT_THAT(q.Order({.now = 0, .cost = kCost}), ElementsAre(3, 4));
}

TEST(PromptQueueTest, StreamsBesideCountToo) {
  Queue q;
  q.Add(1, Ttft(0.3));
  q.Order();
  q.Add(2, {});
  const StepOutlook outlook = {.now = 0, .cost = kCost};
  EXPECT_EQ(q.queue().Order(outlook, {.chunk = 50}).front()->id(),
            SequenceId{1});
  // Two steps of 0.1 s more.
  EXPECT_EQ(q.queue()
                .Order(outlook, {.chunk = 50, .beside_seconds = 0.1})
                .front()
                ->id(),
            SequenceId{2});
}

TEST(PromptQueueTest, TheOldestGoesFirstOnceItWasPassedOverOften) {
  Queue q(/*patience=*/3);
  q.Add(1, Batch());
  q.Order();
  q.Add(2, Batch());
  uint64_t next = 10;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 3; ++i) {
      q.Add(next, Priority(100));
      EXPECT_EQ(q.Order().front(), next);
      q.Planned(next);
      q.Remove(next++);
    }
    q.Add(next, Priority(100));
    // It stays first until it was part of a step.
    for (int i = 0; i < 3; ++i) EXPECT_THAT(q.Order(), ElementsAre(1, next, 2));
    q.Planned(1);
    EXPECT_THAT(q.Order(), ElementsAre(next, 1, 2));
    q.Remove(next++);
  }
  // The next oldest one begins to count when it is that.
  q.Remove(1);
  for (int i = 0; i < 3; ++i) {
    q.Add(next, {});
    EXPECT_EQ(q.Order().front(), next);
    q.Planned(next);
    q.Remove(next++);
  }
  q.Add(next, {});
  EXPECT_THAT(q.Order(), ElementsAre(2, next));
}

TEST(PromptQueueTest, StepsWithoutPromptsPassOverNobody) {
  Queue q(/*patience=*/1);
  q.Add(1, Batch());
  q.Order();
  q.Add(2, {});
  for (int i = 0; i < 5; ++i) EXPECT_THAT(q.Order(), ElementsAre(2, 1));
}

TEST(PromptQueueTest, StreamsLeave) {
  BlockPool pool(4);
  Queue q;
  for (uint64_t id : {1, 2, 3}) q.Add(id, {}, /*prompt=*/3);
  q.sequence(1)->blocks() = *pool.Allocate(1);
  q.sequence(2)->blocks() = *pool.Allocate(1);
  q.sequence(1)->CommitComputed(2);
  q.sequence(2)->CommitComputed(1);
  q.queue().RemoveStreams();
  EXPECT_THAT(q.Order(), ElementsAre(2, 3));
}

// Whatever comes: all of them in the order, by the rules but for one, and the
// oldest is never passed over for longer than it has patience.
TEST(PromptQueueTest, RandomArrivalsKeepTheRules) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto patience = static_cast<int32_t>(1 + random() % 6);
    Queue q(patience);
    std::map<uint64_t, Urgency> there;
    uint64_t next = 0;
    int32_t passed_over = 0;
    double now = 0;
    for (int step = 0; step < 400; ++step) {
      for (uint32_t i = random() % 3; i > 0; --i) {
        Urgency urgency = {.request_class = random() % 3 == 0
                                                ? RequestClass::kBatch
                                                : RequestClass::kInteractive,
                           .priority = static_cast<int32_t>(random() % 3),
                           .ttft_target_seconds =
                               random() % 2 == 0 ? 0 : 0.3 * (random() % 9)};
        there[next] = urgency;
        q.Add(next++, urgency, static_cast<int32_t>(1 + random() % 500),
              static_cast<int32_t>(random() % 2) * 16, now);
      }
      now += 0.05;
      const std::vector<uint64_t> order =
          q.Order({.now = now, .cost = random() % 8 == 0 ? StepCost() : kCost});
      std::vector<uint64_t> ids;
      for (const auto& [id, urgency] : there) ids.push_back(id);
      std::vector<uint64_t> sorted = order;
      std::sort(sorted.begin(), sorted.end());
      ASSERT_EQ(sorted, ids);
      if (order.empty()) continue;
      const uint64_t oldest = there.begin()->first;
      if (passed_over >= patience) {
        ASSERT_EQ(order.front(), oldest);
      }
      const auto is_batch = [&](uint64_t id) {
        return there.at(id).request_class == RequestClass::kBatch;
      };
      ASSERT_TRUE(std::is_partitioned(
          order.begin() + (passed_over >= patience), order.end(),
          [&](uint64_t id) { return !is_batch(id); }));
      // A step takes some from the front; some of those are done with it.
      bool oldest_ran = false;
      const size_t runs = std::min<size_t>(1 + random() % 2, order.size());
      for (size_t i = 0; i < runs; ++i) {
        q.Planned(order[i]);
        oldest_ran |= order[i] == oldest;
      }
      passed_over = oldest_ran ? 0 : passed_over + 1;
      if (random() % 2 == 0) {
        passed_over = order.front() == oldest ? 0 : passed_over;
        q.Remove(order.front());
        there.erase(order.front());
      }
    }
    EXPECT_GT(next, 200u);
  }
}

}  // namespace
}  // namespace baton::scheduling
