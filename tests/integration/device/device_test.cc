// Clusters whose workers keep KV in the memory of a device, which the CPU
// plays: real processes, and the hand-off by way of staged blocks. Their
// answers are those of the same engine in one process.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/integration/raw_call.h"
#include "tests/integration/streams_fixture.h"
#include "tests/support/emulated_device/emulated_engine.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// Few tokens at a time, since a CPU computes them thread by thread.
const Flags kDevice = {"--device", "cuda",           "--kv-memory",
                       "2MiB",     "--token-budget", "32"};
// Of the model's KV, 16 tokens.
constexpr int64_t kBlockBytes = 4096;

// From device to device over UCX: what UCX is given is the emulated device's
// memory, which is the host's.
const Flags kUcxOnDevice = {"--transport", "ucx", "--kv-staging", "device"};

Flags With(Flags flags, const Flags& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

class DeviceTest : public StreamsTest {
 protected:
  void SetUp() override {
    model_dir_ = scratch_.path() + "/model";
    ASSERT_TRUE(WriteTinyModel(model_dir_).ok());
    ASSERT_NO_FATAL_FAILURE(ReferTo("bf16", "bf16"));
    cluster_ = std::make_unique<Cluster>(model_dir_);
    for (const char* name : {"prefill-0", "prefill-1", "decode-0", "decode-1",
                             "dual-0", "dual-1"}) {
      cluster_->set_launcher(
          name, {std::string(BATON_BINARY_DIR) + "/tests/bin/emulated_worker"});
    }
  }

  // What answers are compared with.
  void ReferTo(const std::string& weights, const std::string& kv_dtype,
               const std::vector<engine::AdapterSource>& adapters = {}) {
    engine::EngineOptions options;
    options.adapters = adapters;
    options.model_dir = model_dir_;
    options.weights = weights;
    options.kv_dtype = kv_dtype;
    options.kv_memory_bytes = int64_t{16} << 20;
    options.block_size = 32;
    auto engine = engine::cuda::CreateEmulatedEngine(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    reference_ = std::make_unique<Reference>(*std::move(engine), model_dir_);
  }

  std::vector<v1::GenerateRequest> ShortRequests(int count) {
    std::vector<v1::GenerateRequest> requests = MakeRequests(count);
    for (v1::GenerateRequest& request : requests) request.set_max_tokens(24);
    return requests;
  }

  double Metric(const std::string& worker, const std::string& name) {
    const auto text = HttpGet(cluster_->Address(worker, "metrics"), "/metrics");
    EXPECT_TRUE(text.ok()) << worker << ": " << text.status();
    return text.ok() ? MetricValue(*text, name) : -1;
  }

  // Of a cluster of two and two workers: the answers, and that KV was moved.
  void CheckHandsOver() {
    const auto requests = ShortRequests(6);
    CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
    EXPECT_GT(Metric("decode-0", "baton_kv_transfer_bytes_sum") +
                  Metric("decode-1", "baton_kv_transfer_bytes_sum"),
              0);
    AwaitAllFree({"prefill-0", "prefill-1", "decode-0", "decode-1"});
  }

  // Nothing is held on these workers, staged blocks included.
  void AwaitAllFree(const std::vector<std::string>& workers) {
    AwaitBlocksFree(workers);
    for (const std::string& name : workers) {
      EXPECT_TRUE(Eventually([&] {
        return Metric(name, "baton_kv_staged_blocks_in_use") == 0;
      })) << name;
    }
  }
};

TEST_F(DeviceTest, HandsOverWhatOneProcessComputes) {
  for (const Flags& way :
       {Flags{"--transport", "tcp"}, Flags{"--transport", "local"},
        Flags{"--transport", "nccl"}, kUcxOnDevice}) {
    SCOPED_TRACE(way[1]);
    const Flags flags = With(kDevice, way);
    ASSERT_NO_FATAL_FAILURE(
        StartCluster({.prefill = {flags}, .decode = {flags}}));
    const auto requests = ShortRequests(4);
    CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
    // The second time their prompts are cached on both sides, in part.
    CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
    EXPECT_GT(Metric("decode-0", "baton_kv_transfer_bytes_sum"), 0);
    EXPECT_GT(Metric("decode-0", "baton_steps_ahead_total"), 0);
    EXPECT_EQ(Metric("prefill-0", "baton_steps_ahead_total"), 0);
    AwaitAllFree({"prefill-0", "decode-0"});
  }
}

// What may come changes with each token, and is a mask on the device.
TEST_F(DeviceTest, AnswersThatAreToBeSomethingAre) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.prefill = {kDevice}, .decode = {kDevice}}));
  std::vector<v1::GenerateRequest> requests = ShortRequests(6);
  requests[0].mutable_response_format()->set_regex("([a-c]{2}[0-9] ){5}!");
  requests[1].mutable_response_format()->set_json_schema(
      R"({"type": "array", "items": {"type": "boolean"}, "maxItems": 2})");
  requests[2].mutable_response_format()->set_regex("[^a-z]+");
  requests[3].mutable_response_format()->mutable_choice()->add_texts("a story");
  const std::vector<Answer> answers = RunAndInterrupt(requests, [] {});
  CheckAnswers(requests, answers);
  EXPECT_THAT(answers[0].text, testing::MatchesRegex("([a-c][a-c][0-9] )+!"));
  EXPECT_EQ(answers[3].text, "a story");
  AwaitAllFree({"prefill-0", "decode-0"});
}

TEST_F(DeviceTest, AsDoesAModelOfFewBits) {
  for (const char* kv_dtype : {"int8", "fp8"}) {
    SCOPED_TRACE(kv_dtype);
    ASSERT_NO_FATAL_FAILURE(ReferTo("fp8", kv_dtype));
    const Flags flags =
        With(kDevice, {"--weights", "fp8", "--kv-dtype", kv_dtype});
    ASSERT_NO_FATAL_FAILURE(StartCluster(
        {.prefill = {flags}, .decode = {With(flags, {"--block-size", "64"})}}));
    const auto requests = ShortRequests(3);
    CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
    AwaitAllFree({"prefill-0", "decode-0"});
  }
}

// Each device has some heads; what is handed over has all of them.
TEST_F(DeviceTest, WorkersWithUnequalNumbersOfDevicesHandOver) {
  const Flags two = With(kDevice, {"--tensor-parallel", "2"});
  for (const bool prefill_has_two : {true, false}) {
    SCOPED_TRACE(prefill_has_two);
    ASSERT_NO_FATAL_FAILURE(
        StartCluster({.prefill = {prefill_has_two ? two : kDevice},
                      .decode = {prefill_has_two ? kDevice : two}}));
    const auto requests = ShortRequests(3);
    CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
    EXPECT_GT(Metric("decode-0", "baton_kv_transfer_bytes_sum"), 0);
    AwaitAllFree({"prefill-0", "decode-0"});
  }
}

// Whoever computes a token reads other experts for it than for its neighbours.
TEST_F(DeviceTest, MixturesOfExpertsHandOver) {
  TinyModelOptions mixture;
  mixture.architecture = "Qwen3MoeForCausalLM";
  mixture.experts = 8;
  ASSERT_TRUE(WriteTinyModel(model_dir_, mixture).ok());
  ASSERT_NO_FATAL_FAILURE(ReferTo("bf16", "bf16"));
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.prefill = {kDevice},
                    .decode = {With(kDevice, {"--tensor-parallel", "2"})}}));
  const auto requests = ShortRequests(4);
  CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  for (const char* worker : {"prefill-0", "decode-0"}) {
    const double reads = Metric(worker, "baton_expert_reads_total");
    EXPECT_GT(reads, 0) << worker;
    EXPECT_GE(Metric(worker, "baton_expert_rows_total"), reads) << worker;
  }
  EXPECT_GT(Metric("decode-0", "baton_steps_ahead_total"), 0);
  AwaitAllFree({"prefill-0", "decode-0"});
}

// One key a token, which is the value, too, and which each of two devices has;
// one of them hands it over.
TEST_F(DeviceTest, LatentAttentionHandsOver) {
  TinyModelOptions latent;
  latent.architecture = "DeepseekV3ForCausalLM";
  latent.experts = 8;
  ASSERT_TRUE(WriteTinyModel(model_dir_, latent).ok());
  for (const char* const kv_dtype : {"bf16", "int8"}) {
    ASSERT_NO_FATAL_FAILURE(ReferTo("bf16", kv_dtype));
    const bool two_decode = *kv_dtype == 'i';
    const Flags flags = With(kDevice, {"--kv-dtype", kv_dtype, "--transport",
                                       two_decode ? "nccl" : "tcp"});
    const Flags two = {"--tensor-parallel", "2"};
    const Flags other = With(flags, {"--block-size", "64"});
    ASSERT_NO_FATAL_FAILURE(
        StartCluster({.prefill = {two_decode ? flags : With(flags, two)},
                      .decode = {two_decode ? With(other, two) : other}}));
    const auto requests = ShortRequests(3);
    CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
    EXPECT_GT(Metric("decode-0", "baton_kv_transfer_bytes_sum"), 0);
    EXPECT_GT(Metric("decode-0", "baton_steps_ahead_total"), 0);
    AwaitAllFree({"prefill-0", "decode-0"});
  }
}

// Guesses are checked in steps of their own kind, which nothing runs ahead of;
// steps without any still run ahead.
TEST_F(DeviceTest, GuessesAtNextTokensChangeNoAnswer) {
  const Flags flags = With(kDevice, {"--transport", "tcp"});
  ASSERT_NO_FATAL_FAILURE(StartCluster(
      {.prefill = {flags},
       .decode = {
           With(flags, {"--draft-tokens", "4", "--draft-when", "always"})}}));
  std::vector<v1::GenerateRequest> requests = MakeRequests(4);
  for (v1::GenerateRequest& request : requests) request.set_max_tokens(60);
  CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  EXPECT_GT(Metric("decode-0", "baton_kv_transfer_bytes_sum"), 0);
  EXPECT_GT(Metric("decode-0", "baton_spec_decode_num_accepted_tokens_total"),
            0);
  // While an answer may not end yet, nothing is guessed of it.
  requests.resize(1);
  requests[0].set_min_tokens(requests[0].max_tokens());
  CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  EXPECT_GT(Metric("decode-0", "baton_steps_ahead_total"), 0);
  AwaitAllFree({"prefill-0", "decode-0"});
}

// From device to device: staged blocks are the device's, with one layout
// whatever the blocks and the number of devices.
TEST_F(DeviceTest, HandsOverFromDeviceToDevice) {
  const Flags flags = With(kDevice, {"--transport", "nccl"});
  ASSERT_NO_FATAL_FAILURE(ReferTo("bf16", "int8"));
  const Flags int8 = With(flags, {"--kv-dtype", "int8"});
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.prefill = {With(int8, {"--tensor-parallel", "2"}), int8},
                    .decode = {With(int8, {"--block-size", "64"}),
                               With(int8, {"--tensor-parallel", "2"})}}));
  CheckHandsOver();
}

// Who goes from device to device and who does not are not paired, and that is
// not waited for.
TEST_F(DeviceTest, PeersWithoutNcclAreNotPaired) {
  const Flags nccl = With(kDevice, {"--transport", "nccl"});
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.prefill = {nccl, kDevice}, .decode = {kDevice, nccl}}));
  const auto requests = ShortRequests(6);
  CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  // By what, or why not.
  std::map<std::string, std::string> links;
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::GetClusterResponse cluster;
    EXPECT_TRUE(stub_->GetCluster(&context, {}, &cluster).ok());
    for (const v1::LinkStatus& link : cluster.links()) {
      links[link.prefill_worker() + ">" + link.decode_worker()] =
          link.usable() ? link.transport() : link.why_not();
    }
    return std::none_of(links.begin(), links.end(),
                        [](const auto& link) { return link.second.empty(); });
  }));
  EXPECT_THAT(links,
              UnorderedElementsAre(
                  Pair("prefill-0>decode-0", HasSubstr("does not speak nccl")),
                  Pair("prefill-0>decode-1", "nccl"),
                  Pair("prefill-1>decode-0", "local/memfd"),
                  Pair("prefill-1>decode-1", HasSubstr("speaks nccl alone"))));
  AwaitAllFree({"prefill-0", "prefill-1", "decode-0", "decode-1"});
}

// UCX does not mind which side is a device; neither do blocks and heads.
TEST_F(DeviceTest, OverUcxOneSideMayBeTheHosts) {
  const Flags device = With(kDevice, kUcxOnDevice);
  const Flags host = With(kDevice, {"--transport", "ucx"});
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.prefill = {device, host},
                    .decode = {With(host, {"--block-size", "64"}),
                               With(device, {"--tensor-parallel", "2"})}}));
  CheckHandsOver();
}

// Room for one long prompt: transfers wait for each other.
TEST_F(DeviceTest, FewStagedBlocksMakeTransfersWait) {
  for (const Flags& way : {Flags{"--transport", "auto"},
                           Flags{"--transport", "nccl"}, kUcxOnDevice}) {
    SCOPED_TRACE(way[1]);
    const Flags many = With(kDevice, way);
    const Flags few =
        With(many, {"--kv-staging-memory", absl::StrCat(9 * kBlockBytes, "B")});
    ASSERT_NO_FATAL_FAILURE(StartCluster({.prefill = {few}, .decode = {many}}));
    const auto requests = ShortRequests(6);
    CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
    EXPECT_EQ(Metric("prefill-0", "baton_kv_staged_blocks"), 9);
    AwaitAllFree({"prefill-0", "decode-0"});
  }
}

// Prompts that staged blocks do not hold are computed where they are decoded.
TEST_F(DeviceTest, PromptsThatAreTooLongToHandOverAreNot) {
  const Flags flags = With(
      kDevice, {"--kv-staging-memory", absl::StrCat(3 * kBlockBytes, "B")});
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.prefill = {flags}, .decode = {kDevice}}));
  std::vector<v1::GenerateRequest> requests;
  for (const int length : {20, 48, 49, 90}) {
    // They have no beginning in common that would be cached.
    requests.push_back(GreedyRequest(std::vector<TokenId>(length, length), 12));
  }
  CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  EXPECT_EQ(Metric("prefill-0", "baton_prompt_tokens_total"), 20 + 48);
  AwaitAllFree({"prefill-0", "decode-0"});
}

TEST_F(DeviceTest, AKilledWorkerCostsNoStream) {
  for (const Flags& way : {Flags{"--transport", "auto"},
                           Flags{"--transport", "nccl"}, kUcxOnDevice}) {
    SCOPED_TRACE(way[1]);
    const Flags flags = With(kDevice, way);
    ASSERT_NO_FATAL_FAILURE(
        StartCluster({.prefill = {flags, flags}, .decode = {flags, flags}}));
    auto requests = ShortRequests(6);
    for (v1::GenerateRequest& request : requests) request.set_max_tokens(60);
    CheckAnswers(requests, RunAndInterrupt(requests, [&] {
                   cluster_->Kill("decode-1");
                   cluster_->Kill("prefill-0");
                 }));
    AwaitAllFree({"prefill-1", "decode-0"});
  }
}

// KV that lies on a device is swapped, too.
TEST_F(DeviceTest, PreemptedSequencesGoOn) {
  const Flags small = {"--device",       "cuda", "--kv-memory",      "80KiB",
                       "--token-budget", "32",   "--output-reserve", "8",
                       "--swap-memory",  "4MiB", "--swap-seconds",   "60"};
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.prefill = {kDevice}, .decode = {small}}));
  auto requests = ShortRequests(4);
  for (v1::GenerateRequest& request : requests) request.set_max_tokens(70);
  CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  EXPECT_GT(Metric("decode-0", "baton_preemptions_total"), 0);
  AwaitAllFree({"prefill-0", "decode-0"});
}

// KV of a device goes to a file by way of staged blocks, and comes back to
// another process's.
TEST_F(DeviceTest, StoredKvComesBackToADevice) {
  Flags flags = With(
      kDevice, {"--kv-offload", "1MiB", "--kv-offload-dir", scratch_.path(),
                "--kv-staging-memory", absl::StrCat(20 * kBlockBytes, "B")});
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.prefill = {flags}, .decode = {kDevice}}));
  std::vector<v1::GenerateRequest> requests;
  for (const int length : {70, 90, 120}) {
    requests.push_back(GreedyRequest(std::vector<TokenId>(length, length), 12));
  }
  CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  // 4, 5 and 7 full blocks.
  EXPECT_TRUE(Eventually([&] {
    return Metric("prefill-0", "baton_kv_offload_saved_blocks_total") == 16;
  }));
  AwaitAllFree({"prefill-0", "decode-0"});
  cluster_->Kill("prefill-0");
  ASSERT_TRUE(cluster_->process("prefill-0").WaitExit(kPatience).ok());
  flags = With(flags, {"--listen", cluster_->Address("prefill-0", "grpc")});
  auto again = cluster_->Launch("baton-prefill", "prefill-0", flags);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_TRUE((*again)->WaitReady(kPatience).ok());
  CheckJoined(1, 1);
  CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  EXPECT_GT(Metric("prefill-0", "baton_external_prefix_cache_hits_total"), 0);
  EXPECT_EQ(Metric("prefill-0", "baton_kv_offload_saved_blocks_total"), 0)
      << "it was there";
  AwaitAllFree({"prefill-0", "decode-0"});
}

// While steps run ahead, too: one that goes leaves the device when the last
// step that may read it is done.
TEST_F(DeviceTest, AdaptersComeAndGo) {
  namespace fs = std::filesystem;
  const std::string folder = scratch_.path() + "/adapters";
  fs::create_directory(folder);
  const auto path = [&](const std::string& name) {
    return absl::StrCat(scratch_.path(), "/", name);
  };
  std::vector<engine::AdapterSource> sources;
  for (const auto& [name, rank] : {std::pair{"wide", 16}, {"narrow", 3}}) {
    ASSERT_TRUE(WriteTinyAdapter(path(name), model_dir_,
                                 {.seed = 7u + rank, .rank = rank})
                    .ok());
    sources.push_back({name, path(name)});
  }
  ASSERT_NO_FATAL_FAILURE(ReferTo("bf16", "bf16", sources));
  fs::rename(path("wide"), folder + "/wide");
  const Flags flags =
      With(kDevice, {"--adapter-dir", folder, "--adapter-rank", "16"});
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.prefill = {flags}, .decode = {flags}}));
  ASSERT_TRUE(AwaitAdapters({"wide"}));
  std::vector<v1::GenerateRequest> requests = ShortRequests(4);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 3 < 2) requests[i].set_model("wide");
  }
  bool came = false, went = false;
  CheckAnswers(requests, RunAndInterrupt(requests, [&] {
                 fs::rename(folder + "/wide", path("wide"));
                 went = AwaitAdapters({});
                 fs::rename(path("narrow"), folder + "/narrow");
                 came = AwaitAdapters({"narrow"});
               }));
  EXPECT_TRUE(went && came);
  EXPECT_GT(Metric("decode-0", "baton_steps_ahead_total"), 0);
  for (v1::GenerateRequest& request : requests) request.set_model("narrow");
  CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  AwaitAllFree({"prefill-0", "decode-0"});
}

TEST_F(DeviceTest, DualWorkersHandOverToEachOther) {
  for (const Flags& way : {Flags{"--transport", "auto"},
                           Flags{"--transport", "nccl"}, kUcxOnDevice}) {
    SCOPED_TRACE(way[1]);
    const Flags flags = With(kDevice, way);
    ASSERT_NO_FATAL_FAILURE(StartCluster(
        {.prefill = {},
         .decode = {},
         .dual = {With(flags, {"--role", "prefill"}), flags},
         .router = {"--roles", "fixed", "--placement", "least-load"}}));
    const auto requests = ShortRequests(4);
    CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
    double ahead = 0;
    for (const char* name : {"dual-0", "dual-1"}) {
      const auto text = HttpGet(cluster_->Address(name, "metrics"), "/metrics");
      ASSERT_TRUE(text.ok()) << text.status();
      ahead += MetricSum(*text, "baton_steps_ahead_total");
    }
    EXPECT_GT(ahead, 0);
    AwaitAllFree({"dual-0", "dual-1"});
  }
}

}  // namespace
}  // namespace baton::test
