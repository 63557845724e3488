// LoRA adapters at the router: who is asked for them, and what clients see.
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"
#include "router/access/key_file.h"
#include "tests/router/router_fixture.h"
#include "tests/support/await_that.h"
#include "tests/support/http_client.h"
#include "tests/support/scratch_dir.h"

namespace baton::router::router_adapter_test {
namespace {

using nlohmann::json;
using test::AwaitThat;
using test::FakeWorker;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

// Names and identities.
using Adapters = std::vector<std::pair<std::string, std::string>>;

class AdapterTest : public RouterTest {
 protected:
  FakeWorker* AddWorker(v1::WorkerRole role, const std::string& name,
                        const Adapters& adapters) {
    FakeWorker::Options options;
    options.hello = FakeWorker::Hello(role, name);
    for (const auto& [adapter, identity] : adapters) {
      v1::Adapter* const wire = options.hello.add_adapters();
      wire->set_name(adapter);
      wire->set_identity(identity);
    }
    return Add(options);
  }
  FakeWorker* AddDecoder(const std::string& name, const Adapters& adapters) {
    return AddWorker(v1::WORKER_ROLE_DECODE, name, adapters);
  }
  static v1::GenerateRequest RequestFor(const std::string& model) {
    v1::GenerateRequest request = Request();
    request.set_model(model);
    return request;
  }
  void AwaitAdapters(const std::vector<std::string>& names) {
    EXPECT_TRUE(AwaitThat([&] {
      const v1::GetModelResponse model = GetModel();
      return std::vector<std::string>(model.adapters().begin(),
                                      model.adapters().end()) == names;
    }));
  }
};

TEST_F(AdapterTest, GoToWhoHasThem) {
  FakeWorker* const prefill =
      AddWorker(v1::WORKER_ROLE_PREFILL, "p0", {{"sql", "A1"}});
  FakeWorker* const without = AddDecoder("d0", {});
  FakeWorker* const with = AddDecoder("d1", {{"sql", "A1"}});
  ServeMetrics();
  StartRouter();
  AwaitPairs(2);
  AwaitWhyNot("d0", "");
  AwaitWhyNot("d1", "");
  AwaitAdapters({"sql"});
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(Generate(RequestFor("sql")));
    const v1::Reserve reserve = with->NextReserve();
    EXPECT_EQ(reserve.sequence().adapter(), "A1");
    EXPECT_THAT(reserve.sequence().cache_salt(), StartsWith("\xff\x02"
                                                            "A1"));
    if (reserve.local_prefill()) continue;
    const v1::SequenceSpec prompt = prefill->NextPrefill().sequence();
    EXPECT_EQ(prompt.adapter(), "A1");
    EXPECT_EQ(prompt.cache_salt(), reserve.sequence().cache_salt());
  }
  EXPECT_FALSE(without->HasReserve());
  EXPECT_EQ(Metric("baton_adapter_requests_total{model_name=\"stories\",role="
                   "\"router\",worker=\"router\",adapter=\"sql\"}"),
            4);
  // The model alone is anybody's.
  for (int i = 0; i < 4; ++i) calls.push_back(Generate(RequestFor("stories")));
  EXPECT_TRUE(AwaitThat([&] { return without->HasReserve(); }));
  const v1::SequenceSpec plain = without->NextReserve().sequence();
  EXPECT_EQ(plain.adapter(), "");
  EXPECT_EQ(plain.cache_salt(), "");
  ASSERT_TRUE(StatusOf("d1").has_value());
  EXPECT_THAT(StatusOf("d1")->adapters(), ElementsAre("sql"));
  EXPECT_THAT(StatusOf("d0")->adapters(), IsEmpty());
}

TEST_F(AdapterTest, DecodeWorkersComputePromptsWhereNoPrefillWorkerHasThem) {
  AddWorker(v1::WORKER_ROLE_PREFILL, "p0", {});
  FakeWorker* const decode = AddDecoder("d0", {{"sql", "A1"}});
  StartRouter();
  AwaitPairs(1);
  AwaitAdapters({"sql"});
  const auto call = Generate(RequestFor("sql"));
  EXPECT_TRUE(decode->NextReserve().local_prefill());
}

TEST_F(AdapterTest, UnknownNamesAreNoModels) {
  AddDecoder("d0", {{"sql", "A1"}, {"chat", "A2"}, {"a b", "A3"}, {"", "A4"}});
  StartRouter();
  // Names that no operator may give are not heard of.
  AwaitAdapters({"chat", "sql"});
  const auto call = Generate(RequestFor("poems"));
  const grpc::Status status = call->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(),
            "model \"poems\" is not served here; \"stories\" is, and 2 "
            "adapters of it");
}

// The name stands for what most of them mean by it.
TEST_F(AdapterTest, AreWhatMostWorkersSay) {
  FakeWorker* const first = AddDecoder("d0", {{"sql", "A1"}});
  FakeWorker* const second = AddDecoder("d1", {{"sql", "B1"}});
  FakeWorker* const third = AddDecoder("d2", {{"sql", "B1"}});
  StartRouter();
  AwaitServing(true);
  for (const char* name : {"d0", "d1", "d2"}) AwaitWhyNot(name, "");
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 6; ++i) calls.push_back(Generate(RequestFor("sql")));
  for (FakeWorker* const worker : {second, third}) {
    EXPECT_EQ(worker->NextReserve().sequence().adapter(), "B1");
  }
  EXPECT_FALSE(first->HasReserve());
  calls.clear();
  // Of the only one that is left, its own.
  second->Die();
  third->Die();
  AwaitWhyNot("d1", "is not connected");
  AwaitWhyNot("d2", "is not connected");
  EXPECT_TRUE(AwaitThat([&] {
    calls.push_back(Generate(RequestFor("sql")));
    return AwaitThat([&] { return first->HasReserve(); }, absl::Seconds(1));
  }));
  EXPECT_EQ(first->NextReserve().sequence().adapter(), "A1");
}

TEST_F(AdapterTest, ComeAndGoWhileWorkersStay) {
  FakeWorker* const first = AddDecoder("d0", {});
  FakeWorker* const second = AddDecoder("d1", {});
  StartRouter();
  AwaitWhyNot("d0", "");
  AwaitWhyNot("d1", "");
  EXPECT_EQ(Generate(RequestFor("sql"))->Finish().error_code(),
            grpc::StatusCode::NOT_FOUND);
  second->SendAdapters({{"sql", "A1"}, {"chat", "A2"}});
  AwaitAdapters({"chat", "sql"});
  EXPECT_THAT(StatusOf("d1")->adapters(), ElementsAre("sql", "chat"));
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 3; ++i) {
    calls.push_back(Generate(RequestFor("sql")));
    EXPECT_EQ(second->NextReserve().sequence().adapter(), "A1");
  }
  EXPECT_FALSE(first->HasReserve());
  // Another one of its name: what runs goes on with the old one.
  second->SendAdapters({{"sql", "B1"}});
  AwaitAdapters({"sql"});
  EXPECT_TRUE(AwaitThat([&] {
    calls.push_back(Generate(RequestFor("sql")));
    return second->NextReserve().sequence().adapter() == "B1";
  }));
  second->SendAdapters({});
  AwaitAdapters({});
  EXPECT_EQ(Generate(RequestFor("sql"))->Finish().error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_FALSE(second->HasCancel());
}

// It went while the request was under way.
TEST_F(AdapterTest, WhoHasItNoMoreIsNotAskedAgain) {
  FakeWorker* const workers[] = {AddDecoder("d0", {{"sql", "A1"}}),
                                 AddDecoder("d1", {{"sql", "A1"}})};
  StartRouter();
  AwaitWhyNot("d0", "");
  AwaitWhyNot("d1", "");
  AwaitAdapters({"sql"});
  const auto call = Generate(RequestFor("sql"));
  EXPECT_TRUE(AwaitThat(
      [&] { return workers[0]->HasReserve() || workers[1]->HasReserve(); }));
  const int first = workers[0]->HasReserve() ? 0 : 1;
  workers[first]->SendRefusal(workers[first]->NextReserve().attempt(),
                              v1::REFUSAL_REASON_NO_ADAPTER, 0);
  FakeWorker* const other = workers[1 - first];
  const uint64_t attempt = other->NextReserve().attempt();
  other->SendGrant(attempt);
  other->SendToken(attempt, 0, 'x', v1::FINISH_REASON_STOP);
  other->SendOk(attempt);
  EXPECT_TRUE(call->Finish().ok());
}

// An answer goes on with its own adapter or not at all, and keeps nobody
// waiting.
TEST_F(AdapterTest, ARequestWhoseWorkersAreGoneEnds) {
  FakeWorker* const with = AddDecoder("d0", {{"sql", "A1"}});
  FakeWorker* const without = AddDecoder("d1", {});
  options_.flow.worker_wait = absl::Milliseconds(500);
  StartRouter();
  AwaitWhyNot("d0", "");
  AwaitWhyNot("d1", "");
  const auto call = Generate(RequestFor("sql"));
  const uint64_t attempt = with->NextReserve().attempt();
  with->SendGrant(attempt);
  with->SendToken(attempt, 0, 'x');
  ASSERT_TRUE(call->ReadTokens(1));
  with->Die();
  const auto plain = Generate();
  const uint64_t other = without->NextReserve().attempt();
  without->SendToken(other, 0, 'y', v1::FINISH_REASON_STOP);
  without->SendOk(other);
  EXPECT_TRUE(plain->Finish().ok());
  const grpc::Status status = call->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(),
              HasSubstr("no worker that could serve has the adapter \"sql\""));
  EXPECT_FALSE(without->HasReserve());
  // Nobody has it any more: it is no model.
  AwaitAdapters({});
  EXPECT_EQ(Generate(RequestFor("sql"))->Finish().error_code(),
            grpc::StatusCode::NOT_FOUND);
}

// Those that its key has: all that there is, for who has it.
TEST_F(AdapterTest, AreThereForWhoseKeyHasThem) {
  const test::ScratchDir scratch;
  options_.api_keys_file = scratch.path() + "/keys";
  std::ofstream keys(options_.api_keys_file);
  for (const auto& [name, models] :
       std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"all", {}}, {"one", {"chat"}}, {"none", {"poems"}}}) {
    const KeyEntry entry = {.name = name,
                            .hash = HashKey(name + "-key"),
                            .rights = {.models = models}};
    keys << FormatKeyLine(entry) << "\n";
  }
  keys.close();
  AddDecoder("d0", {{"sql", "A1"}, {"chat", "A2"}});
  options_.http.listen = "127.0.0.1:0";
  StartRouter();
  const auto get = [&](const std::string& path, const std::string& key) {
    test::HttpClient client(router_->http_address());
    return client.Get(path, {{"authorization", "Bearer " + key + "-key"}});
  };
  EXPECT_TRUE(AwaitThat([&] {
    return json::parse(get("/v1/models", "all").body)["data"].size() == 3;
  }));
  const json one = json::parse(get("/v1/models", "one").body);
  ASSERT_EQ(one["data"].size(), 1u);
  EXPECT_EQ(one["data"][0]["id"], "chat");
  EXPECT_EQ(one["first_id"], "chat");
  EXPECT_EQ(one["last_id"], "chat");
  const json none = json::parse(get("/v1/models", "none").body);
  EXPECT_EQ(none["data"], json::array());
  EXPECT_EQ(none["first_id"], nullptr);
  EXPECT_EQ(get("/v1/models/chat", "one").status, 200);
  EXPECT_EQ(get("/v1/models/stories", "all").status, 200);
  for (const char* other : {"sql", "stories", "nowhere"}) {
    const auto reply = get(absl::StrCat("/v1/models/", other), "one");
    EXPECT_EQ(reply.status, 404) << other;
    EXPECT_THAT(reply.body, HasSubstr("to this API key"));
  }
  EXPECT_EQ(get("/v1/models", "nobody").status, 401);
  const auto tokenize = [&](const std::string& model) {
    test::HttpClient client(router_->http_address());
    return client
        .Post("/tokenize", json{{"model", model}, {"prompt", "Once"}}.dump(),
              {{"authorization", "Bearer one-key"}})
        .status;
  };
  EXPECT_EQ(tokenize("chat"), 200);
  EXPECT_EQ(tokenize("sql"), 404);
}

TEST_F(AdapterTest, AreModelsOfTheOpenAiApi) {
  FakeWorker* const decode =
      AddDecoder("d0", {{"sql", "A1"}, {"stories", "A2"}});
  options_.http.listen = "127.0.0.1:0";
  StartRouter();
  AwaitServing(true);
  AwaitAdapters({"sql"});
  test::HttpClient client(router_->http_address());
  const json models = json::parse(client.Get("/v1/models").body)["data"];
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[0]["id"], "stories");
  EXPECT_FALSE(models[0].contains("parent"));
  EXPECT_EQ(models[1]["id"], "sql");
  EXPECT_EQ(models[1]["parent"], "stories");
  EXPECT_EQ(models[1]["max_model_len"], models[0]["max_model_len"]);
  EXPECT_EQ(json::parse(client.Get("/v1/models/sql").body), models[1]);
  EXPECT_EQ(client.Get("/v1/models/poems").status, 404);
  EXPECT_EQ(
      client.Post("/tokenize", R"({"model": "sql", "prompt": "a"})").status,
      200);
  EXPECT_EQ(
      client.Post("/tokenize", R"({"model": "poems", "prompt": "a"})").status,
      404);

  const auto answer = [&](const std::string& model) {
    client.Send("POST", "/v1/completions",
                json({{"model", model}, {"prompt", {5, 6}}}).dump());
    const v1::Reserve reserve = decode->NextReserve();
    decode->SendToken(reserve.attempt(), 0, 'x', v1::FINISH_REASON_STOP);
    decode->SendOk(reserve.attempt());
    EXPECT_EQ(json::parse(client.ReadReply().body)["model"], model);
    return reserve.sequence().adapter();
  };
  EXPECT_EQ(answer("sql"), "A1");
  // The model's own name is the model's.
  EXPECT_EQ(answer("stories"), "");
}

}  // namespace
}  // namespace baton::router::router_adapter_test
