#include "router/http/request_target.h"

#include <string>

#include <gtest/gtest.h>

namespace baton::router::http {
namespace {

TEST(RequestTargetTest, TakesTheFormsApart) {
  struct Case {
    std::string target, path, query;
  };
  for (const Case& c : {
           Case{"/", "/", ""},
           Case{"/a/b?c=d?e", "/a/b", "c=d?e"},
           Case{"/%2Fa%20b%C3%A9?%20", "//a b\xC3\xA9", "%20"},
           Case{"/a+b", "/a+b", ""},
           Case{"http://host:80/x?y", "/x", "y"},
           Case{"HTTPS://host", "/", ""},
           Case{"http://host?y", "/", "y"},
           Case{"*", "*", ""},
       }) {
    const auto parsed = ParseRequestTarget(c.target);
    ASSERT_TRUE(parsed.ok()) << c.target;
    EXPECT_EQ(parsed->path, c.path) << c.target;
    EXPECT_EQ(parsed->query, c.query) << c.target;
  }
}

TEST(RequestTargetTest, RefusesTheRest) {
  for (const std::string target : {"", "a", "host:80", "**", "/%", "/%4",
                                   "/%4g", "/%g4", "/%00", "ftp://a/b"}) {
    EXPECT_FALSE(ParseRequestTarget(target).ok()) << target;
  }
}

}  // namespace
}  // namespace baton::router::http
