#include "cli/explain_report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/generate_summary.h"

namespace baton::cli {
namespace {

// Characters of a bar that stands for the whole time.
constexpr int kBarWidth = 40;

void AddLine(absl::string_view name, absl::string_view text, std::string* out) {
  absl::StrAppendFormat(out, "  %-14s %s\n", name, text);
}

std::string Ending(const v1::ExplainRequestResponse& request) {
  switch (request.finish_reason()) {
    case v1::FINISH_REASON_STOP:
      return "done, its answer came to an end";
    case v1::FINISH_REASON_LENGTH:
      return "done, length reached";
    case v1::FINISH_REASON_CANCELLED:
      return "cancelled";
    case v1::FINISH_REASON_ERROR:
      return "failed";
    default:  // proto enums are open
      break;
  }
  const std::string since =
      absl::StrCat(" for ", FormatSeconds(request.timing().e2e_seconds()));
  return absl::StrCat(request.state(), since);
}

std::string Arrival(double unix_seconds) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%E3S UTC",
                          absl::UnixEpoch() + absl::Seconds(unix_seconds),
                          absl::UTCTimeZone());
}

std::string Target(absl::string_view what, uint32_t target_ms, bool known,
                   double seconds) {
  return absl::StrCat(what, " ", target_ms, " ms",
                      !known                       ? ""
                      : seconds * 1e3 <= target_ms ? " (met)"
                                                   : " (missed)");
}

std::string Targets(const v1::ExplainRequestResponse& request) {
  const v1::Timing& timing = request.timing();
  std::string text;
  if (request.target().ttft_ms() > 0) {
    text = Target("first token", request.target().ttft_ms(),
                  request.state() == "done" || timing.ttft_seconds() > 0,
                  timing.ttft_seconds() > 0 ? timing.ttft_seconds() : 1e9);
  }
  if (request.target().itl_ms() > 0) {
    // As the router's log has it: the mean gap.
    const double tokens = request.usage().output_tokens();
    const double gap =
        tokens > 1
            ? (timing.e2e_seconds() - timing.ttft_seconds()) / (tokens - 1)
            : 0;
    absl::StrAppend(
        &text, text.empty() ? "" : ", ",
        Target("between tokens", request.target().itl_ms(), tokens > 1, gap));
  }
  return text;
}

void AddHead(const v1::ExplainRequestResponse& request, std::string* out) {
  absl::StrAppend(out, "request ", request.request_id(), ": ", Ending(request),
                  "\n");
  if (!request.error().empty()) AddLine("error", request.error(), out);
  if (!request.waits_for().empty())
    AddLine("waits for", request.waits_for(), out);
  AddLine("came", Arrival(request.received_unix_seconds()), out);
  if (!request.trace_id().empty()) AddLine("trace", request.trace_id(), out);
  if (!request.model().empty()) AddLine("model", request.model(), out);
  const v1::Usage& usage = request.usage();
  AddLine("tokens",
          absl::StrFormat("%d of prompt, %d of them cached; %d of output",
                          usage.prompt_tokens(), usage.cached_prompt_tokens(),
                          usage.output_tokens()),
          out);
  if (request.request_class() == v1::REQUEST_CLASS_BATCH) {
    AddLine("class", "batch", out);
  }
  const std::string targets = Targets(request);
  if (!targets.empty()) AddLine("targets", targets, out);
}

// Why a candidate was, or was not, taken. `chosen` is who was, of its role.
std::string Why(const v1::PlacementCandidate& candidate,
                const v1::PlacementCandidate* chosen,
                const v1::PlacementRecord& placement) {
  const std::string& standing = candidate.standing();
  if (standing == "passed_over") {
    return chosen != nullptr && candidate.load() > chosen->load() ? "busier"
                                                                  : "as good";
  }
  if (standing == "slow_link") return "slower link";
  if (standing == "no_room") return "no room";
  if (standing == "excluded") return "tried before";
  if (standing == "too_small") return "too small";
  if (standing == "not_paired") {
    if (candidate.role() == "decode") return "no prefill worker for it";
    return placement.decode_worker().empty()
               ? "not connected"
               : absl::StrCat("not connected to ", placement.decode_worker());
  }
  return standing;
}

const v1::PlacementCandidate* FindChosenOf(const v1::PlacementRecord& placement,
                                           absl::string_view role) {
  for (const v1::PlacementCandidate& candidate : placement.candidates()) {
    if (candidate.standing() == "chosen" && candidate.role() == role) {
      return &candidate;
    }
  }
  return nullptr;
}

std::string LoadOf(const v1::PlacementCandidate& candidate) {
  if (candidate.standing() == "unusable") return "";
  if (candidate.role() == "prefill") {
    return absl::StrFormat("%.0f tokens queued", candidate.load());
  }
  return absl::StrFormat("load %.2f: %d sequences, %d of %d KV blocks free",
                         candidate.load(), candidate.sequences(),
                         candidate.free_blocks(), candidate.total_blocks());
}

void AddPlacement(int number, const v1::PlacementRecord& placement,
                  std::string* out) {
  const std::string where =
      placement.prefill_worker().empty()
          ? absl::StrCat(placement.decode_worker(), " alone")
          : absl::StrCat(placement.prefill_worker(), " -> ",
                         placement.decode_worker());
  absl::StrAppendFormat(out, "\n  %d  %s after %s (%s)\n", number, where,
                        FormatSeconds(placement.at_seconds()),
                        placement.reason());
  absl::StrAppendFormat(
      out, "     %d tokens to compute%s, room for %d in all%s\n",
      placement.prefill_tokens(),
      placement.cached_tokens() == 0
          ? ""
          : absl::StrFormat(", %d of them believed to be cached there",
                            placement.cached_tokens()),
      placement.total_tokens(),
      placement.waited_for().empty()
          ? ""
          : absl::StrCat("; had to wait: ", placement.waited_for()));
  for (const char* role : {"prefill", "decode"}) {
    const v1::PlacementCandidate* chosen = FindChosenOf(placement, role);
    for (const v1::PlacementCandidate& candidate : placement.candidates()) {
      if (candidate.role() != role) continue;
      absl::StrAppendFormat(
          out, "     %c %-16s %-8s %-24s %s\n",
          &candidate == chosen ? '*' : ' ', candidate.worker(), role,
          Why(candidate, chosen, placement), LoadOf(candidate));
    }
  }
  if (!placement.ended().empty()) {
    absl::StrAppend(out, "     ended: ", placement.ended(), "\n");
  }
}

void AddPlacements(const v1::ExplainRequestResponse& request,
                   std::string* out) {
  if (request.placements().empty()) return;
  absl::StrAppend(out, "\nPlacements");
  int number = 0;
  for (const v1::PlacementRecord& placement : request.placements()) {
    // Those left out came after the first.
    if (number == 1 && request.placements_left_out() > 0) {
      number += static_cast<int>(request.placements_left_out());
      absl::StrAppend(out, "\n  (", request.placements_left_out(),
                      " more, not kept)\n");
    }
    if (number == 0) absl::StrAppend(out, "\n");
    AddPlacement(++number, placement, out);
  }
}

// A part of the time, on the scale of the whole.
class Timeline final {
 public:
  Timeline(double whole, std::string* out) : whole_(whole), out_(out) {}

  void Add(absl::string_view name, double begin, double seconds,
           const std::string& note = "") {
    const int from = Column(begin);
    // What took any time at all can be seen.
    const int to =
        std::max(Column(begin + seconds), seconds > 0 ? from + 1 : from);
    std::string bar(kBarWidth, ' ');
    for (int i = std::min(from, kBarWidth - 1); i < std::min(to, kBarWidth);
         ++i) {
      bar[static_cast<size_t>(i)] = '#';
    }
    absl::StrAppendFormat(out_, "  %-18s %10s  |%s|%s\n", name,
                          FormatSeconds(seconds), bar,
                          note.empty() ? "" : absl::StrCat("  ", note));
  }

 private:
  int Column(double seconds) const {
    if (!(whole_ > 0) || !(seconds > 0)) return 0;
    const double share = std::min(seconds / whole_, 1.0);
    return static_cast<int>(std::lround(share * kBarWidth));
  }

  const double whole_;
  std::string* const out_;
};

void AddHandoff(const v1::Timing& timing, Timeline* timeline,
                double prefill_end) {
  double at = prefill_end;
  if (timing.kv_transfer_bytes() > 0) {
    at = prefill_end + timing.kv_transfer_exposed_seconds();
    timeline->Add(
        "KV hand-off", std::max(0.0, at - timing.kv_transfer_seconds()),
        timing.kv_transfer_seconds(), FormatBytes(timing.kv_transfer_bytes()));
  }
  if (timing.first_step_seconds() > 0) {
    timeline->Add("decode queue", at, timing.decode_queue_seconds());
    timeline->Add("first decode step", at + timing.decode_queue_seconds(),
                  timing.first_step_seconds());
  }
}

void AddTime(const v1::ExplainRequestResponse& request, std::string* out) {
  const v1::Timing& timing = request.timing();
  const double whole = timing.e2e_seconds();
  absl::StrAppend(out, "\nTime\n");
  Timeline timeline(whole, out);
  if (timing.ttft_seconds() <= 0) {
    timeline.Add(request.state() == "done" ? "without a token" : "no token yet",
                 0, whole);
    return;
  }
  double at = 0;
  const auto add = [&](absl::string_view name, double seconds,
                       const std::string& note = "") {
    timeline.Add(name, at, seconds, note);
    at += seconds;
  };
  add("route queue", timing.route_queue_seconds());
  add("prefill queue", timing.prefill_queue_seconds());
  add("prefill", timing.prefill_seconds());
  const double prefill_end = at;
  add("return", timing.first_token_return_seconds(),
      absl::StrCat("first token after ", FormatSeconds(timing.ttft_seconds())));
  const double rest = std::max(0.0, whole - timing.ttft_seconds());
  const uint32_t tokens = request.usage().output_tokens();
  add("other tokens", rest,
      tokens > 1 && rest > 0 ? absl::StrCat(tokens - 1, " in steps of ",
                                            FormatSeconds(rest / (tokens - 1)))
                             : "");
  timeline.Add("sum", 0, whole);
  if (timing.kv_transfer_bytes() > 0 || timing.first_step_seconds() > 0) {
    absl::StrAppend(out, "\nMeanwhile\n");
    AddHandoff(timing, &timeline, prefill_end);
  }
}

}  // namespace

std::string FormatExplanation(const v1::ExplainRequestResponse& request) {
  std::string out;
  AddHead(request, &out);
  AddPlacements(request, &out);
  AddTime(request, &out);
  return SafeForTerminal(out);
}

}  // namespace baton::cli
