#include "cli/generate_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<absl::Duration> Millis(const std::vector<int>& values) {
  std::vector<absl::Duration> out;
  for (int value : values) out.push_back(absl::Milliseconds(value));
  return out;
}

TEST(PercentileTest, TakesTheNearestRank) {
  EXPECT_EQ(Percentile(Millis({7}), 0), absl::Milliseconds(7));
  EXPECT_EQ(Percentile(Millis({7}), 1), absl::Milliseconds(7));
  // In no order; ranks 2 and 4 of 4.
  EXPECT_EQ(Percentile(Millis({4, 1, 3, 2}), 0.5), absl::Milliseconds(2));
  EXPECT_EQ(Percentile(Millis({4, 1, 3, 2}), 0.51), absl::Milliseconds(3));
  EXPECT_EQ(Percentile(Millis({4, 1, 3, 2}), 0.99), absl::Milliseconds(4));
}

TEST(FormatTest, KeepsThreeDigits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(uint64_t{96} << 20), "96.0 MiB");
  EXPECT_EQ(FormatBytes(uint64_t{5} << 40), "5.0 TiB");
  EXPECT_EQ(FormatSeconds(0), "0.00 ms");
  EXPECT_EQ(FormatSeconds(0.00042), "0.42 ms");
  EXPECT_EQ(FormatSeconds(0.0123), "12.3 ms");
  EXPECT_EQ(FormatSeconds(0.4567), "457 ms");
  EXPECT_EQ(FormatSeconds(1.534), "1.53 s");
}

v1::GenerateResponse LastResponse() {
  v1::GenerateResponse last;
  last.set_finish_reason(v1::FINISH_REASON_LENGTH);
  last.mutable_usage()->set_prompt_tokens(5);
  v1::Timing& timing = *last.mutable_timing();
  timing.set_ttft_seconds(0.010);
  timing.set_route_queue_seconds(0.001);
  timing.set_prefill_queue_seconds(0.002);
  timing.set_prefill_seconds(0.006);
  timing.set_first_token_return_seconds(0.001);
  timing.set_kv_transfer_bytes(3 << 20);
  timing.set_kv_transfer_seconds(0.004);
  timing.set_kv_transfer_exposed_seconds(0.0005);
  timing.set_prefill_worker("prefill-1");
  timing.set_decode_worker("decode-0");
  return last;
}

TEST(SummaryTest, TellsWhereTheTimeWent) {
  const absl::Time t = absl::UnixEpoch();
  const std::string text = SummarizeGenerate(
      LastResponse(),
      {t, t + absl::Milliseconds(10), t + absl::Milliseconds(40)},
      /*tokens=*/3);
  EXPECT_EQ(text,
            "3 tokens after a prompt of 5 (length reached), prefill-1 -> "
            "decode-0\n"
            "  first token  10.0 ms = route queue 1.00 ms + prefill queue "
            "2.00 ms + prefill 6.00 ms + return 1.00 ms\n"
            "  between      median 10.0 ms, p99 30.0 ms, max 30.0 ms; 50 "
            "tokens/s\n"
            "  KV hand-off  3.0 MiB in 4.00 ms, there 0.50 ms after prefill; "
            "then decode queue 0.00 ms, first step 0.00 ms\n");
}

TEST(SummaryTest, LeavesOutWhatDidNotHappen) {
  v1::GenerateResponse last = LastResponse();
  last.mutable_timing()->clear_kv_transfer_bytes();
  last.mutable_timing()->set_retries(2);
  last.mutable_timing()->clear_decode_worker();
  const std::string text =
      SummarizeGenerate(last, {absl::UnixEpoch()}, /*tokens=*/1);
  EXPECT_THAT(text, HasSubstr("placed again 2 times"));
  EXPECT_THAT(text, HasSubstr("prefill-1 -> no decode"));
  EXPECT_THAT(text, Not(HasSubstr("between")));
  EXPECT_THAT(text, Not(HasSubstr("hand-off")));
}

TEST(SummaryTest, TellsWhoComputedThePromptToo) {
  v1::GenerateResponse last = LastResponse();
  last.mutable_timing()->clear_prefill_worker();
  const auto first_line = [&] {
    const std::string text = SummarizeGenerate(last, {absl::UnixEpoch()}, 1);
    return text.substr(0, text.find('\n'));
  };
  EXPECT_EQ(first_line(),
            "1 tokens after a prompt of 5 (length reached), all on decode-0");
  // As of a router that does not say it.
  last.mutable_timing()->clear_decode_worker();
  EXPECT_EQ(first_line(), "1 tokens after a prompt of 5 (length reached)");
}

TEST(SafeForTerminalTest, ReplacesOnlyControlCharacters) {
  EXPECT_EQ(SafeForTerminal("a\tb\nc"), "a\tb\nc");
  EXPECT_EQ(SafeForTerminal("\x1b[2J\rx\x7f"),
            "\xef\xbf\xbd[2J\xef\xbf\xbdx\xef\xbf\xbd");
  // U+009B is a control sequence introducer; U+00E9 is a letter.
  EXPECT_EQ(SafeForTerminal("\xc2\x9b"), "\xef\xbf\xbd");
  EXPECT_EQ(SafeForTerminal("caf\xc3\xa9 \xc2\xa0"), "caf\xc3\xa9 \xc2\xa0");
  EXPECT_EQ(SafeForTerminal("\xc2"), "\xc2");
}

}  // namespace
}  // namespace baton::cli
