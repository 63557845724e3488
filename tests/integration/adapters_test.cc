// LoRA adapters in a cluster of real processes: each stream has the answer of
// its own, token for token as one engine gives it, wherever it is computed and
// whatever happens to it.
#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/raw_call.h"
#include "tests/integration/streams_fixture.h"
#include "tests/support/tiny_model.h"

namespace baton::test::adapters_test {
namespace {

using testing::HasSubstr;

class AdaptersTest : public StreamsTest {
 protected:
  void SetUp() override {
    StreamsTest::SetUp();
    if (HasFatalFailure()) return;
    const std::vector<std::pair<std::string, TinyAdapterOptions>> options = {
        {"wide", {.seed = 5, .rank = 16}},
        {"narrow", {.seed = 6, .rank = 4, .modules = {"q_proj", "v_proj"}}}};
    std::vector<engine::AdapterSource> sources;
    for (const auto& [name, each] : options) {
      const std::string dir = scratch_.path() + "/" + name;
      ASSERT_TRUE(WriteTinyAdapter(dir, model_dir_, each).ok());
      sources.push_back({name, dir});
      flags_.insert(flags_.end(), {"--adapter", absl::StrCat(name, "=", dir)});
    }
    auto reference = Reference::Load(model_dir_, "auto", "bf16", sources);
    ASSERT_TRUE(reference.ok()) << reference.status();
    reference_ = *std::move(reference);
  }

  // The same prompts for all models, so that they find each other's prefixes.
  std::vector<v1::GenerateRequest> MakeAdapted(int count) {
    std::vector<v1::GenerateRequest> requests = MakeRequests(count);
    const char* const models[] = {"", "wide", "narrow"};
    for (int i = 0; i < count; ++i) {
      *requests[i].mutable_token_ids() = requests[i / 3 * 3].token_ids();
      requests[i].set_model(models[i % 3]);
    }
    return requests;
  }

  Flags flags_;
};

TEST_F(AdaptersTest, EachStreamHasItsOwn) {
  Flags decode = flags_;
  decode.insert(decode.end(), {"--draft-tokens", "4", "--draft-weights", "int4",
                               "--draft-when", "always"});
  StartCluster({.prefill = {flags_, flags_}, .decode = {flags_, decode}});
  const std::vector<v1::GenerateRequest> requests = MakeAdapted(24);
  // Nothing of it is alike: the adapters do something.
  EXPECT_NE(reference_->Tokens(requests[0]), reference_->Tokens(requests[1]));
  EXPECT_NE(reference_->Tokens(requests[1]), reference_->Tokens(requests[2]));
  CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  // Again, from the caches: each finds what its own adapter computed.
  CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  double hits = 0;
  for (const char* name : {"prefill-0", "prefill-1"}) {
    const auto metrics =
        HttpGet(cluster_->Address(name, "metrics"), "/metrics");
    ASSERT_TRUE(metrics.ok());
    hits += MetricValue(*metrics, "baton_prefix_cache_hits_total");
  }
  EXPECT_GT(hits, 0);
  const auto metrics =
      HttpGet(cluster_->Address("router", "metrics"), "/metrics");
  ASSERT_TRUE(metrics.ok());
  EXPECT_TRUE(absl::StrContains(*metrics, ",adapter=\"wide\"} 16\n"));
  AwaitBlocksFree({"prefill-0", "prefill-1", "decode-0", "decode-1"});
}

TEST_F(AdaptersTest, GoOnElsewhereWithTheirOwn) {
  // decode-1 has what decode-0 has, decode-2 none of it.
  StartCluster({.prefill = {flags_}, .decode = {flags_, flags_, {}}});
  const std::vector<v1::GenerateRequest> requests = MakeAdapted(24);
  const bool hit = InterruptUntilHit(
      requests, [&] { cluster_->Kill("decode-0"); },
      [&] {
        const auto exit = cluster_->process("decode-0").WaitExit(kPatience);
        ASSERT_TRUE(exit.ok()) << exit.status();
        Flags flags = flags_;
        flags.insert(flags.end(),
                     {"--listen", cluster_->Address("decode-0", "grpc")});
        auto again = cluster_->Launch("baton-decode", "decode-0", flags);
        ASSERT_TRUE(again.ok()) << again.status();
        ASSERT_TRUE((*again)->WaitReady(kPatience).ok());
        CheckJoined(1, 3);
      });
  EXPECT_TRUE(hit) << "the kill hit no stream";
  AwaitBlocksFree({"prefill-0", "decode-1", "decode-2"});
}

// Decode workers with few blocks: streams are computed again elsewhere, with
// what they had said.
TEST_F(AdaptersTest, SurvivePreemption) {
  Flags small = flags_;
  small.insert(small.end(),
               {"--kv-memory", "192KiB", "--output-reserve", "24"});
  StartCluster({.prefill = {flags_}, .decode = {small, small}});
  const std::vector<v1::GenerateRequest> requests = MakeAdapted(12);
  EXPECT_GT(CheckAnswers(requests, RunAndInterrupt(requests, [] {})), 0);
}

TEST_F(AdaptersTest, OnDualWorkers) {
  StartCluster({.prefill = {}, .decode = {}, .dual = {flags_, flags_}});
  const std::vector<v1::GenerateRequest> requests = MakeAdapted(12);
  CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
}

// From a folder, while the cluster runs: streams have the answers that they
// would have had, and end with them when an adapter goes.
TEST_F(AdaptersTest, ComeAndGoWhileTheClusterRuns) {
  namespace fs = std::filesystem;
  const std::string folder = scratch_.path() + "/adapters";
  fs::create_directory(folder);
  fs::rename(scratch_.path() + "/narrow", folder + "/narrow");
  const Flags flags = {"--adapter-dir", folder};
  StartCluster({.prefill = {flags}, .decode = {flags, flags}, .dual = {flags}});
  ASSERT_TRUE(AwaitAdapters({"narrow"}));
  fs::rename(scratch_.path() + "/wide", folder + "/wide");
  ASSERT_TRUE(AwaitAdapters({"narrow", "wide"}));
  const std::vector<v1::GenerateRequest> requests = MakeAdapted(12);
  bool gone = false;
  CheckAnswers(requests, RunAndInterrupt(requests, [&] {
                 fs::rename(folder + "/wide", scratch_.path() + "/wide");
                 gone = AwaitAdapters({"narrow"});
               }));
  EXPECT_TRUE(gone);
  v1::GenerateRequest request = GreedyRequest({1, 2, 3}, 4);
  request.set_model("wide");
  EXPECT_EQ(Generate(*stub_, request, kPatience).status.code(),
            absl::StatusCode::kNotFound);
  request.set_model("narrow");
  EXPECT_EQ(Generate(*stub_, request, kPatience).tokens,
            reference_->Tokens(request));
}

TEST_F(AdaptersTest, WhatCannotBeLoadedIsNamed) {
  const RunResult result =
      RunProgram("baton-decode", {"--model", model_dir_, "--adapter",
                                  absl::StrCat("gone=", scratch_.path())});
  EXPECT_EQ(result.exit.Describe(), "exit status 1");
  EXPECT_THAT(result.err,
              HasSubstr(absl::StrCat("adapter gone: ", scratch_.path(),
                                     "/adapter_config.json")));
}

}  // namespace
}  // namespace baton::test::adapters_test
