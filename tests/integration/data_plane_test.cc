// How KV goes from worker to worker on one host: by shared memory unless the
// operator says otherwise, with the same answers.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/integration/raw_call.h"
#include "tests/integration/reference.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

struct Way {
  std::string name;
  Flags prefill, decode;
  // What both logs and metrics say that it goes over.
  std::string over;
  std::string kv_dtype = "bf16";
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

// The lines of the hand-offs that ended, of GET /metrics.
std::vector<std::string> TransferLines(const std::string& metrics) {
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(metrics, '\n')) {
    if (absl::StartsWith(line, "baton_kv_transfers_total{")) {
      lines.emplace_back(line);
    }
  }
  return lines;
}

class DataPlaneTest : public testing::TestWithParam<Way> {};

TEST_P(DataPlaneTest, AnswersAreThoseOfOneEngine) {
  const ScratchDir scratch;
  const std::string model_dir = scratch.path() + "/model";
  ASSERT_TRUE(WriteTinyModel(model_dir).ok());
  auto reference = Reference::Load(model_dir, "auto", GetParam().kv_dtype);
  ASSERT_TRUE(reference.ok()) << reference.status();
  Cluster cluster(model_dir);
  ClusterShape shape;
  shape.prefill = {GetParam().prefill};
  shape.decode = {GetParam().decode};
  const absl::Status started = cluster.Start(shape);
  ASSERT_TRUE(started.ok()) << started;
  const auto stub = cluster.MakeStub();
  for (int length : {1, 40, 200}) {
    std::vector<TokenId> prompt(length);
    for (int i = 0; i < length; ++i) {
      prompt[i] = (i * 7 + 3) % (*reference)->model().vocab_size;
    }
    // Long enough for the report of the hand-off to come before the end.
    const v1::GenerateRequest request = GreedyRequest(prompt, 100);
    const Answer answer = Generate(*stub, request, kPatience);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.tokens, (*reference)->Tokens(request)) << length;
    EXPECT_GT(answer.last.timing().kv_transfer_bytes(), 0u);
  }
  for (const char* worker : {"prefill-0", "decode-0"}) {
    EXPECT_TRUE(absl::StrContains(cluster.process(worker).LogTail(500),
                                  ") over " + GetParam().over))
        << worker << " says:\n"
        << cluster.process(worker).LogTail(500);
    const std::string over =
        absl::StrCat("transport=\"", GetParam().over, "\"");
    const auto are_right = UnorderedElementsAre(
        AllOf(HasSubstr(over), HasSubstr("outcome=\"ok\""), EndsWith("} 3")),
        AllOf(HasSubstr(over), HasSubstr("outcome=\"failed\""),
              EndsWith("} 0")));
    std::vector<std::string> lines;
    // An answer does not wait for long for its prefill worker's last word.
    Eventually([&] {
      const auto metrics =
          HttpGet(cluster.Address(worker, "metrics"), "/metrics");
      if (metrics.ok()) lines = TransferLines(*metrics);
      return testing::Matches(are_right)(lines);
    });
    EXPECT_THAT(lines, are_right) << worker;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, DataPlaneTest,
    testing::Values(
        Way{"ByDefault", {}, {}, "local/memfd"},
        Way{"LocalOnly",
            {"--transport", "local"},
            {"--transport", "local"},
            "local/memfd"},
        Way{"OneSideSaysTcp", {"--transport", "tcp"}, {}, "tcp"},
        Way{"TheOtherSaysTcp", {}, {"--transport", "tcp"}, "tcp"},
        Way{"BothSayTcp",
            {"--transport", "tcp", "--block-size", "64"},
            {"--transport", "tcp"},
            "tcp"},
        Way{"OneSideSaysUcx", {"--transport", "ucx"}, {}, "ucx/tcp"},
        Way{"TheOtherSaysUcx", {}, {"--transport", "ucx"}, "ucx/tcp"},
        Way{"LargerBlocksOnPrefill",
            {"--block-size", "64"},
            {"--transport", "ucx"},
            "ucx/tcp"},
        Way{"LargerBlocksOnDecode",
            {"--kv-dtype", "int8"},
            {"--kv-dtype", "int8", "--block-size", "128"},
            "local/memfd",
            "int8"}),
    [](const auto& info) { return info.param.name; });

// Of a page of metrics: the hand-offs that went well.
double TransfersDone(const std::string& page) {
  for (const std::string& line : TransferLines(page)) {
    double value = 0;
    if (absl::StrContains(line, "outcome=\"ok\"") &&
        absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
      return value;
    }
  }
  return 0;
}

// Over links that count as slow, half of the bytes go over.
TEST(WireEncodingTest, SlowLinksTakeHalfOfTheBytes) {
  const ScratchDir scratch;
  const std::string model_dir = scratch.path() + "/model";
  ASSERT_TRUE(WriteTinyModel(model_dir).ok());
  uint64_t exact_bytes = 0;
  for (const char* wire : {"exact", "int8", "fp8"}) {
    Cluster cluster(model_dir);
    ClusterShape shape;
    shape.prefill = {{"--transport", "ucx", "--kv-wire", wire,
                      "--kv-wire-below", "1000000"}};
    const absl::Status started = cluster.Start(shape);
    ASSERT_TRUE(started.ok()) << started;
    const auto metrics = [&] {
      const auto text =
          HttpGet(cluster.Address("prefill-0", "metrics"), "/metrics");
      return text.ok() ? *text : "";
    };
    const auto metric = [&](const char* name) {
      return MetricValue(metrics(), name);
    };
    ASSERT_TRUE(Eventually(
        [&] { return metric("baton_kv_link_bandwidth_bytes") > 0; }));
    const auto stub = cluster.MakeStub();
    const v1::GenerateRequest request =
        GreedyRequest(std::vector<TokenId>(100, 7), 100);
    const Answer answer = Generate(*stub, request, kPatience);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.tokens.size(), 100u);
    const uint64_t bytes = answer.last.timing().kv_transfer_bytes();
    // What came less precise is not what others begin with.
    const Answer again = Generate(*stub, request, kPatience);
    ASSERT_TRUE(again.status.ok()) << again.status;
    const uint64_t bytes_again = again.last.timing().kv_transfer_bytes();
    if (std::string(wire) == "exact") {
      exact_bytes = bytes;
      EXPECT_LT(bytes_again, bytes);
      // The worker counts both, and with what it does next has published how
      // many of them were encoded.
      EXPECT_TRUE(Eventually([&] { return TransfersDone(metrics()) == 2; }))
          << metrics();
      EXPECT_TRUE(
          Generate(*stub, GreedyRequest({1}, 1), kPatience).status.ok());
      EXPECT_EQ(metric("baton_kv_transfers_encoded_total"), 0);
    } else {
      EXPECT_GT(bytes, exact_bytes / 2);
      EXPECT_LT(bytes, exact_bytes * 6 / 10);
      EXPECT_EQ(bytes_again, bytes);
      // Published a while after the answers.
      EXPECT_TRUE(Eventually([&] {
        return metric("baton_kv_transfers_encoded_total") == 2;
      })) << metric("baton_kv_transfers_encoded_total");
    }
  }
}

TEST(WireEncodingTest, AnInt8CacheIsNotEncodedAgain) {
  const RunResult result = RunProgram(
      "baton-prefill",
      {"--model", "/nonexistent", "--kv-wire", "fp8", "--kv-dtype", "int8"});
  EXPECT_NE(result.exit.code, 0);
  EXPECT_TRUE(absl::StrContains(result.err, "--kv-wire fp8 needs --kv-dtype"))
      << result.err;
}

// What the CPU computes lies where NCCL does not reach.
TEST(NcclTransportTest, IsForDevices) {
  const RunResult result = RunProgram(
      "baton-prefill", {"--model", "/nonexistent", "--transport", "nccl"});
  EXPECT_EQ(result.exit.Describe(), "exit status 1");
  EXPECT_TRUE(absl::StrContains(
      result.err, "--transport nccl needs --device cuda, not cpu"))
      << result.err;
  const RunResult wire = RunProgram(
      "baton-prefill", {"--model", "/nonexistent", "--device", "cuda",
                        "--transport", "nccl", "--kv-wire", "int8"});
  EXPECT_TRUE(absl::StrContains(wire.err, "--kv-wire int8 needs another"))
      << wire.err;
}

TEST(KvStagingTest, SaysWhatADeviceNeeds) {
  const auto says = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"--model", "/nonexistent"});
    const RunResult result = RunProgram("baton-prefill", flags);
    EXPECT_EQ(result.exit.Describe(), "exit status 1");
    return result.err;
  };
  const std::vector<std::string> device = {"--device", "cuda", "--kv-staging",
                                           "device"};
  const auto with = [&device](std::vector<std::string> flags) {
    flags.insert(flags.end(), device.begin(), device.end());
    return flags;
  };
  EXPECT_THAT(says({"--kv-staging", "device", "--transport", "ucx"}),
              HasSubstr("--kv-staging device needs --device cuda, not cpu"));
  EXPECT_THAT(says(with({})), HasSubstr("--kv-staging device needs --transport "
                                        "nccl or ucx, not auto"));
  EXPECT_THAT(says(with({"--transport", "ucx", "--kv-wire", "int8"})),
              HasSubstr("--kv-wire int8 needs --kv-staging host"));
  EXPECT_THAT(
      says({"--device", "cuda", "--transport", "nccl", "--kv-staging", "host"}),
      HasSubstr("--kv-staging host needs another --transport"));
  // Or else it does reach them, and the model is what is missing.
  EXPECT_THAT(says(with({"--transport", "ucx"})),
              AnyOf(AllOf(HasSubstr("--kv-staging device: UCX"),
                          HasSubstr("'tcp,cuda")),
                    HasSubstr("/nonexistent")));
}

}  // namespace
}  // namespace baton::test
