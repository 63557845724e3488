#include "load_generator/runner.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/synchronization/mutex.h"
#include "common/clock.h"

namespace baton::load_generator {
namespace {

using workload::PlannedRequest;

std::vector<PlannedRequest> Plan(int count, absl::Duration gap) {
  std::vector<PlannedRequest> requests(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    requests[i].at = gap * i;
    requests[i].prompt_tokens = 10 + i;
    requests[i].output_tokens = 3;
  }
  return requests;
}

// Answers when the test says so, or at once.
class FakeTarget final : public Target {
 public:
  explicit FakeTarget(bool at_once) : at_once_(at_once) {}

  void Send(TargetRequest request,
            std::shared_ptr<TargetListener> listener) override {
    {
      absl::MutexLock lock(&mu_);
      prompts_.push_back(request.tokens.size());
      if (!at_once_) {
        open_.push_back(std::move(listener));
        most_open_ = std::max(most_open_, open_.size());
        return;
      }
    }
    Answer(listener.get());
  }

  // Answers one after the other until `count` were.
  void AnswerInTurn(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      std::shared_ptr<TargetListener> next;
      {
        const auto some = [this] { return !open_.empty(); };
        absl::MutexLock lock(&mu_);
        if (!mu_.AwaitWithTimeout(absl::Condition(&some), absl::Seconds(20))) {
          ADD_FAILURE() << "nothing came for 20 s";
          return;
        }
        next = open_.front();
        open_.erase(open_.begin());
      }
      Answer(next.get());
    }
  }

  std::vector<size_t> prompts() {
    absl::MutexLock lock(&mu_);
    return prompts_;
  }
  size_t most_open() {
    absl::MutexLock lock(&mu_);
    return most_open_;
  }

 private:
  static void Answer(TargetListener* listener) {
    const absl::Time now = Clock::Monotonic()->Now();
    for (int i = 0; i < 3; ++i) {
      listener->OnTokens(now + absl::Milliseconds(10 * i));
    }
    TargetEnd end;
    end.kind = OutcomeKind::kFinished;
    end.output_tokens = 3;
    listener->OnEnd(now + absl::Milliseconds(21), end);
  }

  const bool at_once_;
  absl::Mutex mu_;
  std::vector<size_t> prompts_;
  std::vector<std::shared_ptr<TargetListener>> open_;
  size_t most_open_ = 0;
};

TEST(RunnerTest, SendsEachAtItsTimeAndRecordsIt) {
  FakeTarget target(/*at_once=*/true);
  const auto plan = Plan(5, absl::Milliseconds(20));
  const std::vector<RequestRecord> records = RunWorkload(plan, &target, {});
  ASSERT_EQ(records.size(), 5u);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].planned_at, plan[i].at);
    EXPECT_GE(records[i].sent_at, plan[i].at);
    EXPECT_TRUE(records[i].finished());
    EXPECT_EQ(records[i].gaps_ms.size(), 2u);
    EXPECT_NEAR(records[i].gaps_ms[0], 10, 1e-3);
    EXPECT_EQ(records[i].tpot(), absl::Milliseconds(10));
    EXPECT_GE(records[i].ttft(), absl::ZeroDuration());
    EXPECT_EQ(target.prompts()[i], 10 + i);
  }
}

// The open loop does not wait for answers.
TEST(RunnerTest, OpenLoopSendsAllTheSame) {
  FakeTarget target(/*at_once=*/false);
  std::thread server([&] {
    // Only when all are there.
    while (target.prompts().size() < 8) std::this_thread::yield();
    target.AnswerInTurn(8);
  });
  const auto records = RunWorkload(Plan(8, absl::Milliseconds(1)), &target, {});
  server.join();
  EXPECT_EQ(records.size(), 8u);
  EXPECT_EQ(target.most_open(), 8u);
}

TEST(RunnerTest, ClosedLoopKeepsItsNumber) {
  FakeTarget target(/*at_once=*/false);
  std::thread server([&] { target.AnswerInTurn(20); });
  const auto records =
      RunWorkload(Plan(20, absl::Hours(1)), &target, {.concurrency = 3});
  server.join();
  EXPECT_EQ(records.size(), 20u);
  EXPECT_LE(target.most_open(), 3u);
  for (const RequestRecord& record : records) EXPECT_TRUE(record.finished());
}

TEST(RunnerTest, EndsWhenItIsTold) {
  FakeTarget target(/*at_once=*/false);
  RunOptions options;
  Progress last;
  options.on_progress = [&](const Progress& progress) {
    last = progress;
    return false;
  };
  const auto records = RunWorkload(Plan(3, absl::Hours(1)), &target, options);
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].end.kind, OutcomeKind::kFailed);
  EXPECT_EQ(last.planned, 3);
  EXPECT_EQ(last.sent, 1);
  EXPECT_EQ(last.open, 1);
}

}  // namespace
}  // namespace baton::load_generator
