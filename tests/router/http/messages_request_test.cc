#include "router/http/messages_request.h"

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
using testing::ElementsAre;
using testing::HasSubstr;

ApiRequest Asked(const json& body) {
  const auto api = ParseMessagesRequest(body.dump());
  EXPECT_TRUE(api.ok()) << api.status() << " " << body;
  return api.ok() ? *api : ApiRequest{.prompts = {{}}};
}

json ConversationOf(const json& body) {
  return json::parse(Asked(body).prompts.at(0).chat().messages());
}

// With a message, which all requests need.
json WithQuestion(json body) {
  body["messages"] = json::parse(R"([{"role": "user", "content": "Hi"}])");
  return body;
}

TEST(MessagesRequestTest, IsAChat) {
  const ApiRequest api =
      Asked(WithQuestion({{"model", "m"},
                          {"max_tokens", 7},
                          {"temperature", 0.5},
                          {"top_k", 4},
                          {"stop_sequences", {"a", "b"}},
                          {"stream", true},
                          {"seed", 3},
                          {"metadata", {{"user_id", "u"}}}}));
  EXPECT_TRUE(api.chat);
  EXPECT_TRUE(api.stream);
  EXPECT_EQ(api.n, 1);
  ASSERT_EQ(api.prompts.size(), 1u);
  const v1::GenerateRequest& prompt = api.prompts[0];
  EXPECT_EQ(prompt.model(), "m");
  EXPECT_EQ(prompt.max_tokens(), 7u);
  EXPECT_EQ(prompt.sampling().temperature(), 0.5f);
  EXPECT_EQ(prompt.sampling().top_k(), 4u);
  EXPECT_EQ(prompt.sampling().seed(), 3u);
  EXPECT_THAT(prompt.stop(), ElementsAre("a", "b"));
  EXPECT_EQ(prompt.user(), "u");
  EXPECT_EQ(json::parse(prompt.chat().messages()),
            json::parse(R"([{"role": "user", "content": "Hi"}])"));
  EXPECT_FALSE(prompt.has_response_format());
  EXPECT_FALSE(Asked(WithQuestion({})).prompts[0].has_max_tokens());
  // Records that some clients put there.
  const json longer = {{"user_id", std::string(400, 'u')}};
  EXPECT_EQ(Asked(WithQuestion({{"metadata", longer}})).prompts[0].user(),
            std::string(256, 'u'));
}

TEST(MessagesRequestTest, TurnsAreMessages) {
  EXPECT_EQ(ConversationOf(json::parse(R"({
    "system": [{"type": "text", "text": "Be kind.",
                "cache_control": {"type": "ephemeral"}},
               {"type": "text", "text": "Be short."}],
    "messages": [
      {"role": "user", "content": [{"type": "text", "text": "What is "},
                                   {"type": "text", "text": "1 + 2?"}]},
      {"role": "user", "content": "And 1 - 2?"},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "I add.", "signature": "s"},
        {"type": "redacted_thinking", "data": "?"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "c1", "name": "add",
         "input": {"a": 1, "b": 2}},
        {"type": "tool_use", "id": "c2", "name": "sub", "input": {}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c2", "content": "-1"},
        {"type": "tool_result", "tool_use_id": "c1", "content": [
          {"type": "text", "text": "it is"}, {"type": "text", "text": " 3"}]},
        {"type": "tool_result", "tool_use_id": "c3", "is_error": true},
        {"type": "text", "text": "Go on."}]},
      {"role": "assistant", "content": "3 and -1."},
      {"role": "user", "content": "Thanks."}]})")),
            json::parse(R"([
    {"role": "system", "content": [{"type": "text", "text": "Be kind."},
                                   {"type": "text", "text": "Be short."}]},
    {"role": "user", "content": [{"type": "text", "text": "What is "},
                                 {"type": "text", "text": "1 + 2?"},
                                 {"type": "text", "text": "And 1 - 2?"}]},
    {"role": "assistant", "content": "Let me see.",
     "reasoning_content": "I add.",
     "tool_calls": [
       {"id": "c1", "type": "function", "function": {
         "name": "add", "arguments": "{\"a\":1,\"b\":2}"}},
       {"id": "c2", "type": "function", "function": {
         "name": "sub", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c2", "content": "-1", "name": "sub"},
    {"role": "tool", "tool_call_id": "c1", "name": "add", "content": [
      {"type": "text", "text": "it is"}, {"type": "text", "text": " 3"}]},
    {"role": "tool", "tool_call_id": "c3", "content": ""},
    {"role": "user", "content": "Go on."},
    {"role": "assistant", "content": "3 and -1."},
    {"role": "user", "content": "Thanks."}])"));
}

TEST(MessagesRequestTest, ASystemThatSpeaksLaterIsHeardByTheUsersSide) {
  EXPECT_EQ(ConversationOf(json::parse(R"({"messages": [
      {"role": "system", "content": "Be kind."},
      {"role": "user", "content": "Hi"},
      {"role": "system", "content": "It is late."},
      {"role": "assistant", "content": "Hello."},
      {"role": "system", "content": [{"type": "text", "text": "Later."}]},
      {"role": "user", "content": "Bye"}]})")),
            json::parse(R"([
      {"role": "system", "content": "Be kind."},
      {"role": "user", "content": [{"type": "text", "text": "Hi"},
                                   {"type": "text", "text": "It is late."}]},
      {"role": "assistant", "content": "Hello."},
      {"role": "user", "content": [{"type": "text", "text": "Later."},
                                   {"type": "text", "text": "Bye"}]}])"));
}

TEST(MessagesRequestTest, WhatOnlyCallsHasNoContent) {
  EXPECT_EQ(ConversationOf(json::parse(R"({"system": "", "messages": [
      {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": [
        {"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c", "content": "x"}]}]})")),
            json::parse(R"([
      {"role": "system", "content": ""},
      {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": null, "tool_calls": [
        {"id": "c", "type": "function",
         "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "c", "content": "x", "name": "f"}])"));
}

TEST(MessagesRequestTest, AnAnswerGoesOnWithTheAssistantsLastMessage) {
  const json body = json::parse(R"({"messages": [
      {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": "Hello, "}]})");
  EXPECT_TRUE(Asked(body).prompts[0].chat().continue_final_message());
  EXPECT_EQ(ConversationOf(body).back(),
            json({{"role", "assistant"}, {"content", "Hello, "}}));
  EXPECT_FALSE(
      Asked(WithQuestion({})).prompts[0].chat().continue_final_message());
}

TEST(MessagesRequestTest, ToolsAreFunctions) {
  const json tools = json::parse(R"([
      {"name": "add", "description": "Adds.", "cache_control": {},
       "input_schema": {"type": "object"}},
      {"name": "sub", "type": "custom", "input_schema": {}}])");
  const auto with = [&](const json& choice) {
    json body = {{"tools", tools}};
    if (!choice.is_null()) body["tool_choice"] = choice;
    return Asked(WithQuestion(body));
  };
  ApiRequest api = with(nullptr);
  EXPECT_TRUE(api.tools.wanted);
  EXPECT_THAT(api.tools.names, ElementsAre("add", "sub"));
  EXPECT_EQ(json::parse(api.prompts[0].chat().tools()), json::parse(R"([
      {"type": "function", "function": {"name": "add", "description": "Adds.",
                                        "parameters": {"type": "object"}}},
      {"type": "function", "function": {"name": "sub", "parameters": {}}}])"));
  EXPECT_FALSE(api.prompts[0].has_response_format());
  EXPECT_TRUE(with({{"type", "auto"}}).tools.wanted);
  EXPECT_FALSE(with({{"type", "none"}}).tools.wanted);
  api = with({{"type", "any"}});
  EXPECT_TRUE(api.prompts[0].response_format().tool_calls().several());
  api = with({{"type", "any"}, {"disable_parallel_tool_use", true}});
  EXPECT_FALSE(api.prompts[0].response_format().tool_calls().several());
  EXPECT_EQ(api.prompts[0].response_format().tool_calls().tools_size(), 2);
  api = with({{"type", "tool"}, {"name", "sub"}});
  EXPECT_THAT(api.tools.names, ElementsAre("sub"));
  EXPECT_FALSE(Asked(WithQuestion({{"tools", json::array()}})).tools.wanted);
}

TEST(MessagesRequestTest, ThinkingIsTheTemplates) {
  const auto with = [](const json& body) { return Asked(WithQuestion(body)); };
  const auto arguments = [](const ApiRequest& api) {
    const std::string& text = api.prompts[0].chat().template_arguments();
    return text.empty() ? json() : json::parse(text);
  };
  EXPECT_EQ(arguments(with({})), json());
  const ApiRequest enabled =
      with({{"thinking", {{"type", "enabled"}, {"budget_tokens", 2000}}}});
  EXPECT_EQ(arguments(enabled), json({{"enable_thinking", true}}));
  EXPECT_TRUE(enabled.include_reasoning);
  EXPECT_EQ(arguments(with({{"thinking", {{"type", "disabled"}}}})),
            json({{"enable_thinking", false}}));
  const ApiRequest hidden =
      with({{"thinking", {{"type", "adaptive"}, {"display", "omitted"}}},
            {"chat_template_kwargs", {{"x", 1}, {"enable_thinking", false}}}});
  EXPECT_EQ(arguments(hidden), json({{"x", 1}, {"enable_thinking", false}}));
  EXPECT_FALSE(hidden.include_reasoning);
}

TEST(MessagesRequestTest, FormatsAreSchemas) {
  const json format = {{"type", "json_schema"},
                       {"schema", {{"type", "integer"}}}};
  for (const json& body :
       {json({{"output_config", {{"format", format}, {"effort", "low"}}}}),
        json({{"output_format", format}})}) {
    const ApiRequest api = Asked(WithQuestion(body));
    EXPECT_EQ(json::parse(api.prompts[0].response_format().json_schema()),
              json({{"type", "integer"}}))
        << body;
  }
}

TEST(MessagesRequestTest, EffortIsTheTemplates) {
  const auto effort = [](const char* body) {
    const ApiRequest api = Asked(WithQuestion(json::parse(body)));
    const std::string& text = api.prompts[0].chat().template_arguments();
    return json::parse(text).at("reasoning_effort");
  };
  EXPECT_EQ(effort(R"({"output_config": {"effort": "low"}})"), "low");
  EXPECT_EQ(effort(R"({"output_config": {"effort": "low"},
                       "chat_template_kwargs": {"reasoning_effort": "high"}})"),
            "high");
  EXPECT_EQ(effort(R"({"output_config": {"effort": "low"},
                       "reasoning_effort": "medium"})"),
            "medium");
}

TEST(MessagesRequestTest, OtherFieldsAreIgnored) {
  const ApiRequest api = Asked(WithQuestion(json::parse(R"({
      "service_tier": "auto", "context_management": {}, "mcp_servers": [],
      "n": 3, "logprobs": true, "stream_options": {}, "stop": 3,
      "response_format": 4, "max_completion_tokens": "x"})")));
  EXPECT_EQ(api.n, 1);
  EXPECT_FALSE(api.prompts[0].has_top_logprobs());
}

TEST(MessagesRequestTest, ErrorsNameTheField) {
  const std::vector<std::pair<const char*, const char*>> kWrong = {
      {R"({})", "messages"},
      {R"({"messages": 1})", "messages"},
      {R"({"messages": []})", "messages"},
      {R"({"messages": ["a"]})", "messages[0]"},
      {R"({"messages": [{"content": "a"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "tool", "content": "a"}]})",
       "messages[0].role"},
      {R"({"messages": [{"role": "user"}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": 1}]})",
       "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": ["a"]}]})",
       "messages[0].content[0]"},
      {R"({"messages": [{"role": "user", "content": [{}]}]})",
       "messages[0].content[0].type"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})",
       "messages[0].content[0].type"},
      {R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})",
       "messages[0].content[0].text"},
      {R"({"messages": [{"role": "user", "content": [
           {"type": "tool_result"}]}]})",
       "messages[0].content[0].tool_use_id"},
      {R"({"messages": [{"role": "user", "content": [
           {"type": "tool_result", "tool_use_id": "c",
            "content": [{"type": "image"}]}]}]})",
       "messages[0].content[0].content[0].type"},
      {R"({"messages": [{"role": "user", "content": "a"},
           {"role": "assistant", "content": [{"type": "tool_use"}]}]})",
       "messages[1].content[0].id"},
      {R"({"messages": [{"role": "user", "content": "a"},
           {"role": "assistant", "content": [
             {"type": "tool_use", "id": "c", "name": "f", "input": "{}"}]}]})",
       "messages[1].content[0].input"},
      {R"({"messages": [{"role": "user", "content": "a"},
           {"role": "assistant", "content": [
             {"type": "tool_use", "id": "c", "name": "f", "input": {}}]}]})",
       "messages"},
  };
  for (const auto& [body, field] : kWrong) {
    const auto api = ParseMessagesRequest(body);
    ASSERT_FALSE(api.ok()) << body;
    EXPECT_EQ(FieldOf(api.status()), field) << body;
    EXPECT_THAT(std::string(api.status().message()), HasSubstr(field));
  }
  const std::vector<std::pair<const char*, const char*>> kBeside = {
      {R"({"system": [{"type": "image"}]})", "system[0].type"},
      {R"({"tools": {}})", "tools"},
      {R"({"tools": [1]})", "tools[0]"},
      {R"({"tools": [{"input_schema": {}}]})", "tools[0].name"},
      {R"({"tools": [{"name": "f"}]})", "tools[0].input_schema"},
      {R"({"tools": [{"type": "web_search_20250305", "name": "web_search"}]})",
       "tools[0].type"},
      {R"({"tool_choice": "auto"})", "tool_choice"},
      {R"({"tool_choice": {"type": "some"}})", "tool_choice.type"},
      {R"({"tool_choice": {"type": "tool"}})", "tool_choice.name"},
      {R"({"tool_choice": {"type": "any"}})", "tool_choice"},
      {R"({"thinking": true})", "thinking"},
      {R"({"thinking": {"type": "deep"}})", "thinking.type"},
      {R"({"output_config": 1})", "output_config"},
      {R"({"output_config": {"effort": 3}})", "output_config.effort"},
      {R"({"output_config": {"format": {"type": "xml"}}})",
       "output_config.format.type"},
      {R"({"output_format": {"type": "json_schema"}})", "output_format.schema"},
      {R"({"output_format": {"type": "json_schema", "schema": 3}})",
       "output_config.format"},
      {R"({"mcp_servers": [{}]})", "mcp_servers"},
      {R"({"container": "c"})", "container"},
      {R"({"metadata": 1})", "metadata"},
      {R"({"stop_sequences": "a"})", "stop_sequences"},
      {R"({"stop_sequences": [1]})", "stop_sequences"},
      {R"({"max_tokens": 0})", "max_tokens"},
      {R"({"temperature": "hot"})", "temperature"},
  };
  for (const auto& [body, field] : kBeside) {
    const auto api =
        ParseMessagesRequest(WithQuestion(json::parse(body)).dump());
    ASSERT_FALSE(api.ok()) << body;
    EXPECT_THAT(FieldOf(api.status()), testing::StartsWith(field)) << body;
  }
  EXPECT_FALSE(ParseMessagesRequest("[]").ok());
}

TEST(MessagesRequestTest, AnErrorOfTheChatHasTheFieldsName) {
  const auto named = [](const char* field) {
    return FieldOf(WithMessagesField(InvalidField(field, "is wrong")));
  };
  EXPECT_EQ(named("messages[3].content"), "messages");
  EXPECT_EQ(named("stop"), "stop_sequences");
  EXPECT_EQ(named("stop[2]"), "stop_sequences[2]");
  EXPECT_EQ(named("stop_token_ids"), "stop_token_ids");
  EXPECT_EQ(named("user"), "metadata.user_id");
  EXPECT_EQ(named("top_p"), "top_p");
}

TEST(MessagesRequestTest, CountsThePromptAlone) {
  const auto counted =
      ParseCountTokensRequest(WithQuestion({{"system", "Be kind."}}).dump());
  ASSERT_TRUE(counted.ok()) << counted.status();
  EXPECT_FALSE(counted->add_special_tokens);
  EXPECT_EQ(json::parse(counted->prompt.chat().messages()).size(), 2u);
  EXPECT_EQ(FieldOf(ParseCountTokensRequest("{}").status()), "messages");
}

}  // namespace
}  // namespace baton::router::http
