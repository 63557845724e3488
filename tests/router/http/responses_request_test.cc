#include "router/http/responses_request.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"
#include "router/invalid_field.h"

namespace baton::router::http {
namespace {

using nlohmann::json;
using testing::HasSubstr;

ApiRequest Parsed(const json& body) {
  const auto api = ParseResponsesRequest(body.dump());
  EXPECT_TRUE(api.ok()) << api.status() << " " << body;
  return api.ok() ? *api : ApiRequest{.prompts = {{}}};
}

json MessagesOf(const json& body) {
  return json::parse(Parsed(body).prompts.at(0).chat().messages());
}

TEST(ResponsesRequestTest, IsAChat) {
  const ApiRequest api = Parsed({{"model", "m"},
                                 {"input", "Hi"},
                                 {"max_output_tokens", 7},
                                 {"temperature", 0.5},
                                 {"top_k", 4},
                                 {"stream", true},
                                 {"user", "u"}});
  EXPECT_TRUE(api.chat);
  EXPECT_TRUE(api.stream);
  EXPECT_EQ(api.n, 1);
  ASSERT_EQ(api.prompts.size(), 1u);
  const v1::GenerateRequest& prompt = api.prompts[0];
  EXPECT_EQ(prompt.model(), "m");
  EXPECT_EQ(prompt.max_tokens(), 7u);
  EXPECT_EQ(prompt.sampling().temperature(), 0.5f);
  EXPECT_EQ(prompt.sampling().top_k(), 4u);
  EXPECT_EQ(prompt.user(), "u");
  EXPECT_EQ(json::parse(prompt.chat().messages()),
            json::parse(R"([{"role": "user", "content": "Hi"}])"));
  EXPECT_FALSE(Parsed({{"input", "Hi"}}).prompts[0].has_max_tokens());
}

TEST(ResponsesRequestTest, ItemsAreMessages) {
  EXPECT_EQ(MessagesOf(json::parse(R"({
    "instructions": "Be kind.",
    "input": [
      {"role": "developer", "content": "Be short."},
      {"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "What is "},
        {"type": "input_text", "text": "1 + 2?"}]},
      {"type": "reasoning", "id": "rs_1", "summary": [], "content": [
        {"type": "reasoning_text", "text": "I add."}]},
      {"type": "message", "id": "msg_1", "role": "assistant", "status":
       "completed", "content": [
        {"type": "output_text", "text": "Let me see.", "annotations": []}]},
      {"type": "function_call", "id": "fc_1", "call_id": "call_1",
       "name": "add", "arguments": "{\"a\": 1}"},
      {"type": "function_call", "call_id": "call_2", "name": "sub",
       "arguments": "{}"},
      {"type": "function_call_output", "call_id": "call_2", "output": "0"},
      {"type": "function_call_output", "call_id": "call_1", "output": [
        {"type": "input_text", "text": "3"}]},
      {"type": "reasoning", "id": "rs_2", "summary": []},
      {"role": "assistant", "content": "3"},
      {"role": "assistant", "content": [{"type": "refusal",
                                         "refusal": "No more."}]},
      {"role": "user", "content": "Thanks"}]})")),
            json::parse(R"([
      {"role": "system", "content": "Be kind.\n\nBe short."},
      {"role": "user", "content": "What is 1 + 2?"},
      {"role": "assistant", "content": "Let me see.",
       "reasoning_content": "I add.", "tool_calls": [
         {"id": "call_1", "type": "function", "function": {
            "name": "add", "arguments": "{\"a\": 1}"}},
         {"id": "call_2", "type": "function", "function": {
            "name": "sub", "arguments": "{}"}}]},
      {"role": "tool", "content": "0", "tool_call_id": "call_2",
       "name": "sub"},
      {"role": "tool", "content": "3", "tool_call_id": "call_1",
       "name": "add"},
      {"role": "assistant", "content": "3"},
      {"role": "assistant", "content": "No more."},
      {"role": "user", "content": "Thanks"}])"));
}

TEST(ResponsesRequestTest, TheSystemSpeaksFirstOrWhereItIsPut) {
  EXPECT_EQ(MessagesOf(json::parse(R"({"input": [
      {"role": "system", "content": "a"}, {"role": "system", "content": "b"},
      {"role": "user", "content": "c"},
      {"role": "developer", "content": "d"}]})")),
            json::parse(R"([{"role": "system", "content": "a\n\nb"},
      {"role": "user", "content": "c"},
      {"role": "system", "content": "d"}])"));
}

TEST(ResponsesRequestTest, Tools) {
  json body = json::parse(R"({"input": "Hi", "tools": [
    {"type": "function", "name": "add", "description": "Adds",
     "parameters": {"type": "object", "properties": {}}, "strict": true},
    {"type": "function", "name": "sub"}]})");
  ApiRequest api = Parsed(body);
  EXPECT_TRUE(api.tools.wanted);
  EXPECT_EQ(api.tools.names, (std::vector<std::string>{"add", "sub"}));
  EXPECT_EQ(json::parse(api.prompts[0].chat().tools()), json::parse(R"([
    {"type": "function", "function": {"name": "add", "description": "Adds",
      "parameters": {"type": "object", "properties": {}}, "strict": true}},
    {"type": "function", "function": {"name": "sub"}}])"));
  EXPECT_FALSE(api.prompts[0].has_response_format());
  body["tool_choice"] = {{"type", "function"}, {"name", "sub"}};
  api = Parsed(body);
  EXPECT_EQ(api.tools.names, std::vector<std::string>{"sub"});
  EXPECT_TRUE(api.prompts[0].response_format().has_tool_calls());
  body["tool_choice"] = "none";
  EXPECT_FALSE(Parsed(body).tools.wanted);
  // As clients write that there are none.
  EXPECT_FALSE(
      Parsed({{"input", "Hi"}, {"tools", json::array()}}).tools.wanted);
}

TEST(ResponsesRequestTest, Formats) {
  const auto format = [](const json& text) {
    return Parsed({{"input", "Hi"}, {"text", text}})
        .prompts[0]
        .response_format();
  };
  EXPECT_EQ(format({{"format", {{"type", "text"}}}}).kind_case(),
            v1::ResponseFormat::KIND_NOT_SET);
  EXPECT_EQ(format({{"verbosity", "low"}}).kind_case(),
            v1::ResponseFormat::KIND_NOT_SET);
  EXPECT_TRUE(
      format({{"format", {{"type", "json_object"}}}}).has_json_object());
  EXPECT_EQ(json::parse(format({{"format",
                                 {{"type", "json_schema"},
                                  {"name", "x"},
                                  {"schema", {{"type", "object"}}}}}})
                            .json_schema()),
            json({{"type", "object"}}));
}

TEST(ResponsesRequestTest, EffortIsAVariableOfTheTemplate) {
  json body = {{"input", "Hi"}, {"reasoning", {{"effort", "high"}}}};
  EXPECT_EQ(Parsed(body).prompts[0].chat().template_arguments(),
            R"({"reasoning_effort":"high"})");
  body["reasoning"] = {{"effort", nullptr}, {"summary", "auto"}};
  EXPECT_EQ(Parsed(body).prompts[0].chat().template_arguments(), "");
  for (const json& wrong : {json(3), json({{"effort", 3}})}) {
    body["reasoning"] = wrong;
    const auto api = ParseResponsesRequest(body.dump());
    EXPECT_EQ(FieldOf(api.status()),
              wrong.is_object() ? "reasoning.effort" : "reasoning");
  }
}

TEST(ResponsesRequestTest, LogprobsAreAskedForByInclude) {
  json body = {{"input", "Hi"}, {"top_logprobs", 3}};
  EXPECT_FALSE(Parsed(body).prompts[0].has_top_logprobs());
  body["include"] = {"reasoning.encrypted_content"};
  EXPECT_FALSE(Parsed(body).prompts[0].has_top_logprobs());
  body["include"].push_back("message.output_text.logprobs");
  EXPECT_EQ(Parsed(body).prompts[0].top_logprobs(), 3u);
  body.erase("top_logprobs");
  EXPECT_TRUE(Parsed(body).prompts[0].has_top_logprobs());
  EXPECT_EQ(Parsed(body).prompts[0].top_logprobs(), 0u);
}

TEST(ResponsesRequestTest, AnswersRepeatFieldsOfTheRequest) {
  const auto echoed = [](const json& body) {
    return json::parse(R"({"x":0)" + Parsed(body).echoed_fields + "}");
  };
  json echo = echoed({{"input", "Hi"}});
  EXPECT_EQ(echo.at("metadata"), json::object());
  EXPECT_EQ(echo.at("tools"), json::array());
  EXPECT_EQ(echo.at("instructions"), nullptr);
  EXPECT_EQ(echo.at("parallel_tool_calls"), true);
  echo = echoed({{"input", "Hi"},
                 {"instructions", "Be \"kind\""},
                 {"metadata", {{"a", "b"}}},
                 {"temperature", 0},
                 {"max_output_tokens", 5}});
  EXPECT_EQ(echo.at("instructions"), "Be \"kind\"");
  EXPECT_EQ(echo.at("metadata"), json({{"a", "b"}}));
  EXPECT_EQ(echo.at("temperature"), 0);
  EXPECT_EQ(echo.at("max_output_tokens"), 5);
  EXPECT_EQ(ParseChatRequest(R"({"messages": []})")->echoed_fields, "");
}

TEST(ResponsesRequestTest, ErrorsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "input"},
      {R"({"input": 3})", "input"},
      {R"({"input": ["a"]})", "input[0]"},
      {R"({"input": [{}]})", "input[0].role"},
      {R"({"input": [{"role": "king", "content": "a"}]})", "input[0].role"},
      {R"({"input": [{"role": "user"}]})", "input[0].content"},
      {R"({"input": [{"role": "user", "content": 3}]})", "input[0].content"},
      {R"({"input": [{"role": "user", "content": [3]}]})",
       "input[0].content[0]"},
      {R"({"input": [{"role": "user", "content": [{"text": "a"}]}]})",
       "input[0].content[0].type"},
      {R"({"input": [{"role": "user", "content": [{"type": "input_text"}]}]})",
       "input[0].content[0].text"},
      {R"({"input": [{"role": "user",
                      "content": [{"type": "input_image"}]}]})",
       "input[0].content[0].type"},
      {R"({"input": [{"type": "item_reference", "id": "x"}]})",
       "input[0].type"},
      {R"({"input": [{"type": "function_call", "name": "f",
                      "arguments": "{}"}]})",
       "input[0].call_id"},
      {R"({"input": [{"type": "function_call_output", "call_id": "c"}]})",
       "input[0].output"},
      {R"({"input": "a", "instructions": 3})", "instructions"},
      {R"({"input": "a", "previous_response_id": "r"})",
       "previous_response_id"},
      {R"({"input": "a", "conversation": "c"})", "conversation"},
      {R"({"input": "a", "prompt": {"id": "p"}})", "prompt"},
      {R"({"input": "a", "background": true})", "background"},
      {R"({"input": "a", "truncation": "auto"})", "truncation"},
      {R"({"input": "a", "max_output_tokens": 0})", "max_output_tokens"},
      {R"({"input": "a", "temperature": "x"})", "temperature"},
      {R"({"input": "a", "tools": 3})", "tools"},
      {R"({"input": "a", "tools": [3]})", "tools[0]"},
      {R"({"input": "a", "tools": [{"type": "web_search"}]})", "tools[0].type"},
      {R"({"input": "a", "tools": [{"type": "function"}]})", "tools[0].name"},
      {R"({"input": "a", "tool_choice": {"type": "mcp"}})", "tool_choice"},
      {R"({"input": "a", "tool_choice": "required"})", "tool_choice"},
      {R"({"input": "a", "text": 3})", "text"},
      {R"({"input": "a", "text": {"format": 3}})", "text.format"},
      {R"({"input": "a", "text": {"format": {"type": "x"}}})",
       "text.format.type"},
      {R"({"input": "a", "text": {"format": {"type": "json_schema"}}})",
       "text.format.schema"},
      {R"({"input": "a", "include": "x"})", "include"},
      {R"({"input": "a", "include": ["message.output_text.logprobs"],
           "top_logprobs": 21})",
       "top_logprobs"}};
  for (const auto& [body, field] : cases) {
    const auto api = ParseResponsesRequest(body);
    EXPECT_EQ(api.status().code(), absl::StatusCode::kInvalidArgument) << body;
    EXPECT_EQ(FieldOf(api.status()), field) << body;
    EXPECT_THAT(std::string(api.status().message()), HasSubstr(field)) << body;
  }
  EXPECT_EQ(ParseResponsesRequest("[").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ResponsesRequestTest, LaterErrorsHaveTheClientsNames) {
  const absl::Status error =
      WithResponsesField(InvalidField("messages[2].role", "is odd"));
  EXPECT_EQ(FieldOf(error), "input");
  EXPECT_EQ(error.message(), "input is odd");
  const absl::Status other =
      WithResponsesField(InvalidField("temperature", "is odd"));
  EXPECT_EQ(FieldOf(other), "temperature");
}

}  // namespace
}  // namespace baton::router::http
