#include "cli/explain_report.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace baton::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

void AddCandidate(v1::PlacementRecord* placement, const std::string& worker,
                  const std::string& role, const std::string& standing,
                  double load) {
  v1::PlacementCandidate* candidate = placement->add_candidates();
  candidate->set_worker(worker);
  candidate->set_role(role);
  candidate->set_standing(standing);
  candidate->set_load(load);
  candidate->set_sequences(3);
  candidate->set_free_blocks(90);
  candidate->set_total_blocks(100);
}

v1::PlacementRecord* AddPlacement(v1::ExplainRequestResponse* request,
                                  double at, const std::string& prefill,
                                  const std::string& decode) {
  v1::PlacementRecord* placement = request->add_placements();
  placement->set_at_seconds(at);
  placement->set_prefill_worker(prefill);
  placement->set_decode_worker(decode);
  placement->set_reason("least_load");
  placement->set_prefill_tokens(5);
  placement->set_total_tokens(65);
  return placement;
}

// Whole: 100 ms; stages of 10, 0, 30 and 10 ms, then 50 ms of other tokens.
v1::ExplainRequestResponse Served() {
  v1::ExplainRequestResponse request;
  request.set_request_id("story-1");
  request.set_state("done");
  request.set_trace_id("4bf92f3577b34da6a3ce929d0e0e4736");
  request.set_received_unix_seconds(1767323045.6789);
  request.set_finish_reason(v1::FINISH_REASON_LENGTH);
  request.mutable_usage()->set_prompt_tokens(5);
  request.mutable_usage()->set_output_tokens(51);
  v1::Timing* timing = request.mutable_timing();
  timing->set_e2e_seconds(0.1);
  timing->set_ttft_seconds(0.05);
  timing->set_route_queue_seconds(0.01);
  timing->set_prefill_seconds(0.03);
  timing->set_first_token_return_seconds(0.01);
  timing->set_kv_transfer_bytes(49152);
  timing->set_kv_transfer_seconds(0.03);
  timing->set_kv_transfer_exposed_seconds(0.005);
  timing->set_decode_queue_seconds(0.001);
  timing->set_first_step_seconds(0.004);
  v1::PlacementRecord* placement =
      AddPlacement(&request, 0.01, "prefill-0", "decode-0");
  AddCandidate(placement, "decode-0", "decode", "chosen", 0.25);
  AddCandidate(placement, "decode-1", "decode", "passed_over", 0.5);
  AddCandidate(placement, "decode-2", "decode", "passed_over", 0.25);
  AddCandidate(placement, "prefill-0", "prefill", "chosen", 12);
  AddCandidate(placement, "prefill-1", "prefill", "not_paired", 0);
  return request;
}

// The line that begins so, without its indent.
std::string Line(const std::string& text, const std::string& begin) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t at = line.find_first_not_of(' ');
    if (at != line.npos && absl::StartsWith(line.substr(at), begin)) {
      return std::string(line.substr(at));
    }
  }
  return "";
}

// Columns [first, past the last] of the bar in a line.
std::pair<size_t, size_t> Bar(const std::string& line) {
  const size_t open = line.find('|');
  const size_t first = line.find('#');
  const size_t last = line.rfind('#');
  if (first == line.npos) return {0, 0};
  return {first - open - 1, last - open};
}

TEST(ExplainReportTest, SaysWhatWasBelievedToBeCached) {
  v1::ExplainRequestResponse request = Served();
  EXPECT_THAT(Line(FormatExplanation(request), "5 tokens"),
              StartsWith("5 tokens to compute, room for 65 in all"));
  request.mutable_placements(0)->set_cached_tokens(4);
  EXPECT_THAT(Line(FormatExplanation(request), "5 tokens"),
              StartsWith("5 tokens to compute, 4 of them believed to be cached "
                         "there, room for 65 in all"));
}

TEST(ExplainReportTest, SaysWhatWhereAndWhy) {
  const std::string text = FormatExplanation(Served());
  EXPECT_THAT(text, StartsWith("request story-1: done, length reached\n"));
  EXPECT_THAT(Line(text, "came"), HasSubstr("2026-01-02 03:04:05.678 UTC"));
  EXPECT_THAT(Line(text, "trace"),
              HasSubstr("4bf92f3577b34da6a3ce929d0e0e4736"));
  EXPECT_THAT(Line(text, "tokens"),
              HasSubstr("5 of prompt, 0 of them cached; 51 of output"));
  EXPECT_THAT(Line(text, "1 "),
              HasSubstr("prefill-0 -> decode-0 after 10.0 ms (least_load)"));
  EXPECT_THAT(Line(text, "* prefill-0"),
              AllOf(HasSubstr("chosen"), HasSubstr("12 tokens queued")));
  EXPECT_THAT(Line(text, "prefill-1"), HasSubstr("not connected to decode-0"));
  EXPECT_THAT(Line(text, "* decode-0"),
              HasSubstr("load 0.25: 3 sequences, 90 of 100 KV blocks free"));
  EXPECT_THAT(Line(text, "decode-1"), HasSubstr("busier"));
  EXPECT_THAT(Line(text, "decode-2"), HasSubstr("as good"));
  EXPECT_THAT(text, Not(HasSubstr("ended:")));
  EXPECT_THAT(text, Not(HasSubstr("targets")));
}

TEST(ExplainReportTest, TheStagesAddUp) {
  const std::string text = FormatExplanation(Served());
  using Columns = std::pair<size_t, size_t>;
  EXPECT_EQ(Bar(Line(text, "route queue")), Columns(0, 4));
  EXPECT_EQ(Bar(Line(text, "prefill queue")), Columns(0, 0));
  EXPECT_EQ(Bar(Line(text, "prefill  ")), Columns(4, 16));
  EXPECT_EQ(Bar(Line(text, "return")), Columns(16, 20));
  EXPECT_EQ(Bar(Line(text, "other tokens")), Columns(20, 40));
  EXPECT_EQ(Bar(Line(text, "sum")), Columns(0, 40));
  EXPECT_THAT(Line(text, "return"), HasSubstr("first token after 50.0 ms"));
  EXPECT_THAT(Line(text, "other tokens"), HasSubstr("50 in steps of 1.00 ms"));
  // Ends 5 ms after the prompt was computed, and took 30.
  EXPECT_EQ(Bar(Line(text, "KV hand-off")), Columns(6, 18));
  EXPECT_THAT(Line(text, "KV hand-off"), HasSubstr("48.0 KiB"));
}

TEST(ExplainReportTest, EachAttemptSaysHowItEnded) {
  v1::ExplainRequestResponse request = Served();
  request.mutable_placements(0)->set_ended("failed: decode-0: torn");
  AddPlacement(&request, 0.02, "", "decode-1")->set_waited_for("decode_full");
  request.set_placements_left_out(7);
  request.set_error("UNAVAILABLE: gone");
  request.set_finish_reason(v1::FINISH_REASON_ERROR);
  const std::string text = FormatExplanation(request);
  EXPECT_THAT(text, StartsWith("request story-1: failed\n"));
  EXPECT_THAT(Line(text, "error"), HasSubstr("UNAVAILABLE: gone"));
  EXPECT_EQ(Line(text, "ended"), "ended: failed: decode-0: torn");
  EXPECT_EQ(Line(text, "(7"), "(7 more, not kept)");
  EXPECT_THAT(Line(text, "9 "), HasSubstr("decode-1 alone after 20.0 ms"));
  EXPECT_THAT(text, HasSubstr("; had to wait: decode_full\n"));
}

TEST(ExplainReportTest, ARequestThatWaits) {
  v1::ExplainRequestResponse request;
  request.set_request_id("r");
  request.set_state("waiting");
  request.set_waits_for("decode_full");
  request.mutable_timing()->set_e2e_seconds(2.5);
  const std::string text = FormatExplanation(request);
  EXPECT_THAT(text, StartsWith("request r: waiting for 2.50 s\n"));
  EXPECT_THAT(Line(text, "waits for"), HasSubstr("decode_full"));
  EXPECT_THAT(Line(text, "no token yet"), HasSubstr("2.50 s"));
  EXPECT_THAT(text, Not(HasSubstr("Placements")));
}

TEST(ExplainReportTest, TargetsAreMetOrMissed) {
  v1::ExplainRequestResponse request = Served();
  request.mutable_target()->set_ttft_ms(50);
  request.mutable_target()->set_itl_ms(2);
  EXPECT_THAT(Line(FormatExplanation(request), "targets"),
              HasSubstr("first token 50 ms (met), between tokens 2 ms (met)"));
  request.mutable_target()->set_ttft_ms(49);
  request.mutable_timing()->set_e2e_seconds(0.2);
  EXPECT_THAT(
      Line(FormatExplanation(request), "targets"),
      HasSubstr("first token 49 ms (missed), between tokens 2 ms (missed)"));
  // No token came at all.
  request.mutable_timing()->set_ttft_seconds(0);
  request.mutable_usage()->set_output_tokens(0);
  EXPECT_THAT(Line(FormatExplanation(request), "targets"),
              HasSubstr("first token 49 ms (missed), between tokens 2 ms"));
}

TEST(ExplainReportTest, NothingReachesTheTerminal) {
  v1::ExplainRequestResponse request = Served();
  request.mutable_placements(0)->set_ended("\x1b[2Jgone");
  EXPECT_THAT(FormatExplanation(request), Not(HasSubstr("\x1b")));
}

TEST(ExplainReportTest, OddNumbersDoNoHarm) {
  v1::ExplainRequestResponse request = Served();
  v1::Timing* timing = request.mutable_timing();
  timing->set_prefill_seconds(1e300);
  timing->set_kv_transfer_seconds(-1e300);
  timing->set_decode_queue_seconds(1e308);
  timing->set_first_step_seconds(1e308);
  EXPECT_THAT(FormatExplanation(request), HasSubstr("sum"));
  timing->set_e2e_seconds(0);
  EXPECT_THAT(FormatExplanation(request), HasSubstr("sum"));
}

}  // namespace
}  // namespace baton::cli
