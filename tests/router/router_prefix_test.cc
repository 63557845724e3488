// What workers say of their prefix caches reaches placement: a router among
// fake workers.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "router/prefix_salt.h"
#include "scheduling/block_hash.h"
#include "tests/router/router_fixture.h"
#include "tests/support/await_that.h"

namespace baton::router {
namespace {

using test::AwaitThat;
using test::FakeWorker;

// As FakeWorker says.
constexpr int kBlockSize = 16;
constexpr int kBlocks = 3;
constexpr int kPromptTokens = kBlocks * kBlockSize + 5;

class RouterPrefixTest : public RouterTest {
 protected:
  RouterPrefixTest() {
    ServeMetrics();
    options_.flow.settle_wait = kReportsCome;
  }

  static v1::GenerateRequest Named(const std::string& id) {
    v1::GenerateRequest request = Request();
    request.mutable_token_ids()->clear_ids();
    for (int i = 0; i < kPromptTokens; ++i) {
      request.mutable_token_ids()->add_ids(static_cast<uint32_t>(10 + i));
    }
    request.set_request_id(id);
    return request;
  }

  // As workers are given it, where there are no keys.
  static std::string SaltOfAll(const std::string& salt) {
    return MakePrefixSalt(PrefixScope::kTenant, "", salt);
  }

  // The first `blocks` blocks of that prompt.
  static v1::PrefixNews Stored(int blocks, const std::string& salt = "") {
    const v1::GenerateRequest request = Named("");
    std::vector<TokenId> tokens;
    for (uint32_t id : request.token_ids().ids()) {
      tokens.push_back(static_cast<TokenId>(id));
    }
    v1::PrefixNews news;
    for (const Hash128& name :
         scheduling::ChainOf(SaltOfAll(salt), kBlockSize, tokens)) {
      if (blocks-- == 0) break;
      news.add_stored(name.low);
      news.add_stored(name.high);
    }
    return news;
  }

  double Metric(const std::string& name, const std::string& labels = "") {
    const std::string own =
        "{model_name=\"stories\",role=\"router\",worker=\"router\"";
    return RouterTest::Metric(name + own + labels);
  }
  void AwaitBlocks(int blocks) {
    EXPECT_TRUE(AwaitThat([&] {
      return Metric("baton_router_prefix_blocks") == blocks;
    })) << Metric("baton_router_prefix_blocks");
  }

  // Sends the request, which ends on its first token; what it was believed
  // that the prefill worker had of it.
  uint32_t CachedFor(const std::string& id, FakeWorker* prefill,
                     const std::string& salt = "") {
    v1::GenerateRequest sent = Named(id);
    sent.set_cache_salt(salt);
    const auto call = Generate(sent);
    const v1::Prefill asked = prefill->NextPrefill();
    EXPECT_EQ(asked.sequence().cache_salt(), SaltOfAll(salt));
    const uint64_t attempt = asked.attempt();
    prefill->SendToken(attempt, 0, kEos, v1::FINISH_REASON_STOP);
    prefill->SendOk(attempt);
    EXPECT_TRUE(call->Finish().ok());
    grpc::ClientContext context;
    v1::ExplainRequestRequest request;
    request.set_request_id(id);
    v1::ExplainRequestResponse told;
    EXPECT_TRUE(stub_->ExplainRequest(&context, request, &told).ok());
    EXPECT_EQ(told.placements_size(), 1);
    if (told.placements_size() == 0) return 0;
    return told.placements(0).cached_tokens();
  }
};

TEST_F(RouterPrefixTest, PlacementKnowsWhatAWorkerHas) {
  FakeWorker* const prefill = AddPrefill("p0");
  FakeWorker* const decode = AddDecode("d0");
  StartRouter();
  AwaitPairs(1);
  EXPECT_EQ(CachedFor("before", prefill), 0u);

  v1::PrefixNews news = Stored(2);
  news.set_reset(true);
  prefill->SendPrefixes(news);
  AwaitBlocks(2);
  EXPECT_EQ(CachedFor("two", prefill), 2u * kBlockSize);

  decode->SendPrefixes(Stored(3));
  AwaitBlocks(3);
  EXPECT_EQ(CachedFor("still-two", prefill), 2u * kBlockSize);
  EXPECT_EQ(
      Metric("baton_router_prefix_matched_tokens_total", ",at=\"chosen\"}"),
      4 * kBlockSize);
  EXPECT_EQ(Metric("baton_router_prefix_matched_tokens_total", ",at=\"best\"}"),
            (2 + 3) * kBlockSize);
  EXPECT_EQ(Metric("baton_router_prefix_prompt_tokens_total"),
            3 * kPromptTokens);
  EXPECT_EQ(Metric("baton_router_prefix_names_total", ",change=\"stored\"}"),
            5);
  EXPECT_GT(Metric("baton_router_prefix_bytes"), 0);
  EXPECT_EQ(Metric("baton_router_prefix_dropped_total"), 0);

  // The worker begins anew, with less.
  news = Stored(1);
  news.set_reset(true);
  prefill->SendPrefixes(news);
  EXPECT_TRUE(AwaitThat([&] {
    return Metric("baton_router_prefix_news_total", ",kind=\"reset\"}") == 2;
  }));
  EXPECT_EQ(CachedFor("one", prefill), 1u * kBlockSize);
}

TEST_F(RouterPrefixTest, WhatIsThereOfAnotherSaltIsOfNoUse) {
  FakeWorker* const prefill = AddPrefill("p0");
  AddDecode("d0");
  StartRouter();
  AwaitPairs(1);
  prefill->SendPrefixes(Stored(2));
  prefill->SendPrefixes(Stored(3, "pepper"));
  AwaitBlocks(5);
  EXPECT_EQ(CachedFor("none", prefill), 2u * kBlockSize);
  EXPECT_EQ(CachedFor("pepper", prefill, "pepper"), 3u * kBlockSize);
  EXPECT_EQ(CachedFor("salt", prefill, "salt"), 0u);
}

TEST_F(RouterPrefixTest, AWorkerThatIsGoneHasNothing) {
  FakeWorker* const prefill = AddPrefill("p0");
  FakeWorker* const lost = AddPrefill("p1");
  AddDecode("d0");
  StartRouter();
  AwaitPairs(2);
  lost->SendPrefixes(Stored(3));
  AwaitBlocks(3);
  lost->Die();
  AwaitPairs(1);
  EXPECT_EQ(CachedFor("after", prefill), 0u);
  EXPECT_EQ(Metric("baton_router_prefix_matched_tokens_total", ",at=\"best\"}"),
            0);
  AwaitBlocks(0);
}

TEST_F(RouterPrefixTest, APromptIsNeverCachedToItsEnd) {
  FakeWorker* const prefill = AddPrefill("p0");
  AddDecode("d0");
  StartRouter();
  AwaitPairs(1);
  prefill->SendPrefixes(Stored(3));
  AwaitBlocks(3);
  v1::GenerateRequest request = Named("exact");
  request.mutable_token_ids()->mutable_ids()->Truncate(2 * kBlockSize);
  const auto call = Generate(request);
  const uint64_t attempt = prefill->NextPrefill().attempt();
  EXPECT_EQ(Metric("baton_router_prefix_matched_tokens_total", ",at=\"best\"}"),
            2 * kBlockSize - 1);
  prefill->SendToken(attempt, 0, kEos, v1::FINISH_REASON_STOP);
  prefill->SendOk(attempt);
  EXPECT_TRUE(call->Finish().ok());
}

TEST_F(RouterPrefixTest, HalfANameIsIgnored) {
  FakeWorker* const prefill = AddPrefill("p0");
  AddDecode("d0");
  StartRouter();
  AwaitPairs(1);
  v1::PrefixNews odd = Stored(2);
  odd.add_stored(7);
  prefill->SendPrefixes(odd);
  odd = Stored(2);
  odd.add_removed(7);
  prefill->SendPrefixes(odd);
  EXPECT_TRUE(AwaitThat([&] {
    return Metric("baton_router_prefix_news_total", ",kind=\"invalid\"}") == 2;
  }));
  EXPECT_EQ(Metric("baton_router_prefix_blocks"), 0);
  prefill->SendPrefixes(Stored(1));
  AwaitBlocks(1);
}

TEST_F(RouterPrefixTest, OffKnowsNothing) {
  options_.cluster.prefixes.enabled = false;
  FakeWorker* const prefill = AddPrefill("p0");
  AddDecode("d0");
  StartRouter();
  AwaitPairs(1);
  prefill->SendPrefixes(Stored(3));
  v1::LoadReport load;
  load.set_waiting(1);
  prefill->SendLoad(load);  // behind it
  EXPECT_TRUE(AwaitThat([&] { return StatusOf("p0")->waiting() == 1; }));
  EXPECT_EQ(CachedFor("mine", prefill), 0u);
  EXPECT_EQ(Metric("baton_router_prefix_blocks"), 0);
}

}  // namespace
}  // namespace baton::router
