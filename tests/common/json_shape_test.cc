#include "common/json_shape.h"

#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

std::string Repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

std::string Problem(absl::string_view text, const JsonBounds& bounds) {
  const absl::Status status = CheckJsonBounds(text, bounds);
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(JsonBoundsTest, BoundsTheDepth) {
  const JsonBounds bounds{.max_depth = 4};
  EXPECT_EQ(Problem(Repeat("[", 4) + Repeat("]", 4), bounds), "");
  EXPECT_EQ(Problem(R"({"a":[{"b":[]}]})", bounds), "");
  EXPECT_EQ(Problem(Repeat("[", 5), bounds), "is nested deeper than 4");
  EXPECT_EQ(Problem(R"({"a":[{"b":[{}]}]})", bounds),
            "is nested deeper than 4");
  // What was closed is not deep.
  EXPECT_EQ(Problem(Repeat("[[[[]]]],", 100), bounds), "");
}

TEST(JsonBoundsTest, BoundsTheMembersOfAnObject) {
  const JsonBounds bounds{.max_members = 2};
  EXPECT_EQ(Problem(R"({"a":[1,2,3,4],"b":{"c":1,"d":2}})", bounds), "");
  EXPECT_EQ(Problem(R"({"a":1,"b":2,"c":3})", bounds),
            "has an object with more than 2 members");
  EXPECT_EQ(Problem(R"([{"a":{},"b":[1,2,3],"c":3}])", bounds),
            "has an object with more than 2 members");
}

TEST(JsonBoundsTest, BoundsTheValues) {
  const JsonBounds bounds{.max_values = 5};
  EXPECT_EQ(Problem("[1,2,3,4]", bounds), "");
  EXPECT_EQ(Problem("[1,2,3,4,5]", bounds), "has more than 5 values");
  EXPECT_EQ(Problem("[[],[],[]]", bounds), "has more than 5 values");
  EXPECT_EQ(Problem("[{},{},{}]", bounds), "has more than 5 values");
}

TEST(JsonBoundsTest, StringsHoldNoStructure) {
  const JsonBounds bounds{.max_depth = 1, .max_values = 3, .max_members = 1};
  EXPECT_EQ(Problem(R"({"a[[[{{{,,,,":"\"[[,,\\"})", bounds), "");
  EXPECT_EQ(Problem(R"(["\\",[]])", bounds), "is nested deeper than 1");
}

TEST(JsonBoundsTest, BrokenTextIsLeftToTheParser) {
  for (const char* text : {"", "]]}}", "\"", "\"\\", ",,", "{,}"}) {
    EXPECT_EQ(Problem(text, {}), "") << text;
  }
}

}  // namespace
}  // namespace baton
