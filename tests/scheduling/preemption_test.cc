#include "scheduling/preemption.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "scheduling/admission.h"

namespace baton::scheduling {
namespace {

constexpr auto kInteractive = RequestClass::kInteractive;
constexpr auto kBatch = RequestClass::kBatch;

TEST(PickVictimTest, BatchThenLowPriorityThenYoung) {
  std::vector<PreemptionCandidate> left = {
      {SequenceId{1}, kInteractive, 0}, {SequenceId{2}, kBatch, 7},
      {SequenceId{3}, kInteractive, 5}, {SequenceId{4}, kInteractive, -1},
      {SequenceId{5}, kBatch, 7},       {SequenceId{6}, kInteractive, 0}};
  std::vector<uint64_t> victims;
  while (const auto victim = PickVictim(left)) {
    victims.push_back(static_cast<uint64_t>(*victim));
    std::erase_if(left, [&](const auto& c) { return c.id == *victim; });
  }
  EXPECT_EQ(victims, (std::vector<uint64_t>{5, 2, 4, 6, 1}));
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].id, SequenceId{3});
}

TEST(PickVictimTest, NobodyGivesUpAlone) {
  EXPECT_FALSE(PickVictim({}).has_value());
  const PreemptionCandidate one{SequenceId{1}, kBatch, -100};
  EXPECT_FALSE(PickVictim({one}).has_value());
}

TEST(StaysLongerTest, IsAStrictOrderOfAll) {
  std::vector<PreemptionCandidate> all;
  for (uint64_t id = 1; id <= 3; ++id) {
    for (const RequestClass request_class : {kInteractive, kBatch}) {
      for (int32_t priority = -1; priority <= 1; ++priority) {
        all.push_back({SequenceId{id}, request_class, priority});
      }
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < all.size(); ++j) {
      EXPECT_EQ(StaysLonger(all[i], all[j]) + StaysLonger(all[j], all[i]),
                i == j ? 0 : 1);
      for (size_t k = 0; k < all.size(); ++k) {
        if (StaysLonger(all[i], all[j]) && StaysLonger(all[j], all[k])) {
          EXPECT_TRUE(StaysLonger(all[i], all[k]));
        }
      }
    }
  }
}

PreemptionCost SomeCost() {
  PreemptionCost cost;
  cost.step = {.fixed = 0.01, .per_token = 0.001};
  cost.chunk = 500;
  cost.tokens = 1000;  // two steps: 1.02 s
  cost.kv_bytes = 1'000'000;
  cost.swap_room = 1'000'000;
  cost.copy_bytes_per_second = 2'000'000;  // both ways: 1 s
  return cost;
}

TEST(CheaperWayTest, ComparesCopiesWithComputing) {
  PreemptionCost cost = SomeCost();
  EXPECT_EQ(CheaperWay(cost), PreemptionWay::kSwap);
  cost.copy_bytes_per_second = 1'900'000;
  EXPECT_EQ(CheaperWay(cost), PreemptionWay::kRecompute);
  cost.queued_tokens = 1000;
  EXPECT_EQ(CheaperWay(cost), PreemptionWay::kSwap);
  cost = SomeCost();
  cost.cached = 500;
  EXPECT_EQ(CheaperWay(cost), PreemptionWay::kRecompute);
  cost.cached = 5000;  // of others, too
  EXPECT_EQ(CheaperWay(cost), PreemptionWay::kRecompute);
}

TEST(CheaperWayTest, WithoutRoomThereIsOneWay) {
  PreemptionCost cost = SomeCost();
  cost.swap_room = cost.kv_bytes - 1;
  EXPECT_EQ(CheaperWay(cost), PreemptionWay::kRecompute);
  cost.copy_bytes_per_second = 0;
  cost.step = StepCost();
  EXPECT_EQ(CheaperWay(cost), PreemptionWay::kRecompute);
}

TEST(CheaperWayTest, ACopyThatWasNeverMadeIsTried) {
  PreemptionCost cost = SomeCost();
  cost.copy_bytes_per_second = 0;
  EXPECT_EQ(CheaperWay(cost), PreemptionWay::kSwap);
  cost = SomeCost();
  cost.copy_bytes_per_second = 1;
  cost.step = StepCost();
  EXPECT_EQ(CheaperWay(cost), PreemptionWay::kSwap);
}

TEST(PreemptionWayTest, Names) {
  EXPECT_STREQ(PreemptionWayName(PreemptionWay::kRecompute), "recompute");
  EXPECT_STREQ(PreemptionWayName(PreemptionWay::kSwap), "swap");
}

// A worker in numbers of tokens, a block each: sequences come, grow by a token
// a step, are preempted, and come back. What is claimed is that all end, and
// how soon.
class TokenWorker {
 public:
  TokenWorker(int32_t blocks, int32_t reserve)
      : size_(blocks), free_(blocks), reserve_(reserve) {}

  void Ask(PreemptionCandidate who, int32_t prompt, int32_t most) {
    line_.push_back({who, prompt, most});
  }
  bool done() const { return line_.empty() && running_.empty(); }
  int64_t steps() const { return steps_; }
  int64_t preemptions() const { return preemptions_; }

  void Step() {
    Admit();
    Grow();
    ++steps_;
    int moved = 0;
    for (Entry& entry : running_) {
      if (entry.blocks == entry.tokens) continue;
      ++entry.tokens;
      ++moved;
    }
    // The first of all never stands still.
    ASSERT_TRUE(running_.empty() || moved > 0);
    std::erase_if(running_, [&](const Entry& entry) {
      if (entry.tokens < entry.most) return false;
      free_ += entry.blocks;
      return true;
    });
    int32_t held = 0;
    for (const Entry& entry : running_) held += entry.blocks;
    ASSERT_EQ(held + free_, size_);
  }

 private:
  struct Entry {
    PreemptionCandidate who;
    int32_t tokens = 0;
    int32_t most = 0;
    int32_t blocks = 0;
  };

  void Admit() {
    while (!line_.empty()) {
      Entry entry = line_.front();
      WorkerCapacity capacity;
      capacity.total_blocks = size_;
      capacity.free_blocks = free_;
      capacity.max_sequences = 8;
      capacity.num_sequences = static_cast<int32_t>(running_.size());
      capacity.max_context = size_;
      capacity.kept_free = static_cast<int32_t>(
          std::count_if(running_.begin(), running_.end(),
                        [](const Entry& e) { return e.blocks < e.most; }));
      entry.blocks = TokensSetAside(entry.tokens, entry.most, reserve_);
      const AdmissionVerdict verdict =
          AdmitReservation(capacity, {.blocks = entry.blocks,
                                      .most_blocks = entry.most,
                                      .most_tokens = entry.most});
      ASSERT_NE(verdict, AdmissionVerdict::kTooLarge);
      if (verdict != AdmissionVerdict::kAdmit) return;
      line_.pop_front();
      entry.who.id = SequenceId{++last_id_};
      free_ -= entry.blocks;
      running_.push_back(entry);
    }
  }

  void Grow() {
    for (size_t i = 0; i < running_.size(); ++i) {
      if (running_[i].blocks > running_[i].tokens) continue;
      if (free_ > 0) {
        --free_;
        ++running_[i].blocks;
      } else if (Preempt()) {
        i = SIZE_MAX;  // they are others now
      }
    }
  }

  bool Preempt() {
    std::vector<PreemptionCandidate> candidates;
    for (const Entry& entry : running_) candidates.push_back(entry.who);
    const auto victim = PickVictim(candidates);
    if (!victim.has_value()) return false;
    const auto it =
        std::find_if(running_.begin(), running_.end(),
                     [&](const Entry& e) { return e.who.id == *victim; });
    free_ += it->blocks;
    line_.push_front(*it);
    running_.erase(it);
    ++preemptions_;
    return true;
  }

  const int32_t size_;
  int32_t free_;
  const int32_t reserve_;
  std::deque<Entry> line_;
  std::vector<Entry> running_;
  uint64_t last_id_ = 0;
  int64_t steps_ = 0;
  int64_t preemptions_ = 0;
};

TEST(PreemptionTest, EverybodyComesToAnEnd) {
  int64_t preemptions = 0;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    std::mt19937 random(seed);
    const auto between = [&](int32_t a, int32_t b) {
      return std::uniform_int_distribution<int32_t>(a, b)(random);
    };
    const int32_t size = between(10, 60);
    TokenWorker worker(size, between(1, 12));
    int64_t tokens = 0;
    for (int i = 0; i < 12; ++i) {
      const int32_t prompt = between(1, size - 1);
      const int32_t most = between(prompt + 1, size);
      tokens += most;
      worker.Ask({SequenceId{0}, between(0, 1) == 0 ? kInteractive : kBatch,
                  between(-1, 1)},
                 prompt, most);
    }
    while (!worker.done()) {
      worker.Step();
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
      // Each step brings at least one token.
      ASSERT_LE(worker.steps(), tokens) << "seed " << seed;
    }
    preemptions += worker.preemptions();
  }
  EXPECT_GT(preemptions, 400);
}

// What comes back right away would be taken out again: it has to wait until
// somebody else gave something back.
TEST(PreemptionTest, TwoThatDoNotFitTogetherTakeTurnsOnce) {
  TokenWorker worker(/*blocks=*/20, /*reserve=*/4);
  worker.Ask({SequenceId{0}, kInteractive, 0}, 4, 18);
  worker.Ask({SequenceId{0}, kInteractive, 0}, 4, 18);
  while (!worker.done()) {
    worker.Step();
    ASSERT_FALSE(HasFatalFailure());
  }
  EXPECT_EQ(worker.preemptions(), 1);
  EXPECT_LT(worker.steps(), 28);  // one after the other
}

}  // namespace
}  // namespace baton::scheduling
