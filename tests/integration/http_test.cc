// The OpenAI API of a real cluster: what is streamed is what the whole answer
// says, and clients that leave or do not read harm nobody.
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/json.h"
#include "tests/integration/cluster.h"
#include "tests/support/http_client.h"

namespace baton::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// What a client keeps of an answer, however it came.
struct Heard {
  std::string text;
  std::string finish_reason;
  json tokens = json::array();    // of the log-probabilities
  json logprobs = json::array();  // whole entries
};

class HttpTest : public testing::Test {
 protected:
  HttpTest() : cluster_(absl::StrCat(BATON_SOURCE_DIR, "/models/stories")) {}

  void SetUp() override {
    const absl::Status started = cluster_.Start({});
    ASSERT_TRUE(started.ok()) << started;
  }

  std::unique_ptr<HttpClient> Connect() {
    return std::make_unique<HttpClient>(cluster_.Address("router", "http"));
  }

  // The sum of a metric of a worker.
  double Metric(const std::string& worker, const std::string& name) {
    HttpClient client(cluster_.Address(worker, "metrics"));
    const std::string page = client.Get("/metrics").body;
    double sum = 0;
    for (absl::string_view line : absl::StrSplit(page, '\n')) {
      if (line.substr(0, name.size()) != name) continue;
      double value = 0;
      if (absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
        sum += value;
      }
    }
    return sum;
  }

  Cluster cluster_;
};

json WithoutCache(json usage) {
  usage.erase("prompt_tokens_details");
  return usage;
}

void AddLogprobs(const json& logprobs, bool chat, Heard* heard) {
  if (logprobs.is_null()) return;
  const json& entries = chat ? logprobs["content"] : logprobs["token_logprobs"];
  for (const json& entry : entries) heard->logprobs.push_back(entry);
  if (chat) return;
  for (const json& token : logprobs["tokens"]) heard->tokens.push_back(token);
  for (const json& entry : logprobs["text_offset"]) {
    heard->logprobs.push_back(entry);
  }
}

std::map<int, Heard> Whole(const json& body, bool chat) {
  std::map<int, Heard> heard;
  for (const json& choice : body["choices"]) {
    Heard& one = heard[choice["index"]];
    one.text = chat ? choice["message"]["content"] : choice["text"];
    one.finish_reason = choice["finish_reason"];
    AddLogprobs(choice["logprobs"], chat, &one);
  }
  return heard;
}

// Also the usage, from its own chunk.
std::map<int, Heard> Streamed(HttpClient* client, bool chat, json* usage) {
  std::map<int, Heard> heard;
  bool done = false;
  while (const auto event = client->ReadEvent()) {
    EXPECT_FALSE(done);
    if (*event == "[DONE]") {
      done = true;
      continue;
    }
    const json chunk = json::parse(*event);
    EXPECT_FALSE(chunk.contains("error")) << chunk;
    if (chunk["choices"].empty()) *usage = chunk["usage"];
    for (const json& choice : chunk["choices"]) {
      Heard& one = heard[choice["index"]];
      if (!chat) {
        one.text += choice["text"];
      } else if (choice["delta"].contains("content")) {
        one.text += choice["delta"]["content"];
      }
      if (!choice["finish_reason"].is_null()) {
        EXPECT_EQ(one.finish_reason, "");
        one.finish_reason = choice["finish_reason"];
      }
      AddLogprobs(choice["logprobs"], chat, &one);
    }
  }
  EXPECT_TRUE(done);
  return heard;
}

class RandomRequests final {
 public:
  explicit RandomRequests(uint32_t seed) : random_(seed) {}

  int Below(int most) {
    return static_cast<int>(random_() % static_cast<uint32_t>(most));
  }
  bool Chance(int percent) { return Below(100) < percent; }

  json Next(bool chat) {
    static const std::vector<std::string> prompts = {
        "Once upon a time", "The little dog", "Lily and Tom went to",
        "A caf\xC3\xA9 \xF0\x9F\x98\x80", "One day, a big"};
    static const std::vector<std::string> stops = {
        ".", " the", "\n", " was a", "ing ", "Lily", ", ", "zzz"};
    json body = {{"model", "stories"}, {"seed", Below(1 << 20)}};
    body["max_tokens"] = 1 + Below(40);
    if (chat) {
      body["messages"] = {{{"role", "user"}, {"content", Prompt(prompts)}}};
    } else if (Chance(30)) {
      body["prompt"] = {Prompt(prompts), Prompt(prompts)};
    } else {
      body["prompt"] = Prompt(prompts);
    }
    if (Chance(60)) body["temperature"] = Below(15) / 10.0;
    if (Chance(30)) body["top_p"] = 0.5 + Below(5) / 10.0;
    if (Chance(40)) body["n"] = 1 + Below(3);
    if (Chance(60)) {
      json list = json::array();
      for (int i = 1 + Below(3); i > 0; --i) {
        list.push_back(stops[Below(static_cast<int>(stops.size()))]);
      }
      body["stop"] = list;
    }
    if (Chance(30)) body["min_tokens"] = 1;
    if (Chance(30)) body["frequency_penalty"] = 0.5;
    if (Chance(20)) body["ignore_eos"] = true;
    if (!chat && Chance(30)) body["echo"] = true;
    if (Chance(40)) {
      if (chat) body["top_logprobs"] = Below(4);
      body["logprobs"] = chat ? json(true) : json(Below(4));
    }
    return body;
  }

 private:
  std::string Prompt(const std::vector<std::string>& prompts) {
    return prompts[Below(static_cast<int>(prompts.size()))];
  }

  std::mt19937 random_;
};

TEST_F(HttpTest, WhatIsStreamedIsTheWholeAnswer) {
  RandomRequests requests(20261121);
  const std::unique_ptr<HttpClient> client = Connect();
  int stopped = 0;
  int cut = 0;
  for (int i = 0; i < 60; ++i) {
    const bool chat = i % 2 == 1;
    const char* path = chat ? "/v1/chat/completions" : "/v1/completions";
    json request = requests.Next(chat);
    SCOPED_TRACE(request.dump());
    const HttpClient::Reply reply = client->Post(path, request.dump());
    ASSERT_EQ(reply.status, 200) << reply.body;
    const json body = json::parse(reply.body);
    const std::map<int, Heard> whole = Whole(body, chat);

    request["stream"] = true;
    request["stream_options"] = {{"include_usage", true}};
    client->Send("POST", path, request.dump());
    ASSERT_EQ(client->ReadHead().status, 200);
    json usage;
    const std::map<int, Heard> streamed = Streamed(client.get(), chat, &usage);

    EXPECT_EQ(WithoutCache(usage), WithoutCache(body["usage"]));
    ASSERT_EQ(streamed.size(), whole.size());
    for (const auto& [index, one] : whole) {
      const Heard& other = streamed.at(index);
      EXPECT_EQ(other.text, one.text);
      EXPECT_EQ(other.finish_reason, one.finish_reason);
      EXPECT_EQ(other.tokens, one.tokens);
      EXPECT_EQ(other.logprobs.size(), one.logprobs.size());
      (one.finish_reason == "stop" ? stopped : cut) += 1;
      for (const json& stop : request.value("stop", json::array())) {
        // With an echo the prompt may hold it; min_tokens lets a first one by.
        if (request.contains("echo") || request.contains("min_tokens")) break;
        EXPECT_EQ(one.text.find(stop.get<std::string>()), std::string::npos);
      }
    }
  }
  // Both ends were seen.
  EXPECT_GT(stopped, 10);
  EXPECT_GT(cut, 10);
}

TEST_F(HttpTest, AClientThatLeavesFreesItsBlocksOnBothWorkers) {
  const std::unique_ptr<HttpClient> client = Connect();
  client->Send("POST", "/v1/completions",
               R"({"prompt": "Once upon a time", "max_tokens": 480,
                   "ignore_eos": true, "stream": true})");
  ASSERT_EQ(client->ReadHead().status, 200);
  // The first token is the prefill worker's; from then on it is decoded.
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(client->ReadEvent().has_value());
  client->Close();
  for (const char* worker : {"prefill-0", "decode-0"}) {
    EXPECT_TRUE(Eventually([&] {
      return Metric(worker, "baton_num_requests_running") == 0 &&
             Metric(worker, "baton_kv_blocks_in_use") == 0;
    })) << worker;
  }
}

TEST_F(HttpTest, ClientsThatNeverReadDoNotSlowTheOthers) {
  std::vector<std::unique_ptr<HttpClient>> idle;
  for (int i = 0; i < 100; ++i) {
    idle.push_back(Connect());
    if (i % 2 == 0) continue;  // says nothing at all
    idle.back()->Send("POST", "/v1/completions",
                      R"({"prompt": "Once", "max_tokens": 16, "stream": true,
                          "ignore_eos": true})");
  }
  const std::unique_ptr<HttpClient> client = Connect();
  for (int i = 0; i < 3; ++i) {
    const HttpClient::Reply reply = client->Post(
        "/v1/completions",
        R"({"prompt": "The little dog", "max_tokens": 20, "temperature": 0})");
    EXPECT_EQ(reply.status, 200) << reply.body;
  }
}

TEST_F(HttpTest, ReadyTellsWhetherItCanServe) {
  const std::unique_ptr<HttpClient> client = Connect();
  EXPECT_EQ(client->Get("/readyz").status, 200);
  cluster_.Kill("decode-0");
  EXPECT_TRUE(Eventually([&] { return client->Get("/readyz").status == 503; }));
  EXPECT_EQ(client->Get("/healthz").status, 200);
  const HttpClient::Reply page = client->Get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.Header("content-security-policy"),
              HasSubstr("default-src 'self'"));
}

}  // namespace
}  // namespace baton::test
