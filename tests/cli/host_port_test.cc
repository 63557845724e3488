#include "cli/host_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::cli {
namespace {

TEST(HostPortTest, ReadsNamesAndBothKindsOfAddress) {
  const auto v4 = ParseHostPort("127.0.0.1:8600");
  ASSERT_TRUE(v4.ok()) << v4.status();
  EXPECT_EQ(v4->host, "127.0.0.1");
  EXPECT_EQ(v4->port, 8600);
  const auto v6 = ParseHostPort("[::1]:0");
  ASSERT_TRUE(v6.ok()) << v6.status();
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->port, 0);
  EXPECT_EQ(ParseHostPort("router.example:65535")->port, 65535);
}

TEST(HostPortTest, RefusesAndQuotesWhatIsNoAddress) {
  for (const char* text :
       {"", "localhost", ":80", "host:", "host:x", "host:65536", "host:-1",
        "host: 1", "host:+1", "::1:80", "[]:80", "host:99999999999"}) {
    const auto parsed = ParseHostPort(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(std::string(parsed.status().message()),
                testing::StartsWith("'" + std::string(text) + "'"));
  }
}

}  // namespace
}  // namespace baton::cli
