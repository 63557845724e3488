// A second tier of the prefix cache, in files: what the pool had no room for,
// or an earlier process computed, is read and not computed again, and answers
// are those of one engine that knows neither.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/integration/raw_call.h"
#include "tests/integration/reference.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kPromptLength = 400;
constexpr double kFullTokens = kPromptLength / 16 * 16;  // the last is computed
constexpr char kHits[] = "baton_external_prefix_cache_hits_total";

class KvOffloadTest : public testing::Test {
 protected:
  // So large that computing a prompt takes longer than reading its KV.
  void SetUp() override {
    model_dir_ = scratch_.path() + "/model";
    TinyModelOptions model;
    model.layers = 6;
    model.hidden = 256;
    model.intermediate = 512;
    ASSERT_TRUE(WriteTinyModel(model_dir_, model).ok());
    store_dir_ = scratch_.path() + "/store";
    std::filesystem::create_directory(store_dir_);
    auto reference = Reference::Load(model_dir_);
    ASSERT_TRUE(reference.ok()) << reference.status();
    reference_ = *std::move(reference);
    cluster_ = std::make_unique<Cluster>(model_dir_);
  }

  // Two prompts fit into the KV memory, 25 blocks each of 12 KiB, and an answer
  // each.
  Flags Offload() const {
    return {"--kv-memory", "800KiB",           "--kv-offload",
            "4MiB",        "--kv-offload-dir", store_dir_};
  }
  void Start(const ClusterShape& shape) {
    const absl::Status started = cluster_->Start(shape);
    ASSERT_TRUE(started.ok()) << started;
    stub_ = cluster_->MakeStub();
  }
  // SIGKILL, and another process at the same address.
  void KillAndStart(const std::string& program, const std::string& name) {
    cluster_->Kill(name);
    ASSERT_TRUE(cluster_->process(name).WaitExit(kPatience).ok());
    Flags flags = Offload();
    flags.insert(flags.end(), {"--listen", cluster_->Address(name, "grpc")});
    auto again = cluster_->Launch(program, name, flags);
    ASSERT_TRUE(again.ok()) << again.status();
    const absl::Status ready = (*again)->WaitReady(kPatience);
    ASSERT_TRUE(ready.ok()) << ready;
  }

  std::vector<TokenId> Prompt(int number) const {
    std::vector<TokenId> prompt;
    for (int i = 0; i < kPromptLength; ++i) {
      prompt.push_back((i * 7 + number * 31) % 256);
    }
    return prompt;
  }
  // The answer, which is right.
  Answer Ask(int prompt) {
    const v1::GenerateRequest request = GreedyRequest(Prompt(prompt), 8);
    const Answer answer = Generate(*stub_, request, kPatience);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.tokens, reference_->Tokens(request)) << prompt;
    return answer;
  }
  double Metric(const std::string& worker, const std::string& name) {
    const auto text = HttpGet(cluster_->Address(worker, "metrics"), "/metrics");
    EXPECT_TRUE(text.ok()) << worker << ": " << text.status();
    return text.ok() ? MetricSum(*text, name, "") : -1;
  }
  double Loads(const std::string& worker, const std::string& outcome) {
    const auto text = HttpGet(cluster_->Address(worker, "metrics"), "/metrics");
    EXPECT_TRUE(text.ok()) << worker << ": " << text.status();
    return MetricSum(*text, "baton_kv_offload_loads_total",
                     absl::StrCat("outcome=\"", outcome, "\""));
  }
  // Asks so many different prompts, and waits until their KV is stored.
  void Fill(const std::string& worker, int prompts) {
    for (int i = 0; i < prompts; ++i) {
      Ask(i);
      EXPECT_TRUE(Eventually([&] {
        return Metric(worker, "baton_kv_offload_saved_blocks_total") >=
               (i + 1) * 25;
      })) << i;
    }
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& file : std::filesystem::directory_iterator(store_dir_)) {
      files.push_back(file.path());
    }
    return files;
  }

  ScratchDir scratch_;
  std::string model_dir_;
  std::string store_dir_;
  std::unique_ptr<Reference> reference_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(KvOffloadTest, APromptThatWasEvictedComesBack) {
  ASSERT_NO_FATAL_FAILURE(Start({.prefill = {Offload()}}));
  Fill("prefill-0", 6);
  EXPECT_GT(Metric("prefill-0", "baton_prefix_cache_evictions_total"), 0);
  EXPECT_EQ(Metric("prefill-0", kHits), 0);
  const double computed = Metric("prefill-0", "baton_prompt_tokens_total");
  const Answer answer = Ask(0);
  EXPECT_GE(answer.last.usage().cached_prompt_tokens(), kFullTokens - 16);
  EXPECT_GE(Metric("prefill-0", kHits), kFullTokens - 16);
  EXPECT_LE(Metric("prefill-0", "baton_prompt_tokens_total") - computed, 16);
  EXPECT_EQ(Loads("prefill-0", "loaded"), 1);
  EXPECT_LE(Metric("prefill-0", "baton_kv_offload_bytes"),
            Metric("prefill-0", "baton_kv_offload_capacity_bytes"));
  EXPECT_TRUE(Eventually(
      [&] { return Metric("prefill-0", "baton_kv_blocks_in_use") == 0; }));
}

TEST_F(KvOffloadTest, AKilledWorkersNextProcessReadsIt) {
  ASSERT_NO_FATAL_FAILURE(Start({.prefill = {Offload()}}));
  Fill("prefill-0", 3);
  ASSERT_NO_FATAL_FAILURE(KillAndStart("baton-prefill", "prefill-0"));
  ASSERT_TRUE(cluster_->AwaitJoined(1, 1).ok());
  EXPECT_THAT(cluster_->process("prefill-0").LogTail(60),
              HasSubstr("MB found"));
  for (const int prompt : {1, 0, 2}) Ask(prompt);
  // The first at least: of the others computing may be as fast.
  EXPECT_GE(Metric("prefill-0", kHits), kFullTokens - 16);
  EXPECT_EQ(Loads("prefill-0", "failed"), 0);
  const std::vector<std::string> files = Files();
  ASSERT_THAT(files, SizeIs(1));
  // What another version computed or laid out is not read.
  std::string header(1000, '\0');
  std::ifstream(files[0], std::ios::binary).read(header.data(), 1000);
  EXPECT_THAT(header, HasSubstr(" pages="));
  EXPECT_THAT(header, HasSubstr(" baton="));
}

TEST_F(KvOffloadTest, WhatIsDamagedIsComputed) {
  ASSERT_NO_FATAL_FAILURE(Start({.prefill = {Offload()}}));
  Fill("prefill-0", 3);
  cluster_->Kill("prefill-0");
  ASSERT_TRUE(cluster_->process("prefill-0").WaitExit(kPatience).ok());
  // Of every block some bytes; of the records, 624 bytes for each 12 KiB, none.
  const std::vector<std::string> files = Files();
  ASSERT_THAT(files, SizeIs(1));
  {
    const auto size =
        static_cast<int64_t>(std::filesystem::file_size(files[0]));
    std::fstream file(files[0],
                      std::ios::in | std::ios::out | std::ios::binary);
    for (int64_t at = 300'000; at < size; at += 4000) {
      file.seekp(at);
      file.write("damaged", 7);
    }
    ASSERT_TRUE(file.good());
  }
  ASSERT_NO_FATAL_FAILURE(KillAndStart("baton-prefill", "prefill-0"));
  ASSERT_TRUE(cluster_->AwaitJoined(1, 1).ok());
  for (const int prompt : {0, 1, 2}) Ask(prompt);
  EXPECT_EQ(Loads("prefill-0", "failed"), 1) << "then it begins anew";
  EXPECT_THAT(cluster_->process("prefill-0").LogTail(60),
              HasSubstr("is not what was written"));
}

TEST_F(KvOffloadTest, ADualWorkerReadsWhatItStored) {
  ASSERT_NO_FATAL_FAILURE(
      Start({.prefill = {}, .decode = {}, .dual = {Offload()}}));
  Fill("dual-0", 6);
  EXPECT_EQ(Metric("dual-0", kHits), 0);
  Ask(0);
  EXPECT_GE(Metric("dual-0", kHits), kFullTokens - 16);
}

TEST_F(KvOffloadTest, ADecodeWorkerReadsForPromptsThatItComputes) {
  ClusterShape shape = {.decode = {Offload()}};
  // Without prefill workers decode workers compute prompts.
  shape.prefill = {};
  ASSERT_NO_FATAL_FAILURE(Start(shape));
  Fill("decode-0", 4);
  EXPECT_EQ(Metric("decode-0", kHits), 0);
  const Answer answer = Ask(0);
  EXPECT_GE(answer.last.usage().cached_prompt_tokens(), kFullTokens - 16);
  EXPECT_GE(Metric("decode-0", kHits), kFullTokens - 16);
}

TEST_F(KvOffloadTest, InMemoryItIsTheSameButForAnotherProcess) {
  ClusterShape shape;
  shape.prefill = {{"--kv-memory", "800KiB", "--kv-offload", "4MiB"}};
  ASSERT_NO_FATAL_FAILURE(Start(shape));
  Fill("prefill-0", 6);
  Ask(0);
  EXPECT_EQ(Loads("prefill-0", "loaded"), 1);
  EXPECT_THAT(Files(), SizeIs(0));
}

TEST_F(KvOffloadTest, WrongFlagsAreNamed) {
  const auto error = [&](Flags flags) {
    flags.insert(flags.end(), {"--model", model_dir_});
    const RunResult result = RunProgram("baton-prefill", flags);
    EXPECT_EQ(result.exit.Describe(), "exit status 1") << result.err;
    return result.err;
  };
  EXPECT_THAT(error({"--kv-offload-dir", store_dir_}),
              HasSubstr("--kv-offload-dir needs --kv-offload"));
  EXPECT_THAT(error({"--kv-offload", "1GiB", "--prefix-cache", "off"}),
              HasSubstr("--kv-offload needs --prefix-cache on"));
  EXPECT_THAT(error({"--kv-offload", "9KiB"}),
              HasSubstr("--kv-offload: 9216 bytes are less than a block"));
  EXPECT_THAT(error({"--kv-offload", "100TiB"}), HasSubstr("--kv-offload: "));
  const RunResult nowhere = RunProgram(
      "baton-prefill", {"--model", model_dir_, "--kv-offload", "1MiB",
                        "--kv-offload-dir", scratch_.path() + "/nowhere"});
  EXPECT_EQ(nowhere.exit.Describe(), "exit status 2") << nowhere.err;
  EXPECT_THAT(nowhere.err, HasSubstr("--kv-offload-dir"));
}

}  // namespace
}  // namespace baton::test
