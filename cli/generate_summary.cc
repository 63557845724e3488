#include "cli/generate_summary.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/log.h"

namespace baton::cli {
namespace {

std::string FinishName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "the model ended its answer";
    case v1::FINISH_REASON_LENGTH:
      return "length reached";
    case v1::FINISH_REASON_CANCELLED:
      return "cancelled";
    case v1::FINISH_REASON_ERROR:
      return "error";
    case v1::FINISH_REASON_UNSPECIFIED:
    case v1::FinishReason_INT_MIN_SENTINEL_DO_NOT_USE_:
    case v1::FinishReason_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return "unfinished";
}

std::string GapLine(absl::Span<const absl::Time> times, int64_t tokens) {
  if (times.size() < 2) return "";
  std::vector<absl::Duration> gaps;
  for (size_t i = 1; i < times.size(); ++i) {
    gaps.push_back(times[i] - times[i - 1]);
  }
  const auto at = [&](double fraction) {
    return FormatSeconds(absl::ToDoubleSeconds(Percentile(gaps, fraction)));
  };
  const double seconds = absl::ToDoubleSeconds(times.back() - times.front());
  // The first token is TTFT's.
  const double rate = seconds > 0 ? (tokens - 1) / seconds : 0;
  return absl::StrFormat(
      "  between      median %s, p99 %s, max %s; %.4g tokens/s\n", at(0.5),
      at(0.99), at(1), rate);
}

std::string HandoffLine(const v1::Timing& timing) {
  if (timing.kv_transfer_bytes() == 0) return "";
  return absl::StrFormat(
      "  KV hand-off  %s in %s, there %s after prefill; then decode queue %s, "
      "first step %s\n",
      FormatBytes(timing.kv_transfer_bytes()),
      FormatSeconds(timing.kv_transfer_seconds()),
      FormatSeconds(timing.kv_transfer_exposed_seconds()),
      FormatSeconds(timing.decode_queue_seconds()),
      FormatSeconds(timing.first_step_seconds()));
}

// The length of the character that starts at text[i] when it is a control
// character, else 0. C1 controls are two bytes in UTF-8: C2 80 to C2 9F.
size_t ControlLength(const std::string& text, size_t i) {
  const auto byte = static_cast<unsigned char>(text[i]);
  if (byte < 0x20) return byte == '\n' || byte == '\t' ? 0 : 1;
  if (byte == 0x7f) return 1;
  if (byte != 0xc2 || i + 1 >= text.size()) return 0;
  const auto next = static_cast<unsigned char>(text[i + 1]);
  return next >= 0x80 && next <= 0x9f ? 2 : 0;
}

}  // namespace

absl::Duration Percentile(std::vector<absl::Duration> values, double fraction) {
  CHECK(!values.empty());
  CHECK(fraction >= 0 && fraction <= 1) << fraction;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(fraction * values.size()));
  return values[std::max<size_t>(rank, 1) - 1];
}

std::string FormatBytes(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  double value = bytes / 1024.0;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string FormatSeconds(double seconds) {
  if (seconds >= 1) return absl::StrFormat("%.2f s", seconds);
  const double ms = seconds * 1e3;
  const int decimals = ms >= 99.95 ? 0 : ms >= 9.995 ? 1 : 2;
  return absl::StrFormat("%.*f ms", decimals, ms);
}

std::string SummarizeGenerate(const v1::GenerateResponse& last,
                              absl::Span<const absl::Time> token_times,
                              int64_t tokens) {
  const v1::Timing& timing = last.timing();
  std::string text = absl::StrFormat("%d tokens after a prompt of %d (%s)",
                                     tokens, last.usage().prompt_tokens(),
                                     FinishName(last.finish_reason()));
  if (!timing.prefill_worker().empty()) {
    absl::StrAppend(
        &text, ", ", timing.prefill_worker(), " -> ",
        timing.decode_worker().empty() ? "no decode" : timing.decode_worker());
  } else if (!timing.decode_worker().empty()) {
    absl::StrAppend(&text, ", all on ", timing.decode_worker());
  }
  if (timing.retries() > 0) {
    absl::StrAppend(&text, ", placed again ", timing.retries(), " times");
  }
  absl::StrAppendFormat(
      &text,
      "\n  first token  %s = route queue %s + prefill queue %s + prefill %s + "
      "return %s\n",
      FormatSeconds(timing.ttft_seconds()),
      FormatSeconds(timing.route_queue_seconds()),
      FormatSeconds(timing.prefill_queue_seconds()),
      FormatSeconds(timing.prefill_seconds()),
      FormatSeconds(timing.first_token_return_seconds()));
  absl::StrAppend(&text, GapLine(token_times, tokens), HandoffLine(timing));
  return text;
}

std::string SafeForTerminal(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t control = ControlLength(text, i);
    if (control == 0) {
      out.push_back(text[i++]);
    } else {
      out += "\xef\xbf\xbd";
      i += control;
    }
  }
  return out;
}

}  // namespace baton::cli
