// Long streams on decode workers with few blocks: sequences are preempted and
// go on, elsewhere or later, and no client sees anything but a pause.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tests/integration/raw_call.h"
#include "tests/integration/streams_fixture.h"

namespace baton::test {
namespace {

// 48 blocks of 16 tokens: two streams of the longest ones.
const Flags kSmall = {"--kv-memory", "192KiB", "--output-reserve", "24"};

class PreemptionTest : public StreamsTest {
 protected:
  // Of the series that has such a label; -1: there is none.
  double Metric(const std::string& worker, const std::string& name,
                const std::string& label = "") {
    const auto text = HttpGet(cluster_->Address(worker, "metrics"), "/metrics");
    EXPECT_TRUE(text.ok()) << worker << ": " << text.status();
    if (!text.ok()) return -1;
    for (absl::string_view line : absl::StrSplit(*text, '\n')) {
      if (absl::StartsWith(line, name + "{") &&
          absl::StrContains(line, label)) {
        return MetricValue(std::string(line), name);
      }
    }
    return -1;
  }
  double Preemptions(const std::string& worker, const std::string& way) {
    return Metric(worker, "baton_preemptions_total", "way=\"" + way + "\"");
  }
  double PlacedAgain() {
    return Metric("router", "baton_prefill_recompute_total",
                  "reason=\"preempted\"");
  }
  // Runs streams and checks their answers; how many were placed again.
  int RunStreams(int count) {
    const auto requests = MakeRequests(count);
    return CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  }
  static Flags With(Flags flags, const Flags& more) {
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }
};

TEST_F(PreemptionTest, ByTheRouterAndAnotherPrefill) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.prefill = {{}}, .decode = {kSmall, kSmall}}));
  EXPECT_GT(RunStreams(10), 0);
  double preemptions = 0;
  for (const char* worker : {"decode-0", "decode-1"}) {
    preemptions += Preemptions(worker, "recompute");
    EXPECT_EQ(Preemptions(worker, "swap"), 0) << worker;
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_EQ(PlacedAgain(), preemptions);
  AwaitBlocksFree({"prefill-0", "decode-0", "decode-1"});
  CheckServes();
}

TEST_F(PreemptionTest, ThroughTheHostsMemory) {
  // Computing is made dear: a step for every other token.
  ASSERT_NO_FATAL_FAILURE(StartCluster(
      {.prefill = {{}},
       .decode = {With(kSmall, {"--swap-memory", "4MiB", "--swap-seconds", "60",
                                "--token-budget", "8"})}}));
  RunStreams(6);
  EXPECT_GT(Preemptions("decode-0", "swap"), 0);
  EXPECT_TRUE(Eventually([&] {
    return Metric("decode-0", "baton_swapped_sequences") == 0 &&
           Metric("decode-0", "baton_swapped_bytes") == 0;
  }));
  EXPECT_EQ(Metric("decode-0", "baton_swaps_given_up_total"), 0);
  AwaitBlocksFree({"prefill-0", "decode-0"});
  CheckServes();
}

TEST_F(PreemptionTest, OneWorkerThatDoesItAll) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({.prefill = {}, .decode = {kSmall}}));
  EXPECT_GT(RunStreams(6), 0);
  EXPECT_GT(Preemptions("decode-0", "recompute"), 0);
  AwaitBlocksFree({"decode-0"});
}

TEST_F(PreemptionTest, WithTheWholeOutputSetAsideThereIsNone) {
  Flags flags = kSmall;
  flags.back() = "0";
  ASSERT_NO_FATAL_FAILURE(StartCluster({.prefill = {{}}, .decode = {flags}}));
  RunStreams(5);
  EXPECT_EQ(Preemptions("decode-0", "recompute"), 0);
  EXPECT_LE(PlacedAgain(), 0);
}

}  // namespace
}  // namespace baton::test
