// The OpenAI API of a real router among fake workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/json.h"
#include "tests/router/http_api_fixture.h"

namespace baton::router {
namespace {

using nlohmann::json;
using test::HttpClient;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

json ErrorOf(const HttpClient::Reply& reply) {
  return json::parse(reply.body).at("error");
}

TEST_F(HttpApiTest, AWholeCompletion) {
  Start();
  const std::vector<uint32_t> ids = Ids(" a small dog ran");
  client_->Send("POST", "/v1/completions",
                R"({"model": "stories", "prompt": [5, 6, 7], "max_tokens": 9,
                    "temperature": 0, "min_tokens": 2, "logit_bias": {"3": 4},
                    "seed": 11})",
                {{"x-request-id", "my-id"}});
  const uint64_t attempt = Accept();
  EXPECT_THAT(sequence_.tokens(), ElementsAre(5, 6, 7));
  EXPECT_EQ(sequence_.max_output_tokens(), 9u);
  EXPECT_EQ(sequence_.min_output_tokens(), 2u);
  EXPECT_EQ(sequence_.sampling().seed(), 11u);
  ASSERT_EQ(sequence_.sampling().logit_bias_size(), 1);
  EXPECT_EQ(sequence_.sampling().logit_bias(0).bias(), 4.0f);
  Answer(attempt, ids, v1::FINISH_REASON_LENGTH);
  const HttpClient::Reply reply = client_->ReadReply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.Header("x-request-id"), "my-id");
  EXPECT_EQ(reply.Header("content-type"), "application/json");
  const json body = json::parse(reply.body);
  EXPECT_EQ(body["id"], "my-id");
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["choices"][0]["text"], " a small dog ran");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(body["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], ids.size());
  // The connection serves the next request.
  EXPECT_EQ(client_->Get("/healthz").status, 200);
}

TEST_F(HttpApiTest, StreamsWhatComesWhenItComes) {
  Start();
  const std::vector<uint32_t> ids = Ids(" a small dog ran");
  ASSERT_GE(ids.size(), 2u);
  client_->Send("POST", "/v1/completions",
                R"({"prompt": [5, 6, 7], "max_tokens": 9, "stream": true,
                    "stream_options": {"include_usage": true}})");
  const uint64_t attempt = Accept();
  prefill_->SendToken(attempt, 0, ids[0]);
  // The head and the first event, while the rest is not even computed.
  const HttpClient::Reply head = client_->ReadHead();
  EXPECT_EQ(head.status, 200);
  EXPECT_THAT(head.Header("content-type"), StartsWith("text/event-stream"));
  EXPECT_EQ(head.Header("transfer-encoding"), "chunked");
  const auto first = client_->ReadEvent();
  ASSERT_TRUE(first.has_value());
  const json chunk = json::parse(*first);
  EXPECT_EQ(chunk["object"], "text_completion");
  EXPECT_EQ(chunk["model"], "stories");
  EXPECT_EQ(chunk["choices"][0]["index"], 0);
  EXPECT_TRUE(chunk["choices"][0]["finish_reason"].is_null());
  EXPECT_TRUE(chunk["usage"].is_null());
  std::string text = chunk["choices"][0]["text"];
  for (size_t i = 1; i < ids.size(); ++i) {
    decode_->SendToken(attempt, static_cast<uint32_t>(i), ids[i]);
  }
  decode_->SendToken(attempt, static_cast<uint32_t>(ids.size()), kEos,
                     v1::FINISH_REASON_STOP);
  prefill_->SendOk(attempt);
  decode_->SendOk(attempt);
  const std::vector<json> rest = ReadChunks();
  ASSERT_GE(rest.size(), 2u);
  for (size_t i = 0; i + 1 < rest.size(); ++i) {
    text += rest[i]["choices"][0]["text"];
  }
  EXPECT_EQ(text, " a small dog ran");
  EXPECT_EQ(rest[rest.size() - 2]["choices"][0]["finish_reason"], "stop");
  const json& last = rest.back();
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(last["usage"]["completion_tokens"], ids.size() + 1);
  EXPECT_EQ(last["usage"]["total_tokens"], ids.size() + 4);
}

TEST_F(HttpApiTest, AStopStringEndsTheAnswerAndTheWork) {
  Start();
  const std::vector<uint32_t> ids = Ids(" one two three four");
  client_->Send("POST", "/v1/completions",
                R"({"prompt": [5], "max_tokens": 50, "stream": true,
                    "stop": [" three"]})");
  const uint64_t attempt = Accept();
  for (size_t i = 0; i < ids.size(); ++i) {
    (i == 0 ? prefill_ : decode_)
        ->SendToken(attempt, static_cast<uint32_t>(i), ids[i]);
  }
  EXPECT_EQ(client_->ReadHead().status, 200);
  std::string text;
  std::string finish;
  for (const json& chunk : ReadChunks()) {
    text += chunk["choices"][0]["text"];
    if (!chunk["choices"][0]["finish_reason"].is_null()) {
      finish = chunk["choices"][0]["finish_reason"];
    }
  }
  EXPECT_EQ(text, " one two");
  EXPECT_EQ(finish, "stop");
  // Nobody computes on.
  EXPECT_EQ(decode_->NextCancel().attempt(), attempt);
}

TEST_F(HttpApiTest, ErrorsHaveOpenAisShape) {
  Start();
  HttpClient::Reply reply =
      client_->Post("/v1/completions", R"({"prompt": [5], "temperature": -1})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(ErrorOf(reply)["param"], "temperature");
  EXPECT_EQ(ErrorOf(reply)["type"], "invalid_request_error");
  EXPECT_THAT(reply.Header("x-request-id"), StartsWith("cmpl-"));
  reply = client_->Post("/v1/completions", R"({"prompt": [5000]})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(ErrorOf(reply)["param"], "prompt");
  EXPECT_THAT(ErrorOf(reply)["message"].get<std::string>(),
              StartsWith("prompt has 5000"));
  reply =
      client_->Post("/v1/completions", R"({"prompt": "a", "model": "gpt-9"})");
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(ErrorOf(reply)["code"], "model_not_found");
  reply = client_->Post("/v1/chat/completions", R"({"messages": 3})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(ErrorOf(reply)["param"], "messages");
  reply = client_->Post("/v1/nothing", "{}");
  EXPECT_EQ(reply.status, 404);
  reply = client_->Get("/v1/completions");
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.Header("allow"), "POST");
}

TEST_F(HttpApiTest, AWorkersRefusalIsAStatusNotAStream) {
  Start();
  client_->Send("POST", "/v1/completions",
                R"({"prompt": [5], "stream": true})");
  const uint64_t attempt = decode_->NextReserve().attempt();
  prefill_->NextPrefill();
  decode_->SendRefusal(attempt, v1::REFUSAL_REASON_TOO_LARGE, 0);
  const HttpClient::Reply head = client_->ReadHead();
  EXPECT_EQ(head.status, 400);
  EXPECT_EQ(head.Header("content-type"), "application/json");
}

TEST_F(HttpApiTest, AFailureInMidStreamIsAnErrorEvent) {
  options_.flow.max_attempts = 1;
  Start();
  client_->Send("POST", "/v1/completions",
                R"({"prompt": [5], "stream": true})");
  const uint64_t attempt = Accept();
  prefill_->SendToken(attempt, 0, Ids(" a")[0]);
  EXPECT_EQ(client_->ReadHead().status, 200);
  ASSERT_TRUE(client_->ReadEvent().has_value());
  decode_->SendFailure(attempt, "it broke", /*retryable=*/true);
  const auto event = client_->ReadEvent();
  ASSERT_TRUE(event.has_value());
  EXPECT_THAT(json::parse(*event)["error"]["message"].get<std::string>(),
              HasSubstr("it broke"));
  EXPECT_EQ(client_->ReadEvent(), "[DONE]");
}

TEST_F(HttpApiTest, SeveralAnswersShareAStream) {
  Start();
  const std::vector<uint32_t> one = Ids(" one");
  const std::vector<uint32_t> two = Ids(" two");
  client_->Send("POST", "/v1/completions",
                R"({"prompt": [[5], [6, 7]], "n": 2, "stream": true, "seed": 3,
                    "stream_options": {"include_usage": true}})",
                {{"x-request-id", "many"}});
  std::vector<uint64_t> seeds;
  for (int i = 0; i < 4; ++i) {
    const uint64_t attempt = Accept();
    EXPECT_EQ(sequence_.request_id(), absl::StrCat("many-", i));
    seeds.push_back(sequence_.sampling().seed());
    std::vector<uint32_t> ids = i % 2 == 0 ? one : two;
    ids.push_back(kEos);
    Answer(attempt, ids, v1::FINISH_REASON_STOP);
  }
  EXPECT_THAT(seeds, ElementsAre(3, 4, 3, 4));
  EXPECT_EQ(client_->ReadHead().status, 200);
  std::map<int, std::string> texts;
  json usage;
  for (const json& chunk : ReadChunks()) {
    if (chunk["choices"].empty()) {
      usage = chunk["usage"];
    } else {
      texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"];
    }
  }
  EXPECT_EQ(texts, (std::map<int, std::string>{
                       {0, " one"}, {1, " two"}, {2, " one"}, {3, " two"}}));
  // A prompt counts once, however often it was answered.
  EXPECT_EQ(usage["prompt_tokens"], 3);
  EXPECT_EQ(usage["completion_tokens"], 2 * (one.size() + two.size()) + 4);
}

// A proxy that ends silent connections sees that it is alive.
TEST_F(HttpApiTest, AStreamThatWaitsSaysSo) {
  options_.http.quiet_interval = absl::Milliseconds(5);
  Start();
  client_->Send("POST", "/v1/completions",
                R"({"prompt": [5], "stream": true, "max_tokens": 9})");
  const uint64_t attempt = Accept();
  // Before anything is known.
  const HttpClient::Reply head = client_->ReadHead();
  EXPECT_EQ(head.status, 200);
  EXPECT_THAT(head.Header("content-type"), StartsWith("text/event-stream"));
  Answer(attempt, {Ids(" one")[0], kEos}, v1::FINISH_REASON_STOP);
  std::string text;
  for (const json& chunk : ReadChunks()) {
    text += chunk["choices"][0]["text"];
  }
  EXPECT_EQ(text, " one");
  EXPECT_GE(client_->comments(), 1);
  // What goes wrong after that is an event.
  client_->Send("POST", "/v1/completions",
                R"({"prompt": [5], "stream": true, "max_tokens": 9})");
  const uint64_t failed = Accept();
  EXPECT_EQ(client_->ReadHead().status, 200);
  prefill_->SendFailure(failed, "broken", /*retryable=*/false);
  const auto error = client_->ReadEvent();
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(std::string(json::parse(*error)["error"]["message"]),
              HasSubstr("broken"));
  EXPECT_EQ(client_->ReadEvent(), "[DONE]");
  // And not where it is no stream: this one waits as long.
  client_->Close();
  client_ = Connect();
  client_->Send("POST", "/v1/completions", R"({"prompt": [5]})");
  const uint64_t whole = Accept();
  const auto other = Connect();
  other->Send("POST", "/v1/completions",
              R"({"prompt": [5], "stream": true, "max_tokens": 9})");
  const uint64_t beside = Accept();
  EXPECT_EQ(other->ReadHead().status, 200);
  Answer(whole, {Ids(" one")[0], kEos}, v1::FINISH_REASON_STOP);
  EXPECT_EQ(json::parse(client_->ReadReply().body)["choices"][0]["text"],
            " one");
  Answer(beside, {Ids(" two")[0], kEos}, v1::FINISH_REASON_STOP);
}

TEST_F(HttpApiTest, AClientThatLeavesEndsTheWork) {
  Start();
  client_->Send("POST", "/v1/completions",
                R"({"prompt": [5], "stream": true})");
  const uint64_t attempt = Accept();
  prefill_->SendToken(attempt, 0, Ids(" a")[0]);
  EXPECT_EQ(client_->ReadHead().status, 200);
  client_->Close();
  EXPECT_EQ(decode_->NextCancel().attempt(), attempt);
  EXPECT_EQ(prefill_->NextCancel().attempt(), attempt);
}

TEST_F(HttpApiTest, AClientThatLeavesBeforeTheFirstTokenToo) {
  Start();
  client_->Send("POST", "/v1/completions", R"({"prompt": [5]})");
  const uint64_t attempt = Accept();
  client_->Close();
  EXPECT_EQ(decode_->NextCancel().attempt(), attempt);
}

TEST_F(HttpApiTest, EchoAndLogprobs) {
  Start();
  std::vector<uint32_t> ids = Ids(" one");
  ids.push_back(kEos);
  client_->Send("POST", "/v1/completions",
                R"({"prompt": [5], "logprobs": 2, "echo": true})");
  const uint64_t attempt = Accept();
  EXPECT_EQ(sequence_.top_logprobs(), 2u);
  Answer(attempt, ids, v1::FINISH_REASON_STOP);
  const json body = json::parse(client_->ReadReply().body);
  const json& choice = body["choices"][0];
  const std::string prompt = json::parse(
      client_->Post("/detokenize", R"({"tokens": [5]})").body)["prompt"];
  EXPECT_EQ(choice["text"], prompt + " one");
  const json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"].size(), 1 + ids.size());
  EXPECT_EQ(logprobs["token_logprobs"].size(), 1 + ids.size());
  // Nothing comes before the first token.
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  EXPECT_EQ(logprobs["text_offset"][1], prompt.size());
}

// What evaluations ask for: a prompt's log-probabilities, and no answer.
TEST_F(HttpApiTest, ScoresAPrompt) {
  Start();
  const json tokens = json::parse(
      client_->Post("/tokenize", R"({"prompt": "One day"})").body)["tokens"];
  ASSERT_GE(tokens.size(), 3u);  // with the one that begins a text
  const std::vector<float> scores(tokens.size() - 1, -0.5f);
  for (const bool stream : {false, true}) {
    json request = {{"prompt", "One day"},
                    {"logprobs", 1},
                    {"echo", true},
                    {"max_tokens", 0},
                    {"temperature", 0}};
    request["stream"] = stream;
    client_->Send("POST", "/v1/completions", request.dump());
    const uint64_t attempt = Accept();
    EXPECT_EQ(sequence_.max_output_tokens(), 1u);
    EXPECT_EQ(sequence_.prompt_logprobs().first(), 1u);
    EXPECT_EQ(sequence_.prompt_logprobs().top(), 1u);
    prefill_->SendPromptLogprobs(attempt, 1, {-0.5f}, 1);
    prefill_->SendPromptLogprobs(
        attempt, 2, std::vector<float>(scores.begin() + 1, scores.end()), 1);
    prefill_->SendToken(attempt, 0, 40, v1::FINISH_REASON_LENGTH);
    prefill_->SendOk(attempt);
    std::string text;
    json said, values, top, offsets;
    json body;
    std::vector<json> parts;
    if (stream) {
      EXPECT_EQ(client_->ReadHead().status, 200);
      parts = ReadChunks();
    } else {
      body = json::parse(client_->ReadReply().body);
      EXPECT_EQ(body["usage"]["completion_tokens"], 0);
      EXPECT_EQ(body["usage"]["prompt_tokens"], tokens.size());
      parts = {body};
    }
    for (const json& part : parts) {
      const json& choice = part["choices"][0];
      text += choice["text"];
      if (choice["logprobs"].is_null()) continue;
      for (const auto& [to, from] : {std::pair{&said, "tokens"},
                                     {&values, "token_logprobs"},
                                     {&top, "top_logprobs"},
                                     {&offsets, "text_offset"}}) {
        for (const json& one : choice["logprobs"][from]) to->push_back(one);
      }
    }
    EXPECT_EQ(parts.back()["choices"][0]["finish_reason"], "length");
    EXPECT_EQ(text, "One day");
    ASSERT_EQ(said.size(), tokens.size());
    EXPECT_EQ(values[0], nullptr);
    EXPECT_EQ(values[1], -0.5);
    EXPECT_EQ(top[0], nullptr);
    EXPECT_EQ(top[1].size(), 1u);
    // The text is the tokens', but for the special one.
    std::string joined;
    for (size_t i = 1; i < said.size(); ++i) {
      EXPECT_EQ(offsets[i], joined.size()) << i;
      joined += said[i];
    }
    EXPECT_EQ(offsets[0], 0);
    EXPECT_EQ(joined, "One day");
  }
}

TEST_F(HttpApiTest, ScoresOfManyPromptsAreBounded) {
  Start();
  json prompts = json::array();
  for (int i = 0; i < 30; ++i) prompts.push_back(std::vector<int>(450, 7));
  const json request = {
      {"prompt", prompts}, {"logprobs", 20}, {"echo", true}, {"max_tokens", 1}};
  const auto reply = client_->Post("/v1/completions", request.dump());
  EXPECT_EQ(reply.status, 400);
  const json error = json::parse(reply.body)["error"];
  EXPECT_EQ(error["param"], "logprobs");
  EXPECT_THAT(std::string(error["message"]), HasSubstr("more than 262144"));
}

TEST_F(HttpApiTest, ModelsHealthAndCluster) {
  Start();
  json reply = json::parse(client_->Get("/v1/models").body);
  EXPECT_EQ(reply["object"], "list");
  EXPECT_EQ(reply["data"][0]["id"], "stories");
  EXPECT_EQ(reply["data"][0]["max_model_len"], 512);
  EXPECT_EQ(reply["data"][0]["chat"], true);
  EXPECT_EQ(client_->Get("/v1/models/stories").status, 200);
  EXPECT_EQ(client_->Get("/v1/models/other").status, 404);
  EXPECT_EQ(client_->Get("/healthz").status, 200);
  EXPECT_EQ(client_->Get("/readyz").status, 200);
  reply = json::parse(client_->Get("/api/cluster").body);
  EXPECT_EQ(reply["router_name"], "router");
  ASSERT_EQ(reply["workers"].size(), 2u);
  EXPECT_EQ(reply["workers"][0]["name"], "p0");
  EXPECT_EQ(reply["running_requests"], 0);
  EXPECT_THAT(client_->Get("/metrics").body,
              HasSubstr("baton_num_requests_running"));
}

TEST_F(HttpApiTest, CountsWhetherTargetsWereMet) {
  Start();
  std::vector<uint32_t> ids = Ids(" one");
  ids.push_back(kEos);
  for (const char* ttft_ms : {"60000", "1"}) {
    client_->Send("POST", "/v1/completions", R"({"prompt": [5]})",
                  {{"x-baton-ttft-ms", ttft_ms}, {"x-baton-class", "batch"}});
    const uint64_t attempt = Accept();
    // Another answer's way there and back takes longer than the target.
    const absl::Time too_late = absl::Now() + absl::Milliseconds(2);
    while (absl::Now() < too_late) Ids(" dog");
    Answer(attempt, ids, v1::FINISH_REASON_STOP);
    EXPECT_EQ(client_->ReadReply().status, 200);
  }
  const std::string page = client_->Get("/metrics").body;
  for (const char* met : {"yes", "no"}) {
    EXPECT_THAT(page, testing::ContainsRegex(absl::StrCat(
                          "baton_request_targets_total\\{[^}]*class=\"batch\","
                          "met=\"",
                          met, "\"[^}]*\\} 1")));
  }
}

TEST_F(HttpApiTest, NotReadyWithoutWorkers) {
  Start();
  decode_->Die();
  AwaitServing(false);
  const HttpClient::Reply reply = client_->Get("/readyz");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(json::parse(reply.body)["status"], "no workers");
  EXPECT_EQ(client_->Get("/healthz").status, 200);
}

TEST_F(HttpApiTest, TokenizeAndBack) {
  Start();
  const HttpClient::Reply reply = client_->Post(
      "/tokenize", R"({"prompt": "Once upon", "add_special_tokens": false})");
  ASSERT_EQ(reply.status, 200);
  const json tokens = json::parse(reply.body);
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  const HttpClient::Reply back =
      client_->Post("/detokenize", json({{"tokens", tokens["tokens"]}}).dump());
  EXPECT_EQ(json::parse(back.body)["prompt"], "Once upon");
  EXPECT_EQ(client_->Post("/detokenize", R"({"tokens": [99999]})").status, 400);
}

TEST_F(HttpApiTest, LongPromptsAreReadByTheIntake) {
  Start();
  // Longer than what is read at once, and than the context: refused after
  // tokenizing.
  std::string text;
  while (text.size() < 100000) text += "once upon a time ";
  const HttpClient::Reply reply =
      client_->Post("/v1/completions", json({{"prompt", text}}).dump());
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(ErrorOf(reply)["message"].get<std::string>(),
              HasSubstr("the context is 512"));
}

}  // namespace
}  // namespace baton::router
