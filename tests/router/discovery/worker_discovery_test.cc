#include "router/discovery/worker_discovery.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/mutex.h"
#include "common/bounded_queue.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;

// A table; a name that is not in it blocks until Stop.
class TableResolver final : public NameResolver {
 public:
  void Set(const std::string& name, Answer answer) {
    absl::MutexLock lock(&mu_);
    table_.insert_or_assign(name, std::move(answer));
  }

  std::vector<Answer> Resolve(const std::vector<std::string>& names,
                              absl::Duration) override {
    absl::MutexLock lock(&mu_);
    std::vector<Answer> answers;
    for (const std::string& name : names) {
      const auto it = table_.find(name);
      if (it == table_.end()) {
        mu_.Await(absl::Condition(&stopped_));
        return std::vector<Answer>(names.size(), absl::CancelledError(""));
      }
      answers.push_back(it->second);
    }
    return answers;
  }

  void Stop() override {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }

 private:
  absl::Mutex mu_;
  std::map<std::string, Answer> table_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

class WorkerDiscoveryTest : public testing::Test {
 protected:
  void Start(const std::vector<std::string>& texts) {
    std::vector<DnsTarget> targets;
    for (const std::string& text : texts) {
      const auto target = ParseDnsTarget(text);
      ASSERT_TRUE(target.ok()) << target.status();
      targets.push_back(*target);
    }
    WorkerDiscovery::Options options;
    options.interval = absl::Milliseconds(1);
    options.resolver = resolver_;
    auto discovery = WorkerDiscovery::Start(
        options, std::move(targets), [this](FoundWorkers found) {
          // Once more than the test looks at: the rest is of no interest.
          (void)found_.TryPush(std::move(found));
        });
    ASSERT_TRUE(discovery.ok()) << discovery.status();
    discovery_ = *std::move(discovery);
  }

  // The next look-up's; fails the test when none comes.
  FoundWorkers Next() {
    if (next_.empty()) next_ = found_.DrainFor(absl::Seconds(30));
    if (next_.empty()) {
      ADD_FAILURE() << "nothing was looked up";
      return {.addresses = absl::DeadlineExceededError("")};
    }
    FoundWorkers found = std::move(next_.front());
    next_.erase(next_.begin());
    return found;
  }

  const std::shared_ptr<TableResolver> resolver_ =
      std::make_shared<TableResolver>();
  BoundedQueue<FoundWorkers> found_{64};
  std::vector<FoundWorkers> next_;
  std::unique_ptr<WorkerDiscovery> discovery_;
};

TEST_F(WorkerDiscoveryTest, TellsOfEachTargetInTurn) {
  resolver_->Set("decode", std::vector<std::string>{"10.0.0.1", "fd00::1"});
  resolver_->Set("prefill", absl::NotFoundError("it has no addresses"));
  Start({"dns:prefill:80", "dns:decode:90"});
  for (int round = 0; round < 3; ++round) {
    const FoundWorkers prefill = Next();
    EXPECT_EQ(prefill.source, 0);
    EXPECT_TRUE(absl::IsNotFound(prefill.addresses.status()));
    const FoundWorkers decode = Next();
    EXPECT_EQ(decode.source, 1);
    ASSERT_TRUE(decode.addresses.ok());
    EXPECT_THAT(*decode.addresses, ElementsAre("10.0.0.1:90", "[fd00::1]:90"));
  }
}

TEST_F(WorkerDiscoveryTest, TellsWhatHasChanged) {
  resolver_->Set("decode", std::vector<std::string>{"10.0.0.1"});
  Start({"dns:decode:90"});
  EXPECT_TRUE(Next().addresses.ok());
  resolver_->Set("decode", absl::UnavailableError("no server"));
  FoundWorkers found = Next();
  while (found.addresses.ok() && !HasFailure()) found = Next();
  EXPECT_EQ(found.addresses.status().message(), "no server");
}

TEST_F(WorkerDiscoveryTest, EndsAlthoughALookUpBlocks) {
  Start({"dns:blocks:90"});
  discovery_.reset();
  EXPECT_EQ(found_.size(), 0u);
}

TEST_F(WorkerDiscoveryTest, WithoutNamesNothingIsAsked) {
  Start({});
  discovery_.reset();
  EXPECT_EQ(found_.size(), 0u);
}

}  // namespace
}  // namespace baton::router
