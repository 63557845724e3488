// The registry's pairs under random events, against what they come to when all
// is reckoned anew each time.
#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/worker_registry.h"
#include "tests/support/fake_worker.h"

namespace baton::router {
namespace {

using scheduling::CircuitBreaker;
using scheduling::kNoWorker;
using scheduling::WorkerId;
using scheduling::WorkerRole;
using scheduling::WorkerSnapshot;
using test::FakeWorker;

class RegistryPairsTest : public testing::Test {
 protected:
  static constexpr int kPrefill = 3;
  static constexpr int kDecode = 4;
  static constexpr int kWorkers = kPrefill + kDecode;

  RegistryPairsTest() {
    model_.architecture = "LlamaForCausalLM";
    model_.vocab_size = 2048;
    model_.num_layers = 6;
    model_.max_context = 512;
    registry_.emplace(model_, WorkerRegistry::Options(), now_);
    for (int i = 0; i < kWorkers; ++i) {
      registry_->Add(RoleOf(i), "w:" + std::to_string(i));
    }
  }

  static WorkerRole RoleOf(int index) {
    return index < kPrefill ? WorkerRole::kPrefill : WorkerRole::kDecode;
  }
  int Below(int most) {
    return static_cast<int>(random_() % static_cast<unsigned>(most));
  }
  WorkerId IdOf(int index) const { return registry_->workers()[index].id; }

  // What the test believes of a pair of connected workers.
  struct Pair {
    bool paired = false;
    double bandwidth = 0;
    CircuitBreaker breaker;
  };

  void Connect(int index) {
    if (IdOf(index) != kNoWorker) return;
    v1::WorkerHello hello = FakeWorker::Hello(
        RoleOf(index) == WorkerRole::kPrefill ? v1::WORKER_ROLE_PREFILL
                                              : v1::WORKER_ROLE_DECODE,
        "w" + std::to_string(index));
    hellos_[index] = hello;
    registry_->Connected(index, hello, now_);
    for (int p = 0; p < kPrefill; ++p) {
      for (int d = kPrefill; d < kWorkers; ++d) {
        if (p != index && d != index) continue;
        if (IdOf(p) != kNoWorker && IdOf(d) != kNoWorker) pairs_[{p, d}] = {};
      }
    }
  }

  void Lose(int index) {
    registry_->Lost(index);
    std::erase_if(pairs_, [&](const auto& entry) {
      return entry.first.first == index || entry.first.second == index;
    });
  }

  void Step() {
    now_ += absl::Milliseconds(Below(700));
    const int p = Below(kPrefill);
    const int d = kPrefill + Below(kDecode);
    const auto pair = pairs_.find({p, d});
    switch (Below(8)) {
      case 0:
        Connect(Below(kWorkers));
        break;
      case 1:
        if (Below(4) == 0) Lose(Below(kWorkers));
        break;
      case 2:
      case 3: {
        if (pair == pairs_.end()) break;
        v1::PairReport report;
        report.set_decode_incarnation(hellos_[d].incarnation());
        report.set_paired(Below(5) > 0);
        report.set_bandwidth_bytes(1e6 * Below(5));
        registry_->PairReported(p, report, now_);
        pair->second.paired = report.paired();
        if (report.bandwidth_bytes() > 0) {
          pair->second.bandwidth = report.bandwidth_bytes();
        }
        break;
      }
      case 4:
      case 5:
        registry_->TransferFailed(IdOf(p), IdOf(d), now_);
        if (pair != pairs_.end()) pair->second.breaker.Failed(now_);
        break;
      case 6:
        registry_->TransferSucceeded(IdOf(p), IdOf(d), now_);
        if (pair != pairs_.end()) pair->second.breaker.Succeeded();
        break;
      case 7:
        if (IdOf(p) == kNoWorker || IdOf(d) == kNoWorker) break;
        registry_->AttemptSent(IdOf(p), IdOf(d), now_);
        if (pair != pairs_.end()) pair->second.breaker.Sent(now_);
        break;
    }
  }

  void Check() const {
    int paired = 0;
    for (const auto& [key, pair] : pairs_) paired += pair.paired;
    EXPECT_EQ(registry_->NumPairs(), paired);
    EXPECT_EQ(registry_->Links(now_).size(), pairs_.size());
    for (const WorkerSnapshot& worker : registry_->snapshot().workers) {
      std::map<WorkerId, double> links;
      for (const auto& [key, pair] : pairs_) {
        if (IdOf(key.first) != worker.id || !pair.paired) continue;
        if (pair.breaker.Allows(now_)) links[IdOf(key.second)] = pair.bandwidth;
      }
      ASSERT_EQ(worker.paired_with.size(), links.size());
      ASSERT_EQ(worker.link_bandwidth.size(), links.size());
      size_t i = 0;
      for (const auto& [id, bandwidth] : links) {  // by id
        EXPECT_EQ(worker.paired_with[i], id);
        EXPECT_EQ(worker.link_bandwidth[i], bandwidth);
        ++i;
      }
    }
  }

  ServedModel model_;
  absl::Time now_ = absl::UnixEpoch() + absl::Seconds(100);
  std::optional<WorkerRegistry> registry_;
  std::map<int, v1::WorkerHello> hellos_;
  std::map<std::pair<int, int>, Pair> pairs_;
  std::mt19937 random_{21};
};

TEST_F(RegistryPairsTest, TheSnapshotIsWhatTheEventsComeTo) {
  int asked = 0;
  for (int step = 0; step < 5000; ++step) {
    Step();
    // As the router's loop does in each turn.
    for (const WorkerRegistry::PairCommand& command :
         registry_->DuePairs(now_)) {
      ++asked;
      const auto decode =
          std::find_if(hellos_.begin(), hellos_.end(), [&](const auto& entry) {
            return entry.second.incarnation() ==
                   command.pair.decode_incarnation();
          });
      ASSERT_NE(decode, hellos_.end());
      const auto pair = pairs_.find({command.prefill, decode->first});
      ASSERT_NE(pair, pairs_.end());
      EXPECT_FALSE(pair->second.paired);
    }
    EXPECT_GT(registry_->NextDue(now_), now_);
    Check();
    if (HasFailure()) FAIL() << "step " << step;
  }
  EXPECT_GT(asked, 100);
}

// Without a turn in between: what time brings comes with the next one.
TEST_F(RegistryPairsTest, EventsAloneKeepTheSnapshot) {
  for (int i = 0; i < kWorkers; ++i) Connect(i);
  for (const auto& [key, pair] : pairs_) {
    v1::PairReport report;
    report.set_decode_incarnation(hellos_[key.second].incarnation());
    report.set_paired(true);
    registry_->PairReported(key.first, report, now_);
  }
  for (auto& [key, pair] : pairs_) pair.paired = true;
  Check();
  Lose(kPrefill + 1);
  Check();
  Lose(0);
  Check();
  EXPECT_EQ(registry_->NumPairs(), (kPrefill - 1) * (kDecode - 1));
  Connect(0);
  Check();
}

}  // namespace
}  // namespace baton::router
