#include "router/http/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/invalid_field.h"

namespace baton::router::http {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

ApiRequest Completion(const std::string& body) {
  const auto api = ParseCompletionRequest(body);
  EXPECT_TRUE(api.ok()) << body << ": " << api.status();
  return api.ok() ? *api : ApiRequest();
}

// "param: message" of a body that is refused.
std::string CompletionError(const std::string& body) {
  const absl::Status status = ParseCompletionRequest(body).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << body;
  return FieldOf(status) + ": " + std::string(status.message());
}
std::string ChatError(const std::string& body) {
  const absl::Status status = ParseChatRequest(body).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << body;
  return FieldOf(status) + ": " + std::string(status.message());
}

TEST(OpenAiRequestTest, DefaultsOfACompletion) {
  const ApiRequest api = Completion(R"({"model": "m", "prompt": "Hi"})");
  ASSERT_EQ(api.prompts.size(), 1u);
  EXPECT_EQ(api.prompts[0].model(), "m");
  EXPECT_EQ(api.prompts[0].text(), "Hi");
  EXPECT_EQ(api.prompts[0].max_tokens(), 16u);  // OpenAI's
  EXPECT_FALSE(api.prompts[0].has_top_logprobs());
  EXPECT_FALSE(api.prompts[0].sampling().has_temperature());
  EXPECT_FALSE(api.stream);
  EXPECT_EQ(api.n, 1);
}

TEST(OpenAiRequestTest, EveryFieldIsRead) {
  const ApiRequest api = Completion(R"({
    "prompt": "Hi", "max_tokens": 5, "temperature": 0.5, "top_p": 0.25,
    "top_k": 7, "min_p": 0.125, "n": 3, "best_of": 3, "echo": true,
    "stop": ["a", "b"], "seed": -2, "presence_penalty": 1,
    "frequency_penalty": -1, "repetition_penalty": 1.5,
    "logit_bias": {"5": -100, "6": 1.5}, "logprobs": 2, "stream": true,
    "stream_options": {"include_usage": true}, "user": "u",
    "cache_salt": "pepper",
    "ignore_eos": true, "min_tokens": 4, "priority": 3,
    "stop_token_ids": [1, 2], "allowed_token_ids": [9, 8.0], "unknown_field": {"x": 1}})");
  ASSERT_EQ(api.prompts.size(), 1u);
  const v1::GenerateRequest& r = api.prompts[0];
  EXPECT_EQ(r.max_tokens(), 5u);
  EXPECT_EQ(r.sampling().temperature(), 0.5f);
  EXPECT_EQ(r.sampling().top_p(), 0.25f);
  EXPECT_EQ(r.sampling().top_k(), 7u);
  EXPECT_EQ(r.sampling().min_p(), 0.125f);
  EXPECT_EQ(r.sampling().seed(), static_cast<uint64_t>(-2));
  EXPECT_EQ(r.sampling().presence_penalty(), 1.0f);
  EXPECT_EQ(r.sampling().frequency_penalty(), -1.0f);
  EXPECT_EQ(r.sampling().repetition_penalty(), 1.5f);
  EXPECT_EQ(r.sampling().logit_bias().at(5), -100.0f);
  EXPECT_EQ(r.sampling().logit_bias().at(6), 1.5f);
  EXPECT_THAT(r.stop(), ElementsAre("a", "b"));
  EXPECT_THAT(r.stop_token_ids(), ElementsAre(1, 2));
  EXPECT_THAT(r.sampling().allowed_token_ids(), ElementsAre(9, 8));
  EXPECT_EQ(r.top_logprobs(), 2u);
  EXPECT_EQ(r.user(), "u");
  EXPECT_EQ(r.cache_salt(), "pepper");
  EXPECT_TRUE(r.ignore_eos());
  EXPECT_EQ(r.min_tokens(), 4u);
  EXPECT_EQ(r.priority(), 3);
  EXPECT_EQ(api.n, 3);
  EXPECT_TRUE(api.echo);
  EXPECT_TRUE(api.stream);
  EXPECT_TRUE(api.include_usage);
}

TEST(OpenAiRequestTest, NullIsAbsent) {
  const ApiRequest api = Completion(
      R"({"prompt": "Hi", "max_tokens": null, "stop": null, "logprobs": null,
          "stream": null, "stream_options": null, "logit_bias": null,
          "suffix": null, "response_format": null, "allowed_token_ids": null,
          "stop_token_ids": null})");
  EXPECT_EQ(api.prompts[0].max_tokens(), 16u);
  EXPECT_EQ(api.prompts[0].sampling().allowed_token_ids_size(), 0);
}

TEST(OpenAiRequestTest, PromptsOfAllKinds) {
  EXPECT_EQ(Completion(R"({"prompt": ["a", "b"]})").prompts.size(), 2u);
  EXPECT_THAT(Completion(R"({"prompt": [3, 4]})").prompts[0].token_ids().ids(),
              ElementsAre(3, 4));
  const ApiRequest two = Completion(R"({"prompt": [[3, 4], [5]]})");
  ASSERT_EQ(two.prompts.size(), 2u);
  EXPECT_THAT(two.prompts[1].token_ids().ids(), ElementsAre(5));
}

TEST(OpenAiRequestTest, AnEchoHasLogprobs) {
  const auto prompt = [](const char* body) {
    return Completion(body).prompts[0];
  };
  EXPECT_FALSE(
      prompt(R"({"prompt": "a", "logprobs": 2})").has_prompt_logprobs());
  EXPECT_FALSE(
      prompt(R"({"prompt": "a", "echo": true})").has_prompt_logprobs());
  EXPECT_EQ(prompt(R"({"prompt": "a", "echo": true, "logprobs": 2})")
                .prompt_logprobs(),
            2u);
  EXPECT_EQ(prompt(R"({"prompt": "a", "max_tokens": 0})").max_tokens(), 0u);
  EXPECT_TRUE(prompt(R"({"prompt": "a", "max_tokens": 0})").has_max_tokens());
}

TEST(OpenAiRequestTest, WrongFieldsAreNamed) {
  EXPECT_THAT(CompletionError("{"), StartsWith(": the body is not JSON"));
  EXPECT_THAT(CompletionError("[]"), HasSubstr("must be a JSON object"));
  EXPECT_EQ(CompletionError("{}"), "prompt: prompt is missing");
  EXPECT_THAT(CompletionError(R"({"prompt": 3})"), StartsWith("prompt: "));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "cache_salt": 3})"),
              StartsWith("cache_salt: "));
  EXPECT_THAT(CompletionError(R"({"prompt": []})"), StartsWith("prompt: "));
  EXPECT_THAT(CompletionError(R"({"prompt": [1, "a"]})"),
              HasSubstr("the entry at 1 is a string"));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "max_tokens": "7"})"),
              StartsWith("max_tokens: max_tokens must be an integer, it is a "
                         "string"));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "max_tokens": -1})"),
              StartsWith("max_tokens: max_tokens is -1"));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "max_tokens": 1.5})"),
              StartsWith("max_tokens: "));
  EXPECT_THAT(
      CompletionError(R"({"prompt": "a", "max_tokens": 18446744073709551615})"),
      StartsWith("max_tokens: max_tokens is 18446744073709551615"));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "temperature": "hot"})"),
              StartsWith("temperature: "));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "stream": 1})"),
              StartsWith("stream: "));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "stop": [1]})"),
              StartsWith("stop: "));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "n": 0})"), StartsWith("n: "));
  EXPECT_THAT(CompletionError(R"({"prompt": ["a", "b"], "n": 128})"),
              HasSubstr("256 answers"));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "best_of": 2})"),
              StartsWith("best_of: "));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "logprobs": 21})"),
              StartsWith("logprobs: "));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "allowed_token_ids": 3})"),
              StartsWith("allowed_token_ids: allowed_token_ids must be an"));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "allowed_token_ids": []})"),
              StartsWith("allowed_token_ids: allowed_token_ids is empty"));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "allowed_token_ids": [-1]})"),
              StartsWith("allowed_token_ids: "));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "stop_token_ids": ["a"]})"),
              StartsWith("stop_token_ids: "));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "logit_bias": {"x": 1}})"),
              StartsWith("logit_bias: "));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "logit_bias": {"1": "x"}})"),
              StartsWith("logit_bias: "));
  EXPECT_THAT(
      CompletionError(
          R"({"prompt": "a", "stream_options": {"include_usage": true}})"),
      StartsWith("stream_options: "));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "stream": true,
                                  "stream_options": {"include_usage": 3}})"),
              StartsWith("stream_options.include_usage: "));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "suffix": "z"})"),
              StartsWith("suffix: "));
  EXPECT_THAT(CompletionError(R"({"prompt": "a", "functions": []})"),
              StartsWith("functions: "));
}

v1::ResponseFormat FormatOf(const std::string& fields) {
  const ApiRequest api =
      Completion(absl::StrCat(R"({"prompt": "a", )", fields, "}"));
  return api.prompts[0].response_format();
}

TEST(OpenAiRequestTest, FormatsOfOpenAiAndVllm) {
  EXPECT_FALSE(Completion(R"({"prompt": "a",
                              "response_format": {"type": "text"},
                              "guided_json": "", "guided_regex": null})")
                   .prompts[0]
                   .has_response_format());
  EXPECT_TRUE(FormatOf(R"("response_format": {"type": "json_object"})")
                  .has_json_object());
  // The order of what a schema names counts.
  const std::string schema = R"({"type":"object","z":1,"a":[2.5,"x"]})";
  EXPECT_EQ(FormatOf(absl::StrCat(R"("response_format": {
      "type": "json_schema", "json_schema": {"name": "n", "strict": true,
      "schema": )",
                                  schema, "}}"))
                .json_schema(),
            R"({"type":"object","z":1,"a":[2.5E0,"x"]})");
  EXPECT_TRUE(
      FormatOf(R"("structured_outputs": {"json_object": true, "regex": null})")
          .has_json_object());
  for (const char* fields : {R"("structured_outputs": {"regex": "a+"})",
                             R"("guided_regex": "a+")"}) {
    EXPECT_EQ(FormatOf(fields).regex(), "a+");
  }
  for (const char* fields : {R"("structured_outputs": {"choice": ["a", "b"]})",
                             R"("guided_choice": ["a", "b"])"}) {
    EXPECT_THAT(FormatOf(fields).choice().texts(), ElementsAre("a", "b"));
  }
  // Some clients write a schema as a string.
  for (const char* fields :
       {R"("structured_outputs": {"json": {"type": "null"}})",
        R"("guided_json": "{\"type\":\"null\"}")"}) {
    EXPECT_EQ(FormatOf(fields).json_schema(), R"({"type":"null"})");
  }
}

TEST(OpenAiRequestTest, FormatsThatAreNoneAreNamed) {
  const auto why = [](const std::string& fields) {
    return CompletionError(absl::StrCat(R"({"prompt": "a", )", fields, "}"));
  };
  EXPECT_EQ(why(R"("response_format": "json")"),
            "response_format: response_format must be an object, it is a "
            "string");
  EXPECT_EQ(why(R"("response_format": {})"),
            "response_format.type: response_format.type is missing");
  EXPECT_EQ(why(R"("response_format": {"type": "grammar"})"),
            "response_format.type: response_format.type is \"grammar\", it "
            "must be text, json_object or json_schema");
  EXPECT_EQ(why(R"("response_format": {"type": "json_schema"})"),
            "response_format.json_schema: response_format.json_schema is "
            "missing");
  EXPECT_EQ(
      why(R"("response_format": {"type": "json_schema", "json_schema": {}})"),
      "response_format.json_schema.schema: response_format.json_schema.schema "
      "is missing");
  EXPECT_THAT(why(R"("guided_json": 3)"),
              StartsWith("guided_json: guided_json must be a JSON schema"));
  EXPECT_THAT(why(R"("guided_choice": "a")"), StartsWith("guided_choice: "));
  EXPECT_THAT(why(R"("guided_choice": [1])"), StartsWith("guided_choice: "));
  EXPECT_THAT(why(R"("guided_regex": 1)"), StartsWith("guided_regex: "));
  EXPECT_THAT(why(R"("guided_grammar": "root ::= x")"),
              StartsWith("guided_grammar: "));
  EXPECT_THAT(why(R"("structured_outputs": {"grammar": "x"})"),
              StartsWith("structured_outputs.grammar: "));
  for (const char* fields :
       {"{}", R"({"regex": "a", "json": {}})", R"({"json_object": false})"}) {
    EXPECT_THAT(why(absl::StrCat(R"("structured_outputs": )", fields)),
                HasSubstr("must have one of json, regex, choice"));
  }
  EXPECT_THAT(why(R"("guided_regex": "a",
                     "response_format": {"type": "json_object"})"),
              StartsWith("guided_regex: guided_regex is one format more"));
}

TEST(OpenAiRequestTest, ChatKeepsWhatTheTemplateReads) {
  const auto api = ParseChatRequest(R"({
    "messages": [{"role": "user", "content": "Hi", "name": "x"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "auto", "max_tokens": 3, "max_completion_tokens": 5,
    "logprobs": true, "top_logprobs": 4,
    "chat_template_kwargs": {"enable_thinking": false}})");
  ASSERT_TRUE(api.ok()) << api.status();
  EXPECT_TRUE(api->chat);
  const v1::GenerateRequest& r = api->prompts[0];
  EXPECT_EQ(r.chat().messages(),
            R"([{"role":"user","content":"Hi","name":"x"}])");
  EXPECT_EQ(r.chat().tools(),
            R"([{"type":"function","function":{"name":"f"}}])");
  EXPECT_EQ(r.chat().tool_choice(), R"("auto")");
  EXPECT_EQ(r.chat().template_arguments(), R"({"enable_thinking":false})");
  EXPECT_EQ(r.max_tokens(), 5u);
  EXPECT_EQ(r.top_logprobs(), 4u);
  EXPECT_FALSE(r.chat().omit_generation_prompt());
}

TEST(OpenAiRequestTest, EffortIsAVariableOfTheTemplate) {
  const auto arguments = [](const std::string& fields) {
    const auto api = ParseChatRequest("{\"messages\": [], " + fields + "}");
    EXPECT_TRUE(api.ok()) << api.status();
    return api->prompts[0].chat().template_arguments();
  };
  EXPECT_EQ(arguments(R"("reasoning_effort": "low")"),
            R"({"reasoning_effort":"low"})");
  EXPECT_EQ(arguments(R"("reasoning_effort": null)"), "");
  EXPECT_EQ(arguments(R"("reasoning_effort": "low",
                         "chat_template_kwargs": {"x": 1})"),
            R"({"x":1,"reasoning_effort":"low"})");
  // What is for the template alone is meant for it.
  EXPECT_EQ(arguments(R"("reasoning_effort": "low",
                         "chat_template_kwargs": {"reasoning_effort": 7})"),
            R"({"reasoning_effort":7})");
  EXPECT_THAT(ChatError(R"({"messages": [], "reasoning_effort": 1})"),
              StartsWith("reasoning_effort: reasoning_effort must be"));
}

TEST(OpenAiRequestTest, ChatErrors) {
  EXPECT_EQ(ChatError("{}"), "messages: messages is missing");
  EXPECT_THAT(ChatError(R"({"messages": [], "top_logprobs": 3})"),
              StartsWith("top_logprobs: "));
  EXPECT_THAT(ChatError(R"({"messages": [], "logprobs": 3})"),
              StartsWith("logprobs: logprobs must be a boolean"));
}

TEST(OpenAiRequestTest, HeadersSetTargetsAndClass) {
  ApiRequest api = Completion(R"({"prompt": ["a", "b"], "priority": 1})");
  Request request;
  request.headers = {{"x-baton-ttft-ms", "250"},
                     {"x-baton-itl-ms", "40"},
                     {"x-baton-class", "batch"},
                     {"x-baton-priority", "-3"}};
  ASSERT_TRUE(ApplyHeaders(request, &api).ok());
  for (const v1::GenerateRequest& r : api.prompts) {
    EXPECT_EQ(r.target().ttft_ms(), 250u);
    EXPECT_EQ(r.target().itl_ms(), 40u);
    EXPECT_EQ(r.request_class(), v1::REQUEST_CLASS_BATCH);
    EXPECT_EQ(r.priority(), -3);
  }
  request.headers = {{"x-baton-ttft-ms", "soon"}};
  EXPECT_EQ(FieldOf(ApplyHeaders(request, &api)), "x-baton-ttft-ms");
  request.headers = {{"x-baton-class", "vip"}};
  EXPECT_EQ(FieldOf(ApplyHeaders(request, &api)), "x-baton-class");
}

TEST(OpenAiRequestTest, TokenizeAndDetokenize) {
  const auto text = ParseTokenizeRequest(R"({"prompt": "Hi"})");
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text->prompt.text(), "Hi");
  EXPECT_TRUE(text->add_special_tokens);
  const auto chat = ParseTokenizeRequest(R"({"messages": []})");
  ASSERT_TRUE(chat.ok());
  EXPECT_FALSE(chat->add_special_tokens);
  EXPECT_EQ(FieldOf(ParseTokenizeRequest("{}").status()), "prompt");
  const auto ids = ParseDetokenizeRequest(R"({"tokens": [1, 2]})");
  ASSERT_TRUE(ids.ok());
  EXPECT_THAT(*ids, ElementsAre(1, 2));
  EXPECT_EQ(FieldOf(ParseDetokenizeRequest(R"({"tokens": [-1]})").status()),
            "tokens");
}

}  // namespace
}  // namespace baton::router::http
