#include "worker/role_switch.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/manual_clock.h"

namespace baton::worker {
namespace {

using ::testing::HasSubstr;

class RoleSwitchTest : public testing::Test {
 protected:
  test::ManualClock clock_;
  metrics::Metrics metrics_{metrics::Labels{{"worker", "w"}}};
  RoleSwitch roles_{v1::WORKER_ROLE_DECODE, &metrics_, &clock_};
};

TEST_F(RoleSwitchTest, OneSideStandsBy) {
  EXPECT_TRUE(roles_.standby(v1::WORKER_ROLE_PREFILL));
  EXPECT_FALSE(roles_.standby(v1::WORKER_ROLE_DECODE));
  EXPECT_TRUE(roles_.Set(v1::WORKER_ROLE_PREFILL, "prompts"));
  EXPECT_TRUE(roles_.standby(v1::WORKER_ROLE_DECODE));
  // Until the streams are over, or for a minute.
  roles_.ObserveStandby(/*empty=*/false);
  EXPECT_TRUE(roles_.standby(v1::WORKER_ROLE_PREFILL));
  clock_.Advance(absl::Seconds(60));
  EXPECT_FALSE(roles_.standby(v1::WORKER_ROLE_PREFILL));
  roles_.Set(v1::WORKER_ROLE_DECODE, "");
  EXPECT_FALSE(roles_.standby(v1::WORKER_ROLE_DECODE));
  clock_.Advance(absl::Seconds(3));
  roles_.Set(v1::WORKER_ROLE_PREFILL, "");
  roles_.ObserveStandby(/*empty=*/true);
  EXPECT_FALSE(roles_.standby(v1::WORKER_ROLE_PREFILL));
  EXPECT_TRUE(roles_.standby(v1::WORKER_ROLE_DECODE));
  const std::string text = metrics_.Text();
  EXPECT_THAT(text, HasSubstr("baton_role_switch_total{worker=\"w\",from="
                              "\"decode\",to=\"prefill\"} 2"));
  EXPECT_THAT(text, HasSubstr("baton_role_switch_total{worker=\"w\",from="
                              "\"prefill\",to=\"decode\"} 1"));
  EXPECT_THAT(text,
              HasSubstr("baton_worker_role{worker=\"w\",role=\"prefill\"} 1"));
  EXPECT_THAT(text,
              HasSubstr("baton_worker_role{worker=\"w\",role=\"decode\"} 0"));
}

TEST_F(RoleSwitchTest, NotBackAndForthButAlwaysToDecode) {
  EXPECT_TRUE(roles_.Set(v1::WORKER_ROLE_PREFILL, ""));
  EXPECT_TRUE(roles_.Set(v1::WORKER_ROLE_DECODE, ""));
  EXPECT_FALSE(roles_.Set(v1::WORKER_ROLE_PREFILL, ""));
  EXPECT_EQ(roles_.role(), v1::WORKER_ROLE_DECODE);
  clock_.Advance(RoleSwitch::kLeastTime);
  EXPECT_TRUE(roles_.Set(v1::WORKER_ROLE_PREFILL, ""));
  // What it is already is no change.
  EXPECT_TRUE(roles_.Set(v1::WORKER_ROLE_PREFILL, ""));
  EXPECT_THAT(metrics_.Text(), HasSubstr("from=\"decode\",to=\"prefill\"} 2"));
}

TEST_F(RoleSwitchTest, ARoleThatThereIsNotIsIgnored) {
  EXPECT_FALSE(roles_.Set(v1::WORKER_ROLE_UNSPECIFIED, ""));
  EXPECT_EQ(roles_.role(), v1::WORKER_ROLE_DECODE);
  v1::SetRole wish;
  wish.set_role(static_cast<v1::WorkerRole>(77));
  TakeSetRole(wish, &roles_);
  EXPECT_EQ(roles_.role(), v1::WORKER_ROLE_DECODE);
  // A worker of one kind.
  TakeSetRole(wish, nullptr);
}

TEST_F(RoleSwitchTest, ToldIsHowLongTheOldRoleLasted) {
  const auto count = [this] {
    const std::string text = metrics_.Text();
    const std::string name = "baton_role_switch_seconds_count{worker=\"w\"} ";
    return text.substr(text.find(name) + name.size(), 1);
  };
  roles_.ObserveStandby(/*empty=*/true);
  EXPECT_EQ(count(), "0");
  roles_.Set(v1::WORKER_ROLE_PREFILL, "");
  roles_.ObserveStandby(/*empty=*/false);
  EXPECT_EQ(count(), "0");
  clock_.Advance(absl::Seconds(7));
  roles_.ObserveStandby(/*empty=*/true);
  roles_.ObserveStandby(/*empty=*/true);
  EXPECT_EQ(count(), "1");
  EXPECT_THAT(metrics_.Text(),
              HasSubstr("baton_role_switch_seconds_sum{worker=\"w\"} 7"));
}

}  // namespace
}  // namespace baton::worker
