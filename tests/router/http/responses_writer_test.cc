#include "router/http/responses_writer.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/json.h"

namespace baton::router::http {
namespace {

using nlohmann::json;
using testing::ElementsAre;

const AnswerHead kHead = {
    .chat = true, .id = "resp_1", .created_unix_seconds = 9, .model = "m"};
const AnswerUsage kUsage = {.prompt_tokens = 10,
                            .output_tokens = 4,
                            .cached_prompt_tokens = 2,
                            .reasoning_tokens = 1};

ResponsesWriter MakeWriter() {
  return ResponsesWriter(kHead, R"(,"metadata":{"a":"b"})");
}

// Each with its number and its name checked.
std::vector<json> EventsOf(const std::string& stream) {
  std::vector<json> events;
  for (absl::string_view block :
       absl::StrSplit(stream, "\n\n", absl::SkipEmpty())) {
    const std::vector<absl::string_view> lines = absl::StrSplit(block, '\n');
    EXPECT_EQ(lines.size(), 2u) << std::string(block);
    absl::string_view data = lines.back();
    EXPECT_TRUE(absl::ConsumePrefix(&data, "data: "));
    const json event = json::parse(data.begin(), data.end());
    EXPECT_EQ(event.at("sequence_number"), events.size());
    EXPECT_EQ(lines[0],
              absl::StrCat("event: ", event.at("type").get<std::string>()));
    events.push_back(event);
  }
  return events;
}

std::vector<std::string> TypesOf(const std::vector<json>& events) {
  std::vector<std::string> types;
  for (const json& event : events) {
    const std::string type = event.at("type");
    types.push_back(type.substr(std::string("response.").size()));
  }
  return types;
}

// What a client makes of the events: the items as they were added, with their
// parts and all that came of them.
json Accumulated(const std::vector<json>& events) {
  json items = json::array();
  for (const json& event : events) {
    const std::string type = event.at("type");
    if (type == "response.output_item.added") {
      EXPECT_EQ(event.at("output_index"), items.size());
      items.push_back(event.at("item"));
      continue;
    }
    if (!event.contains("output_index")) continue;
    json& item = items.at(event.at("output_index").get<size_t>());
    if (event.contains("item_id")) {
      EXPECT_EQ(event.at("item_id"), item.at("id"));
    }
    if (type == "response.content_part.added") {
      item.at("content").push_back(event.at("part"));
    } else if (type == "response.function_call_arguments.delta") {
      item.at("arguments") = item.at("arguments").get<std::string>() +
                             event.at("delta").get<std::string>();
    } else if (event.contains("delta")) {
      json& part =
          item.at("content").at(event.at("content_index").get<size_t>());
      part.at("text") = part.at("text").get<std::string>() +
                        event.at("delta").get<std::string>();
      for (const json& token : event.value("logprobs", json::array())) {
        part.at("logprobs").push_back(token);
      }
    } else if (type == "response.output_item.done") {
      item.at("status") = event.at("item").at("status");
      EXPECT_EQ(item, event.at("item"));
    }
  }
  return items;
}

ResponsesWriter::Logprobs SomeLogprobs(const std::string& token) {
  ResponsesWriter::Logprobs logprobs;
  v1::TokenLogprobs* const one = logprobs.Add();
  one->mutable_chosen()->set_token(token);
  one->mutable_chosen()->set_logprob(-0.5f);
  *one->add_top() = one->chosen();
  return logprobs;
}

// All that there is, into `stream` or, null, into the body alone.
void WriteAll(ResponsesWriter& writer, std::string* stream) {
  writer.Begin(1, stream);
  writer.Reasoning("I \"add\"", stream);
  writer.Reasoning(".", stream);
  writer.Text("It ", SomeLogprobs("It "), stream);
  writer.Text("is", SomeLogprobs("is"), stream);
  writer.CallBegun("call_1", "add", stream);
  writer.CallArguments("{\"a\"", stream);
  writer.CallArguments(": 1}", stream);
  writer.CallBegun("call_2", "sub", stream);
  writer.Text("done", {}, stream);
  writer.Finish({.reason = v1::FINISH_REASON_STOP, .usage = kUsage}, stream);
}

TEST(ResponsesWriterTest, EventsAddUpToTheBody) {
  ResponsesWriter writer = MakeWriter();
  std::string stream;
  WriteAll(writer, &stream);
  const std::vector<json> events = EventsOf(stream);
  EXPECT_THAT(
      TypesOf(events),
      ElementsAre(
          "created", "in_progress", "output_item.added", "content_part.added",
          "reasoning_text.delta", "reasoning_text.delta", "reasoning_text.done",
          "content_part.done", "output_item.done", "output_item.added",
          "content_part.added", "output_text.delta", "output_text.delta",
          "output_text.done", "content_part.done", "output_item.done",
          "output_item.added", "function_call_arguments.delta",
          "function_call_arguments.delta", "function_call_arguments.done",
          "output_item.done", "output_item.added",
          "function_call_arguments.done", "output_item.done",
          "output_item.added", "content_part.added", "output_text.delta",
          "output_text.done", "content_part.done", "output_item.done",
          "completed"));
  const json last = events.back().at("response");
  EXPECT_EQ(Accumulated(events), last.at("output"));
  EXPECT_EQ(json::parse(writer.Body()), last);
  // The same without a stream.
  ResponsesWriter whole = MakeWriter();
  WriteAll(whole, nullptr);
  EXPECT_EQ(whole.Body(), writer.Body());

  EXPECT_EQ(last.at("id"), "resp_1");
  EXPECT_EQ(last.at("object"), "response");
  EXPECT_EQ(last.at("created_at"), 9);
  EXPECT_EQ(last.at("model"), "m");
  EXPECT_EQ(last.at("status"), "completed");
  EXPECT_EQ(last.at("metadata"), json({{"a", "b"}}));
  EXPECT_EQ(last.at("usage"), json::parse(R"({"input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 4,
    "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 14})"));
  const json& output = last.at("output");
  ASSERT_EQ(output.size(), 5u);
  EXPECT_EQ(output[0].at("content")[0].at("text"), "I \"add\".");
  EXPECT_EQ(output[1].at("content")[0].at("text"), "It is");
  EXPECT_EQ(output[1].at("content")[0].at("logprobs").size(), 2u);
  EXPECT_EQ(output[1].at("content")[0].at("logprobs")[1].at("token"), "is");
  EXPECT_EQ(output[2].at("type"), "function_call");
  EXPECT_EQ(output[2].at("call_id"), "call_1");
  EXPECT_EQ(output[2].at("name"), "add");
  EXPECT_EQ(output[2].at("arguments"), "{\"a\": 1}");
  EXPECT_EQ(output[3].at("arguments"), "");
  EXPECT_EQ(output[4].at("content")[0].at("text"), "done");
}

TEST(ResponsesWriterTest, FirstEventsHaveNoOutput) {
  ResponsesWriter writer = MakeWriter();
  std::string stream;
  writer.Begin(1, &stream);
  for (const json& event : EventsOf(stream)) {
    EXPECT_EQ(event.at("response").at("status"), "in_progress");
    EXPECT_EQ(event.at("response").at("output"), json::array());
    EXPECT_EQ(event.at("response").at("usage"), nullptr);
  }
}

TEST(ResponsesWriterTest, WhatIsTooLongIsIncomplete) {
  ResponsesWriter writer = MakeWriter();
  std::string stream;
  writer.Begin(1, &stream);
  writer.Text("It", {}, &stream);
  writer.CallBegun("call_1", "add", &stream);
  writer.Finish(
      {.reason = v1::FINISH_REASON_LENGTH, .cut = true, .usage = kUsage},
      &stream);
  const std::vector<json> events = EventsOf(stream);
  EXPECT_EQ(events.back().at("type"), "response.incomplete");
  const json response = events.back().at("response");
  EXPECT_EQ(response.at("status"), "incomplete");
  EXPECT_EQ(response.at("incomplete_details").at("reason"),
            "max_output_tokens");
  EXPECT_EQ(response.at("output")[0].at("status"), "completed");
  EXPECT_EQ(response.at("output")[1].at("status"), "incomplete");
}

TEST(ResponsesWriterTest, AnAnswerWithoutAWordIsAMessage) {
  ResponsesWriter writer = MakeWriter();
  std::string stream;
  writer.Begin(1, &stream);
  writer.Finish({.reason = v1::FINISH_REASON_STOP, .usage = kUsage}, &stream);
  const json response = EventsOf(stream).back().at("response");
  ASSERT_EQ(response.at("output").size(), 1u);
  EXPECT_EQ(response.at("output")[0].at("content")[0].at("text"), "");
}

TEST(ResponsesWriterTest, AFailureIsTheLastEvent) {
  ResponsesWriter writer = MakeWriter();
  std::string stream;
  writer.Begin(1, &stream);
  writer.Text("It", {}, &stream);
  writer.Fail(absl::UnavailableError("no \"worker\""), &stream);
  const json last = EventsOf(stream).back();
  EXPECT_EQ(last.at("type"), "response.failed");
  EXPECT_EQ(last.at("response").at("status"), "failed");
  const json& item = last.at("response").at("output").at(0);
  EXPECT_EQ(item.at("status"), "incomplete");
  EXPECT_EQ(item.at("content").at(0).at("text"), "It");
  EXPECT_EQ(last.at("response").at("error"),
            json({{"code", "server_error"}, {"message", "no \"worker\""}}));
}

TEST(ResponsesWriterTest, ItemsHaveIdsOfTheirOwn) {
  const auto ids = [](const std::string& id) {
    AnswerHead head = kHead;
    head.id = id;
    ResponsesWriter writer(head, "");
    WriteAll(writer, nullptr);
    std::vector<std::string> all;
    const json body = json::parse(writer.Body());
    for (const json& item : body.at("output")) {
      all.push_back(item.at("id"));
    }
    return all;
  };
  const std::vector<std::string> one = ids("resp_1");
  EXPECT_EQ(one, ids("resp_1"));
  EXPECT_THAT(
      one, ElementsAre(testing::StartsWith("rs_"), testing::StartsWith("msg_"),
                       testing::StartsWith("fc_"), testing::StartsWith("fc_"),
                       testing::StartsWith("msg_")));
  EXPECT_NE(one[1], one[4]);
  EXPECT_NE(one[2], one[3]);
  EXPECT_NE(one[0], ids("resp_2")[0]);
}

}  // namespace
}  // namespace baton::router::http
