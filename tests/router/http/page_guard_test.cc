#include "router/http/page_guard.h"

#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::router::http {
namespace {

using testing::HasSubstr;

Request From(const Headers& headers, bool loopback = true) {
  Request request;
  request.method = "POST";
  request.path = "/v1/completions";
  request.headers = headers;
  request.loopback = loopback;
  return request;
}

// "" when it is not refused.
std::string Code(const Request& request) {
  const std::optional<Response> refusal = RefuseOtherPages(request);
  if (!refusal.has_value()) return "";
  EXPECT_EQ(refusal->status, 403);
  EXPECT_THAT(refusal->body, HasSubstr("\"type\":\"permission_error\""));
  for (const char* code : {"forbidden_host", "forbidden_origin"}) {
    if (refusal->body.find(code) != std::string::npos) return code;
  }
  return "none";
}

TEST(PageGuardTest, KnowsHostsThatNobodyElseOwns) {
  for (const char* own :
       {"localhost", "localhost:8000", "LocalHost:8000", "localhost.",
        "baton.localhost", "a.b.localhost:1", "127.0.0.1", "127.0.0.1:8000",
        "127.1", "2130706433:80", "0.0.0.0:8000", "192.168.1.7", "[::1]",
        "[::1]:8000", "[fe80::1%25eth0]:8000", "[::ffff:127.0.0.1]:80"}) {
    EXPECT_TRUE(IsOwnHost(own)) << own;
  }
  for (const char* other :
       {"evil.example", "evil.example:8000", "localhost.evil.example:8000",
        "evillocalhost", "localhost:80.evil.example", "127.0.0.1.evil.example",
        "127.0.0.1 evil.example", "x", "", "[::1", "[::1]x:80", "[evil]",
        "1.2.3.4.5", ":8000"}) {
    EXPECT_FALSE(IsOwnHost(other)) << other;
  }
}

TEST(PageGuardTest, ComparesOriginsWithTheHost) {
  const std::vector<std::pair<std::string, std::string>> same = {
      {"http://127.0.0.1:8000", "127.0.0.1:8000"},
      {"http://localhost:8000", "LOCALHOST:8000"},
      {"http://[::1]:8000", "[::1]:8000"},
      {"http://box", "box"},
      {"http://box", "box:80"},
      {"https://box", "box:443"},
      {"https://box", "box"},
      {"https://box:444", "box:444"}};
  for (const auto& [origin, host] : same) {
    EXPECT_TRUE(IsSameOrigin(origin, host)) << origin << " " << host;
  }
  const std::vector<std::pair<std::string, std::string>> others = {
      {"http://localhost:8000", "127.0.0.1:8000"},
      {"http://localhost:3000", "localhost:8000"},
      {"http://localhost", "localhost:8000"},
      {"https://box", "box:80"},
      {"http://evil.example", "127.0.0.1:8000"},
      {"http://127.0.0.1:8000.evil.example", "127.0.0.1:8000"},
      {"null", "null"},
      {"", ""},
      {"http://", ""},
      {"file://", ""},
      {"chrome-extension://box", "box"}};
  for (const auto& [origin, host] : others) {
    EXPECT_FALSE(IsSameOrigin(origin, host)) << origin << " " << host;
  }
}

TEST(PageGuardTest, RefusesPagesOfOtherSites) {
  EXPECT_EQ(Code(From({{"host", "127.0.0.1:8000"}})), "");
  EXPECT_EQ(Code(From({{"host", "127.0.0.1:8000"},
                       {"origin", "http://127.0.0.1:8000"}})),
            "");
  EXPECT_EQ(Code(From({{"host", "127.0.0.1:8000"},
                       {"origin", "http://evil.example"}})),
            "forbidden_origin");
  // Each of them counts, and on other addresses, too.
  EXPECT_EQ(Code(From({{"host", "box:8000"},
                       {"origin", "http://box:8000"},
                       {"origin", "null"}},
                      /*loopback=*/false)),
            "forbidden_origin");
}

TEST(PageGuardTest, RefusesNamesOfOthersOnLoopback) {
  // A page whose name leads here now: of its own origin.
  const Headers rebound = {{"host", "evil.example:8000"},
                           {"origin", "http://evil.example:8000"}};
  EXPECT_EQ(Code(From(rebound)), "forbidden_host");
  EXPECT_EQ(Code(From({{"host", "evil.example:8000"}})), "forbidden_host");
  // Others reach it by whatever name they know.
  EXPECT_EQ(Code(From(rebound, /*loopback=*/false)), "");
  // HTTP/1.0 programs have none.
  EXPECT_EQ(Code(From({})), "");
}

}  // namespace
}  // namespace baton::router::http
