#include "workload/trace.h"

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scratch_dir.h"

namespace baton::workload {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TraceTest : public testing::Test {
 protected:
  absl::StatusOr<std::vector<PlannedRequest>> Read(const std::string& name,
                                                   const std::string& text) {
    const std::string path = scratch_.path() + "/" + name;
    std::ofstream(path) << text;
    const auto format = TraceFormatOf(path);
    if (!format.ok()) return format.status();
    return ReadTrace(path, *format);
  }
  std::string Error(const std::string& name, const std::string& text) {
    const absl::Status status = Read(name, text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }

  test::ScratchDir scratch_;
};

TEST_F(TraceTest, ReadsAzure) {
  const auto trace = Read("a.csv",
                          "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                          "2023-11-16 18:15:46.6805900,374,44\n"
                          "2023-11-16 18:15:50.9951690,396,109\n"
                          "\n"
                          "2023-11-16 18:15:46.1805900,0,0\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 3u);
  // Sorted by time; at least one token each.
  EXPECT_EQ((*trace)[0].at, absl::ZeroDuration());
  EXPECT_EQ((*trace)[0].prompt_tokens, 1);
  EXPECT_EQ((*trace)[0].output_tokens, 1);
  EXPECT_EQ((*trace)[1].at, absl::Milliseconds(500));
  EXPECT_EQ((*trace)[1].prompt_tokens, 374);
  EXPECT_EQ((*trace)[1].output_tokens, 44);
  EXPECT_THAT((*trace)[1].prefix, IsEmpty());
  EXPECT_EQ((*trace)[2].at, absl::Nanoseconds(4'814'579'000));
}

TEST_F(TraceTest, ReadsMooncake) {
  const auto trace = Read(
      "m.jsonl",
      "{\"timestamp\": 27000, \"input_length\": 1000, \"output_length\": 52, "
      "\"hash_ids\": [0, 14]}\n"
      "{\"timestamp\": 30500, \"input_length\": 6, \"output_length\": 2, "
      "\"hash_ids\": []}\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].at, absl::ZeroDuration());
  EXPECT_EQ((*trace)[0].prompt_tokens, 1000);
  EXPECT_THAT((*trace)[0].prefix, ElementsAre(0, 14));
  EXPECT_EQ((*trace)[0].prefix_block, 512);
  EXPECT_EQ((*trace)[1].at, absl::Seconds(3.5));
}

TEST_F(TraceTest, ErrorsNameThePlace) {
  EXPECT_THAT(Error("a.csv", "a,b,c\n"), HasSubstr("a.csv:1: the head"));
  const std::string head = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  EXPECT_THAT(Error("a.csv", head), HasSubstr("has no requests"));
  EXPECT_THAT(Error("a.csv", head + "now,1,2\n"),
              HasSubstr("a.csv:2: TIMESTAMP is no time"));
  EXPECT_THAT(Error("a.csv", head + "2023-11-16 18:15:46.68,1\n"),
              HasSubstr("a.csv:2: the line does not have three cells"));
  EXPECT_THAT(Error("a.csv", head + "2023-11-16 18:15:46.68,x,2\n"),
              HasSubstr("a.csv:2: ContextTokens is no number"));
  EXPECT_THAT(Error("a.csv", head + "2023-11-16 18:15:46.68,1,-2\n"),
              HasSubstr("a.csv:2: GeneratedTokens is -2"));
  EXPECT_THAT(Error("m.jsonl", "{\n"), HasSubstr("m.jsonl:1: the line"));
  EXPECT_THAT(Error("m.jsonl", "{\"timestamp\": 1}\n"),
              HasSubstr("m.jsonl:1: input_length is missing"));
  EXPECT_THAT(Error("m.jsonl", "{\"timestamp\": 1.5}\n"),
              HasSubstr("timestamp is no whole number"));
  EXPECT_THAT(Error("m.jsonl",
                    "{\"timestamp\": 1, \"input_length\": 1, "
                    "\"output_length\": 1, \"hash_ids\": [-1]}\n"),
              HasSubstr("hash_ids"));
  EXPECT_THAT(Error("t.txt", ""), HasSubstr("t.txt: a trace is"));
  EXPECT_EQ(ReadTrace("/nonexistent", TraceFormat::kAzure).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace baton::workload
