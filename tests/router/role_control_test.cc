// The registry's view of dual workers, and what role control asks them for.
#include "router/role_control.h"

#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/worker_registry.h"
#include "tests/support/fake_worker.h"

namespace baton::router {
namespace {

using scheduling::kNoWorker;
using scheduling::WorkerId;
using scheduling::WorkerRole;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RoleControlTest : public testing::Test {
 protected:
  RoleControlTest() {
    model_.architecture = "LlamaForCausalLM";
    model_.vocab_size = 2048;
    model_.num_layers = 6;
    model_.max_context = 512;
    registry_.emplace(model_, WorkerRegistry::Options(), now_);
    control_.emplace(RoleControl::Options(), &*registry_);
  }

  // Its prefill side's index; its decode side's is the next one.
  int AddDual(uint64_t process) {
    const std::string name = "dual-" + std::to_string(process);
    const int prefill = registry_->Add(WorkerRole::kPrefill, name + ":1");
    const int decode = registry_->Add(WorkerRole::kDecode, name + ":2");
    Connect(prefill, v1::WORKER_ROLE_PREFILL, name, process);
    Connect(decode, v1::WORKER_ROLE_DECODE, name, process);
    return prefill;
  }
  void Connect(int index, v1::WorkerRole role, const std::string& name,
               uint64_t process) {
    v1::WorkerHello hello = test::FakeWorker::Hello(role, name);
    hello.set_process(process);
    hello.set_token_budget(512);
    hello.set_itl_target_ms(50);
    registry_->Connected(index, hello, now_);
  }
  WorkerId IdOf(int index) const { return registry_->workers()[index].id; }

  // As a worker that takes 15 ms for a step and 0.5 ms for each prompt token.
  void Report(int index, bool standby, WorkerRole role) {
    v1::LoadReport load;
    load.set_standby(standby);
    load.set_role(role == WorkerRole::kPrefill ? v1::WORKER_ROLE_PREFILL
                                               : v1::WORKER_ROLE_DECODE);
    load.set_free_blocks(1000);
    load.mutable_step_cost()->set_fixed(15e-3);
    load.mutable_step_cost()->set_per_token(5e-4);
    load.mutable_step_cost()->set_per_sequence(5e-4);
    registry_->Reported(index, load, now_);
  }
  void ReportRole(int prefill, WorkerRole role) {
    Report(prefill, role != WorkerRole::kPrefill, role);
    Report(prefill + 1, role != WorkerRole::kDecode, role);
  }
  bool Usable(int index) const {
    for (const auto& worker : registry_->snapshot().workers) {
      if (worker.id == IdOf(index)) return worker.usable;
    }
    return false;
  }

  // What is asked for within some seconds of such requests; the workers do it.
  std::vector<RoleControl::Command> Run(int seconds, int prompt, int output) {
    std::vector<RoleControl::Command> all;
    for (int i = 0; i < seconds; ++i) {
      now_ += absl::Seconds(1);
      for (int j = 0; j < 3; ++j) {
        control_->Began({.computed_tokens = prompt,
                         .prompt_tokens = prompt,
                         .itl_target_seconds = 0.05},
                        now_);
        control_->Ended({.computed_tokens = prompt,
                         .prompt_tokens = prompt,
                         .output_tokens = output,
                         .itl_target_seconds = 0.05,
                         .begun = true},
                        now_);
      }
      for (auto& command : control_->Due(now_)) {
        const int index = registry_->IndexOf(command.worker);
        ReportRole(index - index % 2,
                   command.set_role.role() == v1::WORKER_ROLE_PREFILL
                       ? WorkerRole::kPrefill
                       : WorkerRole::kDecode);
        all.push_back(std::move(command));
      }
    }
    return all;
  }
  int NumInRole(WorkerRole role) const {
    int count = 0;
    for (const auto& state : registry_->RoleStates())
      count += state.role == role;
    return count;
  }

  ServedModel model_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  std::optional<WorkerRegistry> registry_;
  std::optional<RoleControl> control_;
};

TEST_F(RoleControlTest, TheSideThatStandsByGetsNoRequests) {
  const int dual = AddDual(7);
  // Not known yet: both may.
  EXPECT_TRUE(Usable(dual));
  EXPECT_TRUE(Usable(dual + 1));
  ReportRole(dual, WorkerRole::kDecode);
  EXPECT_FALSE(Usable(dual));
  EXPECT_TRUE(Usable(dual + 1));
  EXPECT_EQ(registry_->WhyUnusable(dual), "stands by, it has the other role");
  EXPECT_TRUE(registry_->StandsBy(dual, now_));
  EXPECT_FALSE(registry_->StandsBy(dual + 1, now_));
  EXPECT_EQ(registry_->num_role_changes(), 1);
  ReportRole(dual, WorkerRole::kPrefill);
  EXPECT_TRUE(Usable(dual));
  EXPECT_FALSE(Usable(dual + 1));
  EXPECT_FALSE(registry_->CouldPlace());
  EXPECT_THAT(registry_->WhyNot(), ::testing::HasSubstr("stands by"));
}

TEST_F(RoleControlTest, AWorkerMayHaveARoleAndTakeNoRequestsYet) {
  const int dual = AddDual(7);
  Report(dual, /*standby=*/true, WorkerRole::kPrefill);
  Report(dual + 1, /*standby=*/true, WorkerRole::kPrefill);
  EXPECT_FALSE(Usable(dual));
  EXPECT_FALSE(Usable(dual + 1));
  EXPECT_EQ(registry_->WhyUnusable(dual),
            "stands by until its streams are over");
  ASSERT_THAT(registry_->RoleStates(), SizeIs(1));
  EXPECT_EQ(registry_->RoleStates()[0].role, WorkerRole::kPrefill);
  EXPECT_TRUE(registry_->RoleStates()[0].dual);
}

TEST_F(RoleControlTest, TheSidesOfOneWorkerAreNotPaired) {
  const int first = AddDual(7);
  const int second = AddDual(8);
  std::vector<std::pair<int, std::string>> asked;
  for (const auto& command : registry_->DuePairs(now_)) {
    asked.emplace_back(command.prefill, command.pair.data_address());
  }
  EXPECT_THAT(asked, SizeIs(2));
  EXPECT_THAT(asked, ::testing::UnorderedElementsAre(
                         ::testing::Pair(first, ::testing::_),
                         ::testing::Pair(second, ::testing::_)));
}

TEST_F(RoleControlTest, ADualWorkerIsCountedOnceInItsRole) {
  const int dual = AddDual(7);
  const int plain = registry_->Add(WorkerRole::kPrefill, "plain:1");
  Connect(plain, v1::WORKER_ROLE_PREFILL, "plain", /*process=*/0);
  ReportRole(dual, WorkerRole::kDecode);
  const auto states = registry_->RoleStates();
  ASSERT_THAT(states, SizeIs(2));
  EXPECT_TRUE(states[0].dual);
  EXPECT_EQ(states[0].role, WorkerRole::kDecode);
  EXPECT_FALSE(states[1].dual);
  EXPECT_EQ(states[1].role, WorkerRole::kPrefill);
  EXPECT_EQ(registry_->num_dual(), 2);
  // Half of it is lost: what is left serves in its role, or not at all.
  registry_->Lost(dual);
  ASSERT_THAT(registry_->RoleStates(), SizeIs(2));
  EXPECT_FALSE(registry_->RoleStates()[0].dual);
  ReportRole(dual, WorkerRole::kPrefill);
  EXPECT_THAT(registry_->RoleStates(), SizeIs(1));
}

TEST_F(RoleControlTest, WithoutADecodeWorkerOneIsAskedForSoon) {
  for (uint64_t process : {1, 2}) {
    ReportRole(AddDual(process), WorkerRole::kPrefill);
  }
  // Another one may be about to join.
  EXPECT_THAT(control_->Due(now_), IsEmpty());
  now_ += absl::Seconds(1);
  EXPECT_THAT(control_->Due(now_), IsEmpty());
  now_ += absl::Seconds(1);
  const auto commands = control_->Due(now_);
  ASSERT_THAT(commands, SizeIs(1));
  EXPECT_EQ(commands[0].set_role.role(), v1::WORKER_ROLE_DECODE);
  EXPECT_NE(registry_->IndexOf(commands[0].worker), -1);
}

TEST_F(RoleControlTest, RolesFollowWhatRequestsAreLike) {
  for (uint64_t process = 1; process <= 8; ++process) {
    ReportRole(AddDual(process),
               process <= 4 ? WorkerRole::kPrefill : WorkerRole::kDecode);
  }
  // Prompts take 0.5 s, answers next to nothing.
  Run(120, /*prompt=*/1000, /*output=*/4);
  EXPECT_GE(NumInRole(WorkerRole::kPrefill), 6);
  EXPECT_GE(NumInRole(WorkerRole::kDecode), 1);
  // Prompts take 5 ms, answers 200 steps.
  EXPECT_FALSE(Run(240, /*prompt=*/10, /*output=*/200).empty());
  EXPECT_GE(NumInRole(WorkerRole::kDecode), 7);
  // And that is it.
  EXPECT_THAT(Run(60, /*prompt=*/10, /*output=*/200), IsEmpty());
}

TEST_F(RoleControlTest, NobodyIsAskedWhereRolesAreFixedOrThereIsNoDualWorker) {
  EXPECT_EQ(control_->NextDue(), absl::InfiniteFuture());
  EXPECT_THAT(Run(30, 1000, 4), IsEmpty());
  for (uint64_t process : {1, 2}) {
    ReportRole(AddDual(process), WorkerRole::kPrefill);
  }
  EXPECT_LT(control_->NextDue(), absl::InfiniteFuture());
  control_->Due(now_);
  EXPECT_EQ(control_->NextDue(), now_ + absl::Seconds(1));
  control_.emplace(RoleControl::Options{.enabled = false}, &*registry_);
  EXPECT_EQ(control_->NextDue(), absl::InfiniteFuture());
  EXPECT_THAT(Run(30, 1000, 4), IsEmpty());
}

// Where decode workers may not compute prompts, nothing is served without a
// prefill worker either.
TEST_F(RoleControlTest, WithoutLocalPrefillThereIsAlwaysAPrefillWorker) {
  registry_.emplace(model_, WorkerRegistry::Options{.local_prefill = false},
                    now_);
  control_.emplace(RoleControl::Options(), &*registry_);
  for (uint64_t process : {1, 2}) {
    ReportRole(AddDual(process), WorkerRole::kDecode);
  }
  EXPECT_THAT(control_->Due(now_), IsEmpty());
  // It becomes one, and stays so when one pool would carry more.
  Run(120, /*prompt=*/10, /*output=*/200);
  EXPECT_EQ(NumInRole(WorkerRole::kPrefill), 1);
  EXPECT_EQ(NumInRole(WorkerRole::kDecode), 1);
}

}  // namespace
}  // namespace baton::router
