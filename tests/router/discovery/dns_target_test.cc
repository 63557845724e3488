#include "router/discovery/dns_target.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/discovery/dns_resolver.h"

namespace baton::router {
namespace {

using ::testing::HasSubstr;

std::string ErrorIn(const std::string& text) {
  return std::string(ParseDnsTarget(text).status().message());
}

TEST(DnsTargetTest, ReadsNameAndPort) {
  const auto target = ParseDnsTarget("dns:decode.serving.svc:9000");
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_EQ(target->text, "dns:decode.serving.svc:9000");
  EXPECT_EQ(target->name, "decode.serving.svc");
  EXPECT_EQ(target->port, 9000);
  for (const char* text :
       {"dns:a:1", "dns:a.b.:65535", "dns:a-b_c.d9:80", "dns:1a:80"}) {
    EXPECT_TRUE(ParseDnsTarget(text).ok()) << text;
  }
}

TEST(DnsTargetTest, OnlyWhatBeginsSoIsOne) {
  EXPECT_TRUE(IsDnsTarget("dns:x"));
  EXPECT_FALSE(IsDnsTarget("10.0.0.1:9000"));
  EXPECT_FALSE(IsDnsTarget("dns.example:9000"));
}

TEST(DnsTargetTest, ErrorsSayWhatIsWrong) {
  EXPECT_THAT(ErrorIn("dns:"), HasSubstr("it has no port"));
  EXPECT_THAT(ErrorIn("dns:name"), HasSubstr("it has no port"));
  for (const char* port : {"", "0", "65536", "-1", "+1", "http", "123456"}) {
    EXPECT_THAT(ErrorIn(std::string("dns:name:") + port),
                HasSubstr("the port must be a number"))
        << port;
  }
  const std::string labels(254, 'a');
  for (const std::string& name :
       {std::string(), std::string("."), std::string("a..b"), std::string(".a"),
        std::string("a b"), std::string("//8.8.8.8/x"), std::string("10.0.0.1"),
        std::string("[::1]"), labels}) {
    EXPECT_THAT(ErrorIn("dns:" + name + ":1"),
                HasSubstr("the name is none of DNS"))
        << name;
  }
}

TEST(DnsTargetTest, AddressesOfBothFamilies) {
  EXPECT_EQ(AddressOf("10.0.0.1", 9000), "10.0.0.1:9000");
  EXPECT_EQ(AddressOf("fd00::1", 9000), "[fd00::1]:9000");
}

TEST(DnsServerFlagTest, IsAnAddressAndAPort) {
  EXPECT_TRUE(IsDnsServer("127.0.0.1:53"));
  EXPECT_TRUE(IsDnsServer("[::1]:8600"));
  for (const char* text :
       {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536",
        "name:53", "::1", "[::1]", "[127.0.0.1]:53", "127.0.0.1,8.8.8.8:53"}) {
    EXPECT_FALSE(IsDnsServer(text)) << text;
  }
}

}  // namespace
}  // namespace baton::router
