// The hand-off among faults drawn from a seed: pages and messages are lost,
// repeated, reordered, altered; headers are altered; peers die; both sides
// abort. What must hold whatever happens:
//   1. no crash;
//   2. a transfer that Landed holds exactly what was sent;
//   3. every opened transfer ends with exactly one of Landed and Quiesced, and
//      every started one with exactly one Quiesced;
//   4. no byte outside of the blocks of transfers is ever written.
#include <map>
#include <random>
#include <set>

#include "tests/kv_transfer/handoff_pair.h"

namespace baton::kv_transfer {
namespace {

struct Counts {
  int landed = 0, failed = 0;
};

class HandoffFuzz : public HandoffPairTest {
 public:
  void TestBody() override {}
  using HandoffPairTest::SetUp;

  Counts Run(uint64_t seed);

 private:
  struct Plan {
    std::vector<BlockId> source, target;
    std::vector<int32_t> ready = std::vector<int32_t>(kLayers);
    bool committed = false;
    bool started = false;
    int ended_here = 0, ended_there = 0;
    bool landed = false;
  };

  FakeNetwork::Fate Judge() {
    if (!evil_ || random_() % 100 >= 8) return FakeNetwork::Fate::kDeliver;
    constexpr FakeNetwork::Fate kFates[] = {
        FakeNetwork::Fate::kDrop,          FakeNetwork::Fate::kDuplicate,
        FakeNetwork::Fate::kHold,          FakeNetwork::Fate::kCorruptPayload,
        FakeNetwork::Fate::kCorruptHeader,
    };
    return kFates[random_() % std::size(kFates)];
  }
  // The header of a payload may be altered, its payload only if it has one.
  FakeNetwork::Fate JudgeFor(bool has_payload) {
    FakeNetwork::Fate fate = Judge();
    if (fate == FakeNetwork::Fate::kCorruptPayload && !has_payload) {
      fate = FakeNetwork::Fate::kDeliver;
    }
    return fate;
  }
  void Pump(int steps) {
    for (int i = 0; i < steps; ++i) network_.Step();
    if (random_() % 4 == 0) network_.hold_landings = random_() % 2;
    if (random_() % 4 == 0) network_.Release();
    if (random_() % 8 == 0) {
      clock_.Advance(absl::Milliseconds(random_() % 500));
      network_.Tick();
    }
  }
  void Collect();
  void Begin(TransferId id, Plan& plan);
  void Act(TransferId id, Plan& plan);

  std::mt19937_64 random_;
  bool evil_ = false;
  std::map<TransferId, Plan> plans_;
  std::set<BlockId> used_;
  Counts counts_;
};

void HandoffFuzz::Collect() {
  for (const auto& event : PollReceiver()) {
    if (const auto* landed = std::get_if<Receiver::Landed>(&event)) {
      Plan& plan = plans_.at(landed->transfer);
      ++plan.ended_there;
      plan.landed = true;
      ++counts_.landed;
      EXPECT_TRUE(receiver_memory_.HoldsAll(
          static_cast<uint64_t>(landed->transfer), 0, plan.target));
      EXPECT_EQ(landed->record.first_token, 42);
    } else if (const auto* quiet = std::get_if<Receiver::Quiesced>(&event)) {
      ++plans_.at(quiet->transfer).ended_there;
      ++counts_.failed;
    }
  }
  for (const auto& event : PollSender()) {
    if (const auto* acked = std::get_if<Sender::Acked>(&event)) {
      EXPECT_TRUE(plans_.at(acked->transfer).landed);
    } else if (const auto* quiet = std::get_if<Sender::Quiesced>(&event)) {
      ++plans_.at(quiet->transfer).ended_here;
    }
  }
}

void HandoffFuzz::Begin(TransferId id, Plan& plan) {
  const int32_t n = 1 + random_() % 6;
  for (int32_t i = 0; i < n; ++i) {
    plan.source.push_back((static_cast<int32_t>(id) * 6 + i) % kPoolBlocks);
    plan.target.push_back((static_cast<int32_t>(id) * 6 + 5 - i) % kPoolBlocks);
    used_.insert(plan.target.back());
  }
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (int32_t i = 0; i < n; ++i) {
      sender_memory_.Write(static_cast<uint64_t>(id), layer, i, plan.source[i]);
    }
  }
  auto open = OpenOf(plan.target);
  open.transfer = id;
  open.deadline = In(absl::Seconds(5));
  ASSERT_TRUE(receiver_->Open(open).ok());
  auto grant = GrantOf(0, n);
  grant.transfer = id;
  plan.started = sender_->Start(grant, plan.source, In(absl::Seconds(5))).ok();
}

void HandoffFuzz::Act(TransferId id, Plan& plan) {
  const int32_t n = plan.source.size();
  if (random_() % 60 == 0) sender_->Abort(id);
  if (random_() % 60 == 0) receiver_->Abort(id);
  if (plan.committed) return;
  const int32_t layer = random_() % kLayers;
  plan.ready[layer] =
      std::min<int32_t>(n, plan.ready[layer] + random_() % (n + 1));
  sender_->SendLayer(id, layer, plan.ready[layer]);
  if (std::all_of(plan.ready.begin(), plan.ready.end(),
                  [&](int32_t r) { return r == n; })) {
    sender_->Commit(id, {.first_token = 42});
    plan.committed = true;
  }
}

Counts HandoffFuzz::Run(uint64_t seed) {
  random_.seed(seed);
  network_.reorder = true;
  network_.judge = [this](ByteSpan, bool has_payload) {
    return JudgeFor(has_payload);
  };
  evil_ = true;
  // Six transfers whose blocks do not overlap.
  for (uint64_t i = 0; i < 6; ++i) Begin(TransferId{i}, plans_[TransferId{i}]);
  const bool kill = random_() % 4 == 0;
  Transport* const victim =
      random_() % 2 ? sender_transport_.get() : receiver_transport_.get();
  for (int round = 0; round < 120; ++round) {
    const TransferId id{random_() % 6};
    Act(id, plans_.at(id));
    Pump(random_() % 8);
    Collect();
    if (kill && round == 60) network_.Kill(victim);
  }
  // All faults end; then every deadline passes.
  evil_ = false;
  network_.hold_landings = false;
  network_.Release();
  network_.RunUntilIdle();
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(absl::Seconds(6));
    network_.Tick();
    network_.RunUntilIdle();
  }
  Collect();
  // The side that was killed says nothing any more.
  for (const auto& [id, plan] : plans_) {
    if (!kill || victim != receiver_transport_.get()) {
      EXPECT_EQ(plan.ended_there, 1);
    }
    if (!kill || victim != sender_transport_.get()) {
      EXPECT_EQ(plan.ended_here, plan.started ? 1 : 0);
    }
  }
  EXPECT_TRUE(receiver_memory_.UntouchedExcept({used_.begin(), used_.end()}));
  return counts_;
}

TEST(HandoffFuzzTest, FaultsFromASeed) {
  Counts total;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    HandoffFuzz fuzz;
    fuzz.SetUp();
    const Counts counts = fuzz.Run(seed);
    total.landed += counts.landed;
    total.failed += counts.failed;
    if (::testing::Test::HasFailure()) break;
  }
  // Both must have happened often, or nothing was tested.
  EXPECT_GT(total.landed, 200);
  EXPECT_GT(total.failed, 200);
}

}  // namespace
}  // namespace baton::kv_transfer
