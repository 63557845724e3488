// Real questions to a real name server, on the loopback.
#include "router/discovery/dns_resolver.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/await_that.h"
#include "tests/support/dns_server.h"

namespace baton::router {
namespace {

using test::DnsServer;
using ::testing::ElementsAre;

// A test that passes never waits so long.
constexpr absl::Duration kLong = absl::Seconds(60);

class DnsResolverTest : public testing::Test {
 protected:
  void SetUp() override {
    auto resolver = MakeDnsResolver(server_.address());
    ASSERT_TRUE(resolver.ok()) << resolver.status();
    resolver_ = *std::move(resolver);
  }

  NameResolver::Answer Resolve(const std::string& name,
                               absl::Duration timeout = kLong) {
    return resolver_->Resolve({name}, timeout)[0];
  }

  DnsServer server_;
  std::unique_ptr<NameResolver> resolver_;
};

TEST_F(DnsResolverTest, FindsAllAddressesOfEachName) {
  server_.Set("decode.test", {"10.0.0.2", "10.0.0.1", "10.0.0.2"});
  server_.Set("prefill.test", {"fd00::2", "fd00::1"});
  // Of both families: one address for each worker.
  server_.Set("both.test", {"10.0.0.1", "fd00::1"});
  const auto answers = resolver_->Resolve(
      {"decode.test", "prefill.test", "both.test", "no.test"}, kLong);
  ASSERT_EQ(answers.size(), 4u);
  ASSERT_TRUE(answers[0].ok()) << answers[0].status();
  EXPECT_THAT(*answers[0], ElementsAre("10.0.0.1", "10.0.0.2"));
  ASSERT_TRUE(answers[1].ok()) << answers[1].status();
  EXPECT_THAT(*answers[1], ElementsAre("fd00::1", "fd00::2"));
  ASSERT_TRUE(answers[2].ok()) << answers[2].status();
  EXPECT_THAT(*answers[2], ElementsAre("10.0.0.1"));
  EXPECT_EQ(answers[3].status().code(), absl::StatusCode::kNotFound);
}

TEST_F(DnsResolverTest, AsksAnewEachTime) {
  server_.Set("decode.test", {"10.0.0.1"});
  EXPECT_TRUE(Resolve("decode.test").ok());
  server_.Set("decode.test", {"10.0.0.2"});
  const auto second = Resolve("decode.test");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(*second, ElementsAre("10.0.0.2"));
}

// More than one UDP answer holds: a pool of a hundred workers.
TEST_F(DnsResolverTest, LongAnswersComeOverTcp) {
  std::vector<std::string> ips;
  for (int i = 0; i < 200; ++i) ips.push_back(absl::StrCat("10.0.1.", i));
  server_.Set("big.test", ips);
  const auto answer = Resolve("big.test");
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->size(), 200u);
  EXPECT_GT(server_.num_tcp_questions(), 0);
}

TEST_F(DnsResolverTest, NoAddressesAreNoFailure) {
  server_.Set("empty.test", {});
  EXPECT_EQ(Resolve("empty.test").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Resolve("missing.test").status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(DnsResolverTest, AServerThatFailsIsAFailure) {
  server_.Set("decode.test", {"10.0.0.1"});
  server_.SetMode(DnsServer::Mode::kServerFailure);
  const auto answer = Resolve("decode.test");
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable)
      << answer.status();
  server_.SetMode(DnsServer::Mode::kTable);
  EXPECT_TRUE(Resolve("decode.test").ok());
}

TEST_F(DnsResolverTest, ASilentServerCostsNoMoreThanTheTimeout) {
  server_.SetMode(DnsServer::Mode::kSilent);
  const auto answer = Resolve("decode.test", absl::Milliseconds(20));
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kDeadlineExceeded)
      << answer.status();
}

TEST_F(DnsResolverTest, StopEndsAQuestionUnderWay) {
  server_.SetMode(DnsServer::Mode::kSilent);
  std::vector<NameResolver::Answer> answers;
  std::thread asking([&] {
    // Nobody waits for it.
    answers = resolver_->Resolve({"decode.test"}, absl::Hours(1));
  });
  EXPECT_TRUE(test::AwaitThat([&] { return server_.num_questions() > 0; }));
  resolver_->Stop();
  asking.join();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_FALSE(answers[0].ok());
  // And from now on.
  EXPECT_FALSE(Resolve("decode.test", absl::Hours(1)).ok());
}

TEST(DnsResolverOptionsTest, TheServerMustBeAnAddress) {
  EXPECT_EQ(MakeDnsResolver("name:53").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(MakeDnsResolver("").ok());
}

}  // namespace
}  // namespace baton::router
