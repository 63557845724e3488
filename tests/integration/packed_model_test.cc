// What `baton quantize` writes, served by a cluster: the same answers, from
// workers that take no more memory than they should.
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/json.h"
#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/integration/raw_call.h"
#include "tests/integration/reference.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class PackedModelTest : public testing::Test {
 protected:
  // A packed form of `model`; its directory.
  std::string Quantize(const std::string& model, const std::string& to) {
    const std::string dir = absl::StrCat(scratch_.path(), "/", to);
    const RunResult result =
        RunProgram("baton", {"quantize", model, "--to", to, dir, "--replace"});
    EXPECT_TRUE(result.exit.clean()) << result.err;
    EXPECT_THAT(result.err, HasSubstr("writing 100%"));
    EXPECT_THAT(result.out, HasSubstr(dir + ": " + to));
    return dir;
  }

  ScratchDir scratch_;
};

TEST_F(PackedModelTest, AnswersAsTheModelThatIsPackedAtLoad) {
  const std::string model = BATON_SOURCE_DIR "/models/stories";
  const std::string packed = Quantize(model, "int4");
  auto reference = Reference::Load(model, "int4", "int8");
  ASSERT_TRUE(reference.ok()) << reference.status();
  Cluster cluster(packed);
  const Flags kv = {"--kv-dtype", "int8", "--kv-memory", "1%"};
  ClusterShape shape;
  shape.prefill = {kv};
  shape.decode = {kv};
  const absl::Status started = cluster.Start(shape);
  ASSERT_TRUE(started.ok()) << started;
  EXPECT_THAT(cluster.process("decode-0").Log(), HasSubstr("weights int4"));
  EXPECT_THAT(cluster.process("decode-0").Log(), HasSubstr("mapped in"));
  EXPECT_THAT(cluster.process("decode-0").Log(), HasSubstr("KV int8"));
  const auto metrics =
      HttpGet(cluster.Address("decode-0", "metrics"), "/metrics");
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  EXPECT_THAT(*metrics,
              ContainsRegex("baton_engine_weight_bytes.*dtype=.int4"));
  EXPECT_THAT(*metrics, HasSubstr("baton_model_load_seconds"));
  const auto stub = cluster.MakeStub();
  for (int length : {1, 40, 200}) {
    std::vector<TokenId> prompt(length);
    for (int i = 0; i < length; ++i) prompt[i] = (i * 37 + length) % 512;
    const v1::GenerateRequest request = GreedyRequest(prompt, 30);
    const Answer answer = Generate(*stub, request, kPatience);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.tokens, (*reference)->Tokens(request)) << length;
  }
}

TEST_F(PackedModelTest, AWorkerThatPacksPairsWithOneThatMaps) {
  const std::string model = BATON_SOURCE_DIR "/models/stories";
  Cluster cluster(Quantize(model, "int8"));
  auto prefill = cluster.Launch("baton-prefill", "prefill-0", {});
  ASSERT_TRUE(prefill.ok()) << prefill.status();
  ASSERT_TRUE((*prefill)->WaitReady(kPatience).ok());
  cluster.set_model_dir(model);
  auto decode =
      cluster.Launch("baton-decode", "decode-0", {"--weights", "int8"});
  ASSERT_TRUE(decode.ok()) << decode.status();
  ASSERT_TRUE((*decode)->WaitReady(kPatience).ok());
  ASSERT_TRUE(cluster.StartRouter({"prefill-0"}, {"decode-0"}, {}).ok());
  const absl::Status joined = cluster.AwaitJoined(1, 1);
  ASSERT_TRUE(joined.ok()) << joined;
  auto reference = Reference::Load(model, "int8");
  ASSERT_TRUE(reference.ok()) << reference.status();
  // Long enough for the report of the hand-off to come before the end.
  const v1::GenerateRequest request = GreedyRequest({5, 6, 7, 8}, 100);
  const Answer answer = Generate(*cluster.MakeStub(), request, kPatience);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.tokens, (*reference)->Tokens(request));
  EXPECT_GT(answer.last.timing().kv_transfer_bytes(), 0u);
}

// Experts in MXFP4 compute what they compute in bfloat16: whose weights lie how
// is no matter for who works with whom.
TEST_F(PackedModelTest, Mxfp4WorkersPairWithBfloat16Ones) {
  const std::string model = scratch_.path() + "/oss";
  const RunResult made = RunProgram(
      "baton", {"synth", "gpt-oss-20b", model, "--mxfp4", "--layers", "3",
                "--hidden", "64", "--intermediate", "96", "--heads", "4",
                "--kv-heads", "2", "--head-dim", "32", "--vocab", "512"});
  ASSERT_TRUE(made.exit.clean()) << made.err;
  Cluster cluster(model);
  ASSERT_TRUE(cluster.Launch("baton-prefill", "prefill-0", {}).ok());
  ASSERT_TRUE(
      cluster.Launch("baton-decode", "decode-0", {"--weights", "bf16"}).ok());
  cluster.set_model_dir(Quantize(model, "mxfp4"));
  ASSERT_TRUE(cluster.Launch("baton-decode", "decode-1", {}).ok());
  for (const char* const name : {"prefill-0", "decode-0", "decode-1"}) {
    ASSERT_TRUE(cluster.process(name).WaitReady(kPatience).ok()) << name;
    EXPECT_THAT(cluster.process(name).Log(),
                HasSubstr(name == std::string("decode-0") ? "weights bf16"
                                                          : "weights mxfp4"));
  }
  EXPECT_THAT(cluster.process("decode-1").Log(), HasSubstr("mapped in"));
  ASSERT_TRUE(
      cluster.StartRouter({"prefill-0"}, {"decode-0", "decode-1"}, {}).ok());
  const absl::Status joined = cluster.AwaitJoined(1, 2);
  ASSERT_TRUE(joined.ok()) << joined;
  auto reference = Reference::Load(model, "bf16");
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto stub = cluster.MakeStub();
  for (int length = 1; length < 200; length += 24) {
    std::vector<TokenId> prompt(length);
    for (int i = 0; i < length; ++i) prompt[i] = (i * 37 + length) % 512;
    const v1::GenerateRequest request = GreedyRequest(prompt, 30);
    const Answer answer = Generate(*stub, request, kPatience);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.tokens, (*reference)->Tokens(request)) << length;
  }
}

// `baton up` with its flags for weights and KV, on a directory made from a GGUF
// file: the tokenizer comes along.
TEST_F(PackedModelTest, UpServesAGgufThatWasQuantized) {
  const std::string tiny = scratch_.path() + "/tiny";
  ASSERT_TRUE(WriteTinyModel(tiny).ok());
  std::ifstream tokenizer(tiny + "/tokenizer.json");
  GgufWriter writer = GgufOfModelDir(tiny);
  AddGgufTokenizer(nlohmann::json::parse(tokenizer), "gpt-2", writer);
  writer.AddBool("tokenizer.ggml.add_bos_token", true);
  writer.AddUint32("tokenizer.ggml.bos_token_id", kTinyModelBos);
  writer.AddUint32("tokenizer.ggml.eos_token_id", kTinyModelEos);
  writer.AddString("tokenizer.chat_template", "{{ messages }}");
  const std::string file = scratch_.path() + "/tiny.gguf";
  std::ofstream(file, std::ios::binary) << writer.Finish();
  const std::string packed = Quantize(file, "int8");

  const auto answer = [&](const std::string& model, const Flags& flags) {
    cli::ChildOptions options;
    options.name = "up";
    options.command = {
        ProgramPath("baton"), "up",        "--listen",
        "127.0.0.1:0",        "--model",   model,
        "--die-with-parent",  "--log-dir", scratch_.path() + "/logs"};
    options.command.insert(options.command.end(), flags.begin(), flags.end());
    options.log_path = scratch_.path() + "/up.log";
    auto up = cli::ChildProcess::Start(std::move(options));
    EXPECT_TRUE(up.ok()) << up.status();
    const absl::Status ready = (*up)->WaitReady(kPatience);
    EXPECT_TRUE(ready.ok()) << ready << (*up)->LogTail(30);
    if (!ready.ok()) return std::string();
    const RunResult told = RunProgram(
        "baton", {"generate", "Once", "--address", (*up)->ready().at("grpc"),
                  "--greedy", "--max-tokens", "12", "--ignore-eos", "--quiet"});
    EXPECT_TRUE(told.exit.clean()) << told.err;
    EXPECT_EQ((*up)->Stop(kPatience).Describe(), "exit status 0");
    return told.out;
  };
  const Flags kv = {"--kv-dtype", "int8", "--kv-memory", "4MiB"};
  Flags packs = kv;
  packs.insert(packs.end(), {"--weights", "int8"});
  const std::string expected = answer(file, packs);
  EXPECT_NE(expected, "");
  EXPECT_EQ(answer(packed, kv), expected);
  std::ifstream log(scratch_.path() + "/logs/dual-0.log");
  EXPECT_THAT((std::string{std::istreambuf_iterator<char>(log), {}}),
              testing::AllOf(HasSubstr("KV int8"), HasSubstr("mapped")));
}

TEST_F(PackedModelTest, SaysWhatIsWrong) {
  const std::string tiny = scratch_.path() + "/tiny";
  ASSERT_TRUE(WriteTinyModel(tiny).ok());
  const auto fails = [&](int code, const Flags& flags) {
    const RunResult result = RunProgram("baton", flags);
    EXPECT_EQ(result.exit.code, code) << result.err;
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  const std::string out = scratch_.path() + "/out";
  EXPECT_THAT(fails(2, {"quantize", tiny, out}), HasSubstr("--to"));
  EXPECT_THAT(fails(2, {"quantize", tiny, out, "--to", "int5"}),
              HasSubstr("--to"));
  EXPECT_THAT(fails(1, {"quantize", "/nowhere", out, "--to", "int8"}),
              HasSubstr("/nowhere"));
  EXPECT_THAT(fails(1, {"quantize", tiny, tiny, "--to", "int8", "--replace"}),
              HasSubstr("holds something else"));
  const std::string packed = Quantize(tiny, "int8");
  EXPECT_THAT(fails(1, {"quantize", tiny, packed, "--to", "int4"}),
              HasSubstr("--replace"));
  const RunResult worker =
      RunProgram("baton-decode", {"--model", packed, "--weights", "int4"});
  EXPECT_EQ(worker.exit.code, 1);
  EXPECT_THAT(worker.err, HasSubstr("weights are int8, not int4"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// A number of the kernel about a process, in bytes.
int64_t StatusBytes(const cli::ChildProcess& process, absl::string_view name) {
  std::ifstream in(absl::StrCat("/proc/", process.pid(), "/status"));
  for (std::string line; std::getline(in, line);) {
    const std::vector<absl::string_view> parts =
        absl::StrSplit(line, absl::ByAnyChar(": \t"), absl::SkipEmpty());
    int64_t kilobytes = 0;
    if (parts.size() == 3 && parts[0] == name &&
        absl::SimpleAtoi(parts[1], &kilobytes)) {
      return kilobytes << 10;
    }
  }
  return 0;
}

// Packed weights, KV and 150 MB hold all that a worker ever has in memory:
// while it loads from any kind of directory, and while it serves.
TEST_F(PackedModelTest, WorkersStayWithinTheirMemory) {
  constexpr int64_t kKvBytes = 16 << 20;
  constexpr int64_t kRest = 150'000'000;
  const std::string model = scratch_.path() + "/135m";
  const RunResult made = RunProgram("baton", {"synth", "SmolLM2-135M", model});
  ASSERT_TRUE(made.exit.clean()) << made.err;
  const Flags common = {"--kv-memory", absl::StrCat(kKvBytes)};
  const std::string packed = Quantize(model, "bf16");
  for (const std::string weights : {"int4", "bf16", "auto"}) {
    SCOPED_TRACE(weights);
    Cluster cluster(weights == "auto" ? packed : model);
    Flags flags = common;
    flags.insert(flags.end(), {"--weights", weights});
    ClusterShape shape;
    shape.prefill = {flags};
    shape.decode = {flags};
    const absl::Status started = cluster.Start(shape);
    ASSERT_TRUE(started.ok()) << started;
    const Answer answer = Generate(*cluster.MakeStub(),
                                   GreedyRequest({5, 6, 7, 8}, 4), kPatience);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    for (const char* name : {"prefill-0", "decode-0"}) {
      const auto metrics =
          HttpGet(cluster.Address(name, "metrics"), "/metrics");
      ASSERT_TRUE(metrics.ok()) << metrics.status();
      const double held = MetricValue(*metrics, "baton_engine_weight_bytes");
      ASSERT_GT(held, 50e6);
      const int64_t peak = StatusBytes(cluster.process(name), "VmHWM");
      EXPECT_GT(peak, held / 2);
      EXPECT_LT(peak, held + kKvBytes + kRest);
      std::cout << name << " " << weights << ": peak " << peak / 1e6
                << " MB, weights " << held / 1e6 << " MB\n";
    }
  }
}

#endif

}  // namespace
}  // namespace baton::test
