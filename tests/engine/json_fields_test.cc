#include "engine/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::engine {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(JsonFieldsTest, ReadsFieldsAndDefaults) {
  const json object = {{"i", 3},    {"n", 2.5},  {"whole", 2},
                       {"b", true}, {"s", "hi"}, {"z", nullptr}};
  JsonFields fields("f", object);
  EXPECT_EQ(fields.RequiredInt("i", 1, 3), 3);
  EXPECT_EQ(fields.Int("absent", 7, 0, 9), 7);
  EXPECT_EQ(fields.Int("z", 7, 0, 9), 7);
  EXPECT_EQ(fields.Number("n", 0, 0, 9), 2.5);
  EXPECT_EQ(fields.RequiredNumber("whole", 0, 9), 2.0);
  EXPECT_TRUE(fields.Bool("b", false));
  EXPECT_TRUE(fields.Bool("absent", true));
  EXPECT_EQ(fields.String("s", ""), "hi");
  EXPECT_EQ(fields.String("z", "fallback"), "fallback");
  EXPECT_TRUE(fields.IsNull("z"));
  EXPECT_FALSE(fields.IsNull("absent"));
  EXPECT_EQ(fields.Find("z"), nullptr);
  EXPECT_TRUE(fields.status().ok()) << fields.status();
}

TEST(JsonFieldsTest, KeepsTheFirstErrorAndNamesTheField) {
  const json object = {{"i", 0}, {"b", 1}};
  JsonFields fields("dir/f.json", object, "part.");
  EXPECT_EQ(fields.RequiredInt("i", 1, 9), 1);
  EXPECT_FALSE(fields.Bool("b", false));
  EXPECT_EQ(fields.status().message(),
            "dir/f.json: part.i is 0, it must be an integer from 1 to 9");
}

TEST(JsonFieldsTest, RefusesWrongTypesAndRanges) {
  const json values = {nullptr,   true,      "1",       1.5,   json::array(),
                       -1,        10,        -1e9,      1e300, json::object(),
                       INT64_MIN, INT64_MAX, UINT64_MAX};
  for (const json& value : values) {
    const json object = {{"x", value}};
    JsonFields fields("f", object);
    fields.RequiredInt("x", 0, 9);
    EXPECT_EQ(fields.status().code(), absl::StatusCode::kInvalidArgument)
        << value;
    EXPECT_THAT(fields.status().message(), HasSubstr("f: x is "));
  }
  for (const json& value : values) {
    if (value == 1.5) continue;
    const json object = {{"x", value}};
    JsonFields fields("f", object);
    fields.RequiredNumber("x", 0, 9);
    EXPECT_FALSE(fields.status().ok()) << value;
  }
}

}  // namespace
}  // namespace baton::engine
