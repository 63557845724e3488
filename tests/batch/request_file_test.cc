#include "batch/request_file.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/output_file.h"
#include "tests/support/scratch_dir.h"

namespace baton::batch {
namespace {

using ::testing::HasSubstr;

constexpr char kLine[] =
    R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", )"
    R"("body": {"prompt": "x", "seed": 18446744073709551615, "b": 1, "a": 2}})";

std::string Refusal(const std::string& line) {
  const auto request = ParseRequestLine(line, 1);
  EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument)
      << line;
  return std::string(request.status().message());
}

class RequestFileTest : public testing::Test {
 protected:
  std::string Written(const std::string& text) {
    const std::string path = scratch_.path() + "/requests.jsonl";
    EXPECT_TRUE(WriteTextFile(path, text).ok());
    return path;
  }
  std::string OpenError(const std::string& path) {
    const auto file = RequestFile::Open(path);
    EXPECT_FALSE(file.ok());
    return std::string(file.status().message());
  }

  const test::ScratchDir scratch_;
};

// Schemas and tools say by the order of their keys in which order answers come.
TEST(RequestLineTest, KeepsTheBodyAndItsOrder) {
  const auto request = ParseRequestLine(kLine, 7);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->line, 7);
  EXPECT_EQ(request->custom_id, "a");
  EXPECT_EQ(request->url, "/v1/completions");
  EXPECT_EQ(request->body,
            R"({"prompt":"x","seed":18446744073709551615,"b":1,"a":2})");
}

TEST(RequestLineTest, RefusalsNameTheField) {
  EXPECT_THAT(Refusal("{"), HasSubstr("no JSON object"));
  EXPECT_THAT(Refusal("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(Refusal(R"({"url": "/v1/completions", "body": {}})"),
              HasSubstr("\"custom_id\" is missing"));
  EXPECT_THAT(Refusal(R"({"custom_id": 1, "url": "", "body": {}})"),
              HasSubstr("\"custom_id\" is no string"));
  EXPECT_THAT(Refusal(R"({"custom_id": "", "url": "", "body": {}})"),
              HasSubstr("it may have 1 to 512"));
  EXPECT_THAT(Refusal(absl::StrCat(R"({"custom_id": ")", std::string(513, 'a'),
                                   R"("})")),
              HasSubstr("has 513 bytes"));
  EXPECT_THAT(Refusal(R"({"custom_id": "a", "body": {}})"),
              HasSubstr("\"url\" is missing"));
  EXPECT_THAT(Refusal(R"({"custom_id": "a", "url": "/v1/embeddings"})"),
              HasSubstr("\"url\" is \"/v1/embeddings\"; it may be /v1/chat"));
  EXPECT_THAT(
      Refusal(R"({"custom_id": "a", "method": "GET", "url": "/v1/responses"})"),
      HasSubstr("\"method\" is \"GET\""));
  EXPECT_THAT(Refusal(R"({"custom_id": "a", "url": "/v1/responses"})"),
              HasSubstr("\"body\" is missing"));
  EXPECT_THAT(
      Refusal(R"({"custom_id": "a", "url": "/v1/messages", "body": 1})"),
      HasSubstr("\"body\" is no object"));
  EXPECT_THAT(Refusal(R"({"custom_id": "a", "url": "/v1/completions",)"
                      R"( "body": {"stream": true}})"),
              HasSubstr("\"body.stream\""));
}

TEST(RequestLineTest, DeepOrWideTextsAreRefusedBeforeTheyAreRead) {
  const std::string deep(1 << 20, '[');
  EXPECT_THAT(Refusal(absl::StrCat(R"({"custom_id": "a", "body": )", deep)),
              HasSubstr("nested deeper than 256"));
  std::string wide = "{\"a\": 1";
  for (int i = 0; i < 20000; ++i) absl::StrAppend(&wide, ",\"", i, "\":1");
  EXPECT_THAT(Refusal(wide), HasSubstr("members"));
}

TEST_F(RequestFileTest, GivesEachLineAndItsNumber) {
  std::string other = kLine;
  other.replace(other.find("\"a\""), 3, "\"b\"");
  // With an end at the last one, or without; and as other systems end lines.
  const auto path = Written(absl::StrCat(kLine, "\r\n\n  \n", other));
  auto file = RequestFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->size(), 2);
  EXPECT_TRUE(file->Has("b"));
  EXPECT_FALSE(file->Has("c"));
  std::vector<std::string> seen;
  while (true) {
    auto request = file->Next();
    ASSERT_TRUE(request.ok()) << request.status();
    if (!request->has_value()) break;
    seen.push_back(absl::StrCat((*request)->custom_id, (*request)->line));
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"a1", "b4"}));
}

TEST_F(RequestFileTest, WhatIsWrongInTheLastLineIsSaidFirst) {
  const std::string path = Written(absl::StrCat(kLine, "\n{}\n"));
  EXPECT_EQ(OpenError(path),
            absl::StrCat(path, ":2: \"custom_id\" is missing"));
}

TEST_F(RequestFileTest, AnIdOfTwoLinesIsRefused) {
  const std::string path = Written(absl::StrCat(kLine, "\n", kLine, "\n"));
  EXPECT_EQ(OpenError(path),
            absl::StrCat(path,
                         ":2: another line has the \"custom_id\" \"a\", "
                         "too"));
}

TEST_F(RequestFileTest, ALineTooLongIsRefused) {
  const std::string path =
      Written(std::string(static_cast<size_t>(kMaxLineBytes) + 1, ' '));
  EXPECT_THAT(OpenError(path), HasSubstr(":1: more than"));
}

TEST_F(RequestFileTest, WhatIsNoFileIsRefused) {
  EXPECT_THAT(OpenError(scratch_.path()), HasSubstr("is no file"));
  EXPECT_THAT(OpenError("/nowhere/at/all"), HasSubstr("cannot read /nowhere"));
}

}  // namespace
}  // namespace baton::batch
