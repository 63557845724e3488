#include "router/access/access_control.h"

#include <sys/resource.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "router/access/key_usage.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/test_certificates.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;

absl::StatusCode CodeOf(
    const absl::StatusOr<std::unique_ptr<KeyGrant>>& grant) {
  return grant.status().code();
}

class AccessControlTest : public testing::Test {
 protected:
  // One line of the file; the key of "alice" is "alice-key".
  static std::string Line(const std::string& name, const KeyLimits& limits) {
    KeyEntry entry;
    entry.name = name;
    entry.hash = HashKey(name + "-key");
    entry.limits = limits;
    return FormatKeyLine(entry) + "\n";
  }

  void Write(const std::string& text) { test::WriteFileAtOnce(file_, text); }
  void Open(const std::string& text) {
    Write(text);
    auto control = AccessControl::Open(file_, &clock_, &metrics_);
    ASSERT_TRUE(control.ok()) << control.status();
    control_ = *std::move(control);
  }

  absl::StatusOr<std::unique_ptr<KeyGrant>> Admit(const std::string& name) {
    retry_after_ = absl::ZeroDuration();
    return control_->Admit(absl::StrCat("Bearer ", name, "-key"),
                           &retry_after_);
  }
  // Of a request that ends at once.
  absl::StatusCode Try(const std::string& name) { return CodeOf(Admit(name)); }

  double Rejections(const std::string& reason, const std::string& key) {
    return metrics_
        .Counter("baton_api_key_rejections_total", "",
                 {{"reason", reason}, {"key", key}})
        ->Value();
  }

  static constexpr absl::StatusCode kOk = absl::StatusCode::kOk;
  static constexpr absl::StatusCode kUnauthenticated =
      absl::StatusCode::kUnauthenticated;
  static constexpr absl::StatusCode kExhausted =
      absl::StatusCode::kResourceExhausted;

  const test::ScratchDir scratch_;
  const std::string file_ = scratch_.path() + "/keys";
  test::ManualClock clock_;
  metrics::Metrics metrics_{{}};
  std::unique_ptr<AccessControl> control_;
  absl::Duration retry_after_;
};

TEST_F(AccessControlTest, KeysBelongToTenants) {
  const auto tenant = [&](const std::string& name) {
    const auto grant = Admit(name);
    return grant.ok() ? (*grant)->tenant() : grant.status().ToString();
  };
  std::string line = Line("alice", {});
  line.insert(line.size() - 1, " tenant=team");
  Open(line + Line("bob", {}));
  EXPECT_EQ(tenant("alice"), "team");
  EXPECT_EQ(tenant("bob"), "bob");
  Write(Line("alice", {}) + Line("bob", {}));
  clock_.Advance(absl::Seconds(60));
  EXPECT_EQ(tenant("alice"), "alice");
}

TEST_F(AccessControlTest, KeysHaveRights) {
  std::string line = Line("alice", {});
  line.insert(line.size() - 1, " class=batch models=sql");
  Open(line + Line("bob", {}));
  const auto alice = Admit("alice");
  ASSERT_TRUE(alice.ok()) << alice.status();
  EXPECT_TRUE((*alice)->rights().batch_only);
  const auto looked = control_->RightsOf("Bearer alice-key");
  ASSERT_TRUE(looked.ok()) << looked.status();
  EXPECT_EQ(**looked, (*alice)->rights());
  EXPECT_EQ((*Admit("bob"))->rights(), KeyRights());
  EXPECT_EQ(control_->RightsOf("Bearer carol-key").status().code(),
            kUnauthenticated);
  // Those of a new file are for new requests; who came in keeps his.
  Write(Line("alice", {}) + Line("bob", {}));
  clock_.Advance(absl::Seconds(60));
  EXPECT_EQ((*Admit("alice"))->rights(), KeyRights());
  EXPECT_TRUE((*alice)->rights().batch_only);
}

TEST_F(AccessControlTest, WithoutAFileEveryoneMay) {
  const auto control = AccessControl::Open("", &clock_);
  ASSERT_TRUE(control.ok()) << control.status();
  EXPECT_FALSE((*control)->required());
  EXPECT_TRUE((*control)->Authenticate("").ok());
  for (const char* authorization : {"", "Bearer x", "nonsense"}) {
    absl::Duration retry_after;
    auto grant = (*control)->Admit(authorization, &retry_after);
    ASSERT_TRUE(grant.ok()) << grant.status();
    EXPECT_EQ((*grant)->name(), "");
    EXPECT_EQ((*grant)->max_tokens(), 0);
    EXPECT_EQ((*grant)->rights(), KeyRights());
    EXPECT_EQ(**(*control)->RightsOf(authorization), KeyRights());
    (*grant)->CountTokens(1 << 20);
  }
}

TEST_F(AccessControlTest, KnowsTheKeysOfTheFile) {
  Open(Line("alice", {}) + Line("bob", {.max_tokens = 7}));
  EXPECT_TRUE(control_->required());
  const auto alice = Admit("alice");
  ASSERT_TRUE(alice.ok()) << alice.status();
  EXPECT_EQ((*alice)->name(), "alice");
  EXPECT_EQ((*alice)->max_tokens(), 0);
  const auto bob = Admit("bob");
  ASSERT_TRUE(bob.ok()) << bob.status();
  EXPECT_EQ((*bob)->name(), "bob");
  EXPECT_EQ((*bob)->max_tokens(), 7);
  EXPECT_EQ(Try("carol"), kUnauthenticated);
  EXPECT_TRUE(control_->Authenticate("Bearer alice-key").ok());
  EXPECT_EQ(control_->Authenticate("Bearer carol-key").code(),
            kUnauthenticated);
}

TEST_F(AccessControlTest, ReadsTheHeaderAsClientsSendIt) {
  Open(Line("alice", {}));
  for (const char* good :
       {"Bearer alice-key", "bearer alice-key", "BEARER   alice-key  "}) {
    EXPECT_TRUE(control_->Authenticate(good).ok()) << good;
  }
  const std::string long_key(100'000, 'a');
  for (const std::string& bad : std::vector<std::string>{
           "", " ", "Bearer", "Bearer ", "Bearer  ", "Beareralice-key",
           "alice-key", "Basic alice-key", "Bearer alice-key2",
           "Bearer alice-ke", "Bearer ALICE-KEY", "Bearer " + long_key}) {
    const absl::Status status = control_->Authenticate(bad);
    EXPECT_EQ(status.code(), kUnauthenticated) << bad.substr(0, 50);
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("alice")));
  }
  EXPECT_EQ(Rejections("unknown", ""), 3);
  EXPECT_EQ(Rejections("missing", ""), 9);
}

TEST_F(AccessControlTest, LimitsRequestsAtATime) {
  Open(Line("alice", {.max_concurrent = 2}) + Line("bob", {}));
  auto one = Admit("alice");
  auto two = Admit("alice");
  ASSERT_TRUE(one.ok() && two.ok());
  const auto three = Admit("alice");
  EXPECT_EQ(CodeOf(three), kExhausted);
  EXPECT_THAT(std::string(three.status().message()),
              HasSubstr("\"alice\" has reached its limit of 2 requests at a "
                        "time"));
  EXPECT_GT(retry_after_, absl::ZeroDuration());
  EXPECT_EQ(Rejections("max_concurrent", "alice"), 1);
  EXPECT_EQ(Try("bob"), kOk);  // others go on
  one->reset();
  auto again = Admit("alice");
  EXPECT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Try("alice"), kExhausted);
}

TEST_F(AccessControlTest, LimitsRequestsPerMinute) {
  Open(Line("alice", {.requests_per_minute = 3}));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Try("alice"), kOk) << i;
  EXPECT_EQ(Try("alice"), kExhausted);
  EXPECT_EQ(retry_after_, absl::Seconds(20));
  EXPECT_EQ(Rejections("requests_per_minute", "alice"), 1);
  clock_.Advance(retry_after_ - absl::Milliseconds(1));
  EXPECT_EQ(Try("alice"), kExhausted);
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(Try("alice"), kOk);  // comes when it was told to
  EXPECT_EQ(Try("alice"), kExhausted);
  // A quiet hour gives no more than a minute's.
  clock_.Advance(absl::Hours(1));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Try("alice"), kOk) << i;
  EXPECT_EQ(Try("alice"), kExhausted);
}

TEST_F(AccessControlTest, WhatIsRefusedCostsNothing) {
  Open(Line("alice", {.max_concurrent = 1, .requests_per_minute = 2}));
  auto running = Admit("alice");
  ASSERT_TRUE(running.ok());
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Try("alice"), kExhausted);
  running->reset();
  EXPECT_EQ(Try("alice"), kOk);
  EXPECT_EQ(Try("alice"), kExhausted);
}

TEST_F(AccessControlTest, AKeyInDebtForTokensWaits) {
  Open(Line("alice", {.tokens_per_minute = 600}));
  auto grant = Admit("alice");
  ASSERT_TRUE(grant.ok());
  (*grant)->CountTokens(200);
  EXPECT_EQ(Try("alice"), kOk);  // 400 are left
  (*grant)->CountTokens(1000);   // more than that: it may end, but then
  EXPECT_EQ(Try("alice"), kExhausted);
  EXPECT_EQ(Rejections("tokens_per_minute", "alice"), 1);
  // 600 below zero, 10 a second.
  EXPECT_EQ(retry_after_, absl::Milliseconds(60'100));
  clock_.Advance(absl::Seconds(60));
  EXPECT_EQ(Try("alice"), kExhausted);
  clock_.Advance(absl::Milliseconds(100));
  EXPECT_EQ(Try("alice"), kOk);
}

TEST_F(AccessControlTest, ACallOfManyRequestsCountsAsMany) {
  Open(Line("alice", {.max_concurrent = 8, .requests_per_minute = 10}));
  auto grant = Admit("alice");
  ASSERT_TRUE(grant.ok());
  const auto more = [&](int32_t count) {
    return control_->AdmitMore(grant->get(), count, &retry_after_).code();
  };
  // More than ever at a time: waiting would not help.
  EXPECT_EQ(more(8), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(more(5), kOk);
  auto other = Admit("alice");
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(more(2), kExhausted);  // 7 run
  EXPECT_EQ(Rejections("max_concurrent", "alice"), 2);
  EXPECT_EQ(more(1), kOk);
  EXPECT_EQ(Try("alice"), kExhausted);
  other->reset();
  EXPECT_EQ(
      metrics_.Counter("baton_api_key_requests_total", "", {{"key", "alice"}})
          ->Value(),
      8);
  grant->reset();  // gives all seven back
  EXPECT_EQ(Try("alice"), kOk);
  // One is left of the minute's ten.
  grant = Admit("alice");
  ASSERT_TRUE(grant.ok());
  EXPECT_EQ(more(3), kExhausted);
  EXPECT_EQ(retry_after_, absl::Seconds(18));
  clock_.Advance(retry_after_);
  EXPECT_EQ(more(3), kOk);
}

TEST_F(AccessControlTest, MoreThanAMinuteBringsLeavesADebt) {
  Open(Line("alice", {.requests_per_minute = 3}));
  auto grant = Admit("alice");
  ASSERT_TRUE(grant.ok());
  EXPECT_EQ(control_->AdmitMore(grant->get(), 6, &retry_after_).code(),
            kExhausted);
  clock_.Advance(absl::Seconds(20));  // full again
  EXPECT_EQ(control_->AdmitMore(grant->get(), 6, &retry_after_).code(), kOk);
  EXPECT_EQ(Try("alice"), kExhausted);
  EXPECT_EQ(retry_after_, absl::Seconds(80));
}

// What could not be read, but may be a moment later, is read a moment later.
TEST_F(AccessControlTest, AFailureThatPassesDoesNotHideAChange) {
  Open(Line("alice", {}));
  Write(Line("bob", {}));
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  clock_.Advance(absl::Seconds(1));
  const absl::StatusCode meanwhile = Try("alice");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(meanwhile, kOk);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(Try("alice"), kUnauthenticated);
  EXPECT_EQ(Try("bob"), kOk);
}

TEST_F(AccessControlTest, CountsWhatKeysUse) {
  Open(Line("alice", {}) + Line("bob", {}));
  auto grant = Admit("alice");
  ASSERT_TRUE(grant.ok());
  (*grant)->CountTokens(5);
  (*grant)->CountTokens(0);
  (*grant)->CountTokens(37);
  const auto value = [&](const std::string& name, const std::string& key) {
    return metrics_.Counter(name, "", {{"key", key}})->Value();
  };
  EXPECT_EQ(value("baton_api_key_requests_total", "alice"), 1);
  EXPECT_EQ(value("baton_api_key_tokens_total", "alice"), 42);
  EXPECT_EQ(value("baton_api_key_requests_total", "bob"), 0);
}

TEST_F(AccessControlTest, TakesANewFileASecondLaterAtTheLatest) {
  Open(Line("alice", {}));
  Write(Line("bob", {}));
  EXPECT_EQ(Try("alice"), kOk);
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(Try("alice"), kUnauthenticated);
  EXPECT_EQ(Try("bob"), kOk);
}

TEST_F(AccessControlTest, ABrokenFileKeepsTheKeysOfBefore) {
  Open(Line("alice", {}));
  for (const std::string& broken :
       {std::string("alice sha256:00\n"), std::string(),
        Line("bob", {}) + "carol\n"}) {
    Write(broken);
    clock_.Advance(absl::Seconds(1));
    EXPECT_EQ(Try("alice"), kOk);
    EXPECT_EQ(Try("bob"), kUnauthenticated);
  }
}

TEST_F(AccessControlTest, UsageGoesOnWhenTheFileIsReadAnew) {
  Open(Line("alice", {.max_concurrent = 1, .requests_per_minute = 10}));
  auto running = Admit("alice");
  ASSERT_TRUE(running.ok());
  Write(Line("alice", {.max_concurrent = 2, .requests_per_minute = 2}) +
        Line("bob", {}));
  clock_.Advance(absl::Seconds(1));
  auto second = Admit("alice");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(Try("alice"), kExhausted);  // two at a time
  second->reset();
  EXPECT_EQ(Try("alice"), kOk);
  EXPECT_EQ(Try("alice"), kExhausted);  // two a minute
  // Gone from the file, its requests end all the same.
  Write(Line("bob", {}));
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(Try("alice"), kUnauthenticated);
  (*running)->CountTokens(3);
  EXPECT_EQ((*running)->name(), "alice");
}

TEST_F(AccessControlTest, AGrantMayOutliveTheControl) {
  Open(Line("alice", {.max_concurrent = 1}));
  auto grant = Admit("alice");
  ASSERT_TRUE(grant.ok());
  control_.reset();
  EXPECT_EQ((*grant)->name(), "alice");
  (*grant)->CountTokens(1);
}

TEST_F(AccessControlTest, ErrorsOfTheFileNameIt) {
  EXPECT_THAT(
      std::string(AccessControl::Open(file_, &clock_).status().message()),
      HasSubstr(file_));
  Write(Line("alice", {}) + "bob sha256:1\n");
  EXPECT_THAT(
      std::string(AccessControl::Open(file_, &clock_).status().message()),
      HasSubstr(file_ + ":2: hash"));
}

TEST_F(AccessControlTest, ManyThreadsNeverExceedTheLimit) {
  Open(Line("alice", {.max_concurrent = 3}));
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  std::atomic<int> admitted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        absl::Duration retry_after;
        auto grant = control_->Admit("Bearer alice-key", &retry_after);
        if (!grant.ok()) continue;
        const int now = ++running;
        int before = most;
        while (before < now && !most.compare_exchange_weak(before, now)) {
        }
        ++admitted;
        (*grant)->CountTokens(1);
        --running;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(admitted, 0);
  EXPECT_LE(most, 3);
  std::vector<std::unique_ptr<KeyGrant>> grants;
  for (int i = 0; i < 3; ++i) {
    auto grant = Admit("alice");
    ASSERT_TRUE(grant.ok()) << grant.status();  // all were given back
    grants.push_back(*std::move(grant));
  }
}

TEST(MinuteBucketTest, WithoutALimitNeverWaits) {
  MinuteBucket bucket;
  const absl::Time now = absl::UnixEpoch();
  bucket.SetRate(0, now);
  bucket.Take(1'000'000, now);
  EXPECT_EQ(bucket.Wait(1, now), absl::ZeroDuration());
  // A limit that comes later begins full.
  bucket.SetRate(5, now);
  bucket.Take(4, now);
  EXPECT_EQ(bucket.Wait(1, now), absl::ZeroDuration());
  bucket.Take(1, now);
  EXPECT_EQ(bucket.Wait(1, now), absl::Seconds(12));
}

TEST(MinuteBucketTest, AnEarlierTimeTakesNothingBack) {
  MinuteBucket bucket;
  const absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  bucket.SetRate(60, now);
  bucket.Take(60, now);
  EXPECT_EQ(bucket.Wait(1, now - absl::Seconds(30)), absl::Seconds(1));
  EXPECT_EQ(bucket.Wait(1, now + absl::Seconds(1)), absl::ZeroDuration());
}

}  // namespace
}  // namespace baton::router
