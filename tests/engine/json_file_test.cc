#include "engine/json_file.h"

#include <sys/stat.h>

#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/model_dir.h"
#include "tests/engine/mutation.h"

namespace baton::engine {
namespace {

using testing::HasSubstr;

TEST(JsonFileTest, ReadsAnObject) {
  const auto root = ParseJsonObject(R"({"a": [1, {"b": "x"}], "c": {}})", "f");
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ((*root)["a"][1]["b"], "x");
}

TEST(JsonFileTest, RefusesWhatIsNotOneObject) {
  for (const char* text :
       {"", " ", "[]", "1", "null", "{", "{}{}", "{\"a\": NaN}", "{'a': 1}",
        "{\"a\": 1,}", "{\"a\": \"\xff\"}", "\x80\x02}q"}) {
    const auto root = ParseJsonObject(text, "some/file");
    EXPECT_EQ(root.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(root.status().message(), HasSubstr("some/file: ")) << text;
  }
}

TEST(JsonFileTest, RefusesRepeatedKeysAtAnyDepth) {
  EXPECT_TRUE(ParseJsonObject(R"({"a": {"b": 1}, "b": {"b": 1}})", "f").ok());
  EXPECT_TRUE(ParseJsonObject(R"({"a": [{"b": 1}, {"b": 1}]})", "f").ok());
  for (const char* text :
       {R"({"a": 1, "b": 2, "a": 3})", R"({"x": {"a": 1, "b": {}, "a": 3}})",
        R"({"x": [[{"a": 1, "a": 1}]]})"}) {
    const auto root = ParseJsonObject(text, "f");
    EXPECT_EQ(root.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(root.status().message(), HasSubstr("\"a\" appears twice"));
  }
}

TEST(JsonFileTest, RefusesDeepNesting) {
  const auto nested = [](int depth) {
    return "{\"a\":" + std::string(depth - 1, '[') +
           std::string(depth - 1, ']') + "}";
  };
  EXPECT_TRUE(ParseJsonObject(nested(kMaxJsonDepth), "f").ok());
  for (int depth : {kMaxJsonDepth + 1, 1'000'000}) {
    const auto root = ParseJsonObject(nested(depth), "f");
    EXPECT_EQ(root.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(root.status().message(), HasSubstr("nested"));
  }
  // Brackets in strings do not nest.
  EXPECT_TRUE(
      ParseJsonObject("{\"a\": \"\\\"" + std::string(99, '[') + "\"}", "f")
          .ok());
}

TEST(JsonFileTest, ReadsFilesUpToTheBound) {
  ModelDir dir;
  dir.Write("a.json", "{\"a\": 1}");
  EXPECT_TRUE(ReadJsonObject(dir.File("a.json"), 8).ok());
  const auto root = ReadJsonObject(dir.File("a.json"), 7);
  EXPECT_EQ(root.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(root.status().message(), HasSubstr("larger than 7 bytes"));
}

TEST(JsonFileTest, RefusesWhatIsNotAFile) {
  ModelDir dir;
  EXPECT_EQ(ReadBoundedFile(dir.File("none"), 99).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadBoundedFile(dir.path(), 99).status().code(),
            absl::StatusCode::kInvalidArgument);
  // Must not wait for a writer.
  ASSERT_EQ(mkfifo(dir.File("pipe").c_str(), 0600), 0);
  EXPECT_EQ(ReadBoundedFile(dir.File("pipe"), 99).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(JsonFileTest, ExcerptsAreShortAndPrintable) {
  EXPECT_EQ(JsonExcerpt("x"), "\"x\"");
  EXPECT_LE(JsonExcerpt(std::string(1000, 'x')).size(), 100u);
  EXPECT_EQ(JsonExcerpt("a\nb"), "\"a\\nb\"");
}

TEST(JsonFileTest, SurvivesDamage) {
  const std::string valid = R"({"a": [1, -2, 3.5e3, {"b": "x\u00e9y"}],
      "c": {"d": null, "e": true}, "f": "\\\"", "g": [[], {}]})";
  std::mt19937 random(1);
  int parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto root = ParseJsonObject(Mutate(valid, random), "f");
    parsed += root.ok();
  }
  EXPECT_GT(parsed, 0);
}

}  // namespace
}  // namespace baton::engine
