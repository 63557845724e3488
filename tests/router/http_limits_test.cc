// What a real router, among fake workers, refuses before it reads a body, and
// what it lets a proper client have, however long.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/json.h"
#include "router/access/key_file.h"
#include "tests/router/http/raw_client.h"
#include "tests/router/router_fixture.h"
#include "tests/support/http_client.h"
#include "tests/support/scratch_dir.h"

namespace baton::router {
namespace {

using http::RawAnswer;
using http::RawClient;
using nlohmann::json;
using test::FakeWorker;
using test::HttpClient;
using testing::HasSubstr;

class HttpLimitsTest : public RouterTest {
 protected:
  HttpLimitsTest() { options_.http.listen = "127.0.0.1:0"; }

  void UseKeys() {
    KeyEntry entry;
    entry.name = "alice";
    entry.hash = HashKey("alice-key");
    options_.api_keys_file = scratch_.path() + "/keys.txt";
    std::ofstream(options_.api_keys_file) << FormatKeyLine(entry) << "\n";
  }
  // A model that differs from the usual one by its context alone.
  void UseContext(int tokens) {
    const std::string dir = scratch_.path() + "/stories";
    std::filesystem::create_directory(dir);
    for (const char* file :
         {"config.json", "generation_config.json", "tokenizer.json"}) {
      std::ifstream in(options_.model_dir + "/" + file);
      const std::string text((std::istreambuf_iterator<char>(in)), {});
      std::ofstream(dir + "/" + file) << absl::StrReplaceAll(
          text, {{"\"max_position_embeddings\": 512",
                  absl::StrCat("\"max_position_embeddings\": ", tokens)}});
    }
    options_.model_dir = dir;
  }
  FakeWorker* AddLarge(v1::WorkerRole role, const std::string& name,
                       int context) {
    FakeWorker::Options options;
    options.hello = FakeWorker::Hello(role, name);
    options.hello.set_total_blocks(1 << 20);
    options.hello.set_max_context(static_cast<uint32_t>(context));
    options.hello.set_max_queued_tokens(1 << 24);
    return Add(options);
  }

  // The answer to a request whose header is all that is sent.
  RawAnswer AnswerToHead(const std::string& head) {
    RawClient client(router_->http_address());
    EXPECT_TRUE(client.Send(head));
    return client.Read();
  }

  const test::ScratchDir scratch_;
};

std::string Head(const std::string& host, const std::string& headers,
                 size_t length) {
  return absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: ", host, "\r\n",
                      headers, "Content-Length: ", length, "\r\n\r\n");
}

TEST_F(HttpLimitsTest, ABodyIsNotReadBeforeTheKey) {
  UseKeys();
  StartRouter();
  constexpr size_t kLength = 16 << 20;
  for (const char* key : {"", "Authorization: Bearer other-key\r\n"}) {
    const RawAnswer answer = AnswerToHead(Head("x", key, kLength));
    EXPECT_EQ(answer.status, 401);
    EXPECT_THAT(answer.body, HasSubstr("invalid_api_key"));
    EXPECT_EQ(answer.headers.at("www-authenticate"), "Bearer");
  }
  const RawAnswer named =
      AnswerToHead(Head("x", "X-Request-Id: mine\r\n", kLength));
  EXPECT_EQ(named.headers.at("x-request-id"), "mine");
  EXPECT_EQ(AnswerToHead(absl::StrReplaceAll(Head("x", "", kLength),
                                             {{"completions", "nothing"}}))
                .status,
            404);
  EXPECT_EQ(AnswerToHead(
                absl::StrReplaceAll(Head("x", "", kLength), {{"POST", "PUT"}}))
                .status,
            405);
  // With the key it is waited for.
  RawClient client(router_->http_address());
  ASSERT_TRUE(client.Send(Head("x",
                               "Authorization: Bearer alice-key\r\n"
                               "Expect: 100-continue\r\n",
                               kLength)));
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), HasSubstr("100 Continue"));
}

TEST_F(HttpLimitsTest, WhatThereIsNoRoomToReadIsCountedAndMayComeAgain) {
  options_.http.max_body_bytes_total = 80 << 10;
  options_.metrics = "127.0.0.1:0";
  StartRouter();
  const char* const rejected =
      "baton_admission_total{model_name=\"stories\",role=\"router\","
      "worker=\"router\",outcome=\"rejected\",reason=\"intake_full\"}";
  EXPECT_EQ(Metric(rejected), 0);
  constexpr size_t kLength = 90 << 10;
  const RawAnswer answer = AnswerToHead(
      Head(router_->http_address(), "", kLength) + std::string(kLength, 'x'));
  ASSERT_EQ(answer.status, 429);
  EXPECT_EQ(answer.headers.at("retry-after"), "1");
  EXPECT_THAT(answer.body, HasSubstr("rate_limit_exceeded"));
  EXPECT_EQ(Metric(rejected), 1);
}

TEST_F(HttpLimitsTest, HealthNeedsNoKeyAndTheRestDoes) {
  UseKeys();
  StartRouter();
  HttpClient client(router_->http_address());
  EXPECT_EQ(client.Get("/healthz").status, 200);
  EXPECT_EQ(client.Get("/").status, 200);
  for (const char* path : {"/metrics", "/api/cluster", "/v1/models"}) {
    EXPECT_EQ(client.Get(path).status, 401) << path;
    EXPECT_EQ(client.Get(path, {{"authorization", "Bearer alice-key"}}).status,
              200)
        << path;
  }
  for (const char* path : {"/tokenize", "/detokenize", "/v1/completions"}) {
    EXPECT_EQ(client.Post(path, "{}").status, 401) << path;
    EXPECT_EQ(
        client.Post(path, "{}", {{"authorization", "Bearer alice-key"}}).status,
        400)
        << path;
  }
}

// As Anthropic's clients say it.
TEST_F(HttpLimitsTest, AKeyMayHaveAHeaderOfItsOwn) {
  UseKeys();
  StartRouter();
  HttpClient client(router_->http_address());
  for (const char* path : {"/v1/messages", "/v1/messages/count_tokens"}) {
    HttpClient::Reply reply =
        client.Post(path, "{}", {{"x-api-key", "other-key"}});
    EXPECT_EQ(reply.status, 401) << path;
    EXPECT_EQ(json::parse(reply.body)["error"]["type"], "authentication_error");
    reply = client.Post(path, "{}", {{"x-api-key", "alice-key"}});
    EXPECT_EQ(reply.status, 400) << path;
  }
  EXPECT_EQ(client.Get("/v1/models", {{"x-api-key", "alice-key"}}).status, 200);
  // The older one is what counts.
  EXPECT_EQ(client
                .Get("/v1/models", {{"x-api-key", "alice-key"},
                                    {"authorization", "Bearer other-key"}})
                .status,
            401);
}

TEST_F(HttpLimitsTest, WithoutKeysPagesOfOtherSitesAreRefused) {
  StartRouter();
  const std::string& own = router_->http_address();
  HttpClient client(own);
  HttpClient::Reply reply =
      client.Post("/v1/completions", "{}", {{"origin", "http://evil.example"}});
  EXPECT_EQ(reply.status, 403);
  EXPECT_EQ(json::parse(reply.body)["error"]["code"], "forbidden_origin");
  EXPECT_EQ(client.Get("/healthz", {{"origin", "null"}}).status, 403);
  // The console's own page, and programs.
  const std::string page = absl::StrCat("Origin: http://", own, "\r\n");
  EXPECT_EQ(AnswerToHead(Head(own, page, 0)).status, 400);
  EXPECT_EQ(AnswerToHead(Head(own, "", 0)).status, 400);
  // A name of another site that leads here (DNS rebinding).
  const RawAnswer rebound =
      AnswerToHead(Head("evil.example", "Origin: http://evil.example\r\n", 0));
  EXPECT_EQ(rebound.status, 403);
  EXPECT_THAT(rebound.body, HasSubstr("forbidden_host"));
}

TEST_F(HttpLimitsTest, WithKeysAPageThatHasOneMayCome) {
  UseKeys();
  StartRouter();
  const RawAnswer answer =
      AnswerToHead(Head("evil.example",
                        "Origin: http://other.example\r\n"
                        "Authorization: Bearer alice-key\r\n",
                        0));
  EXPECT_EQ(answer.status, 400);
}

// 2 MiB come at once for a client whose unread bytes are bounded by 1 MiB.
TEST_F(HttpLimitsTest, AnEchoOfManyAnswersIsNotCutOff) {
  constexpr int kContext = 100000;
  constexpr size_t kAnswers = 64;
  UseContext(kContext);
  FakeWorker* const prefill = AddLarge(v1::WORKER_ROLE_PREFILL, "p0", kContext);
  FakeWorker* const decode = AddLarge(v1::WORKER_ROLE_DECODE, "d0", kContext);
  StartRouter();
  AwaitServing(true);
  std::string prompt;
  while (prompt.size() < 32 << 10) prompt += "once upon a time ";
  const std::string body = json({{"prompt", prompt},
                                 {"n", kAnswers},
                                 {"echo", true},
                                 {"stream", true}})
                               .dump();
  std::map<int, std::string> texts;
  bool done = false;
  std::thread client([&] {
    HttpClient http(router_->http_address());
    http.Send("POST", "/v1/completions", body);
    EXPECT_EQ(http.ReadHead().status, 200);
    while (const auto event = http.ReadEvent()) {
      done = *event == "[DONE]";
      if (done) continue;
      const json choice = json::parse(*event).at("choices").at(0);
      texts[choice.at("index")] += choice.at("text");
    }
  });
  std::vector<uint64_t> attempts;
  for (size_t i = 0; i < kAnswers; ++i) {
    attempts.push_back(decode->NextReserve().attempt());
    prefill->NextPrefill();
    decode->SendGrant(attempts.back());
    prefill->NextGrant();
  }
  constexpr uint32_t kSomeToken = 500;
  for (const uint64_t attempt : attempts) {
    prefill->SendToken(attempt, 0, kSomeToken);
    decode->SendToken(attempt, 1, kSomeToken, v1::FINISH_REASON_LENGTH);
    prefill->SendOk(attempt);
    decode->SendOk(attempt);
  }
  client.join();
  EXPECT_TRUE(done);
  EXPECT_EQ(texts.size(), kAnswers);
  for (const auto& [index, text] : texts) {
    EXPECT_TRUE(absl::StartsWith(text, prompt)) << index;
    EXPECT_GT(text.size(), prompt.size()) << index;
  }
}

}  // namespace
}  // namespace baton::router
