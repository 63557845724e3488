#include "common/trace_context.h"

#include <cstddef>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/stable_hash.h"

namespace baton {
namespace {

constexpr size_t kLength = 55;  // of version 00
constexpr uint64_t kSampled = 0x01;

// The value of `text`, all of it lower-case hexadecimal digits; at most 16.
std::optional<uint64_t> ParseHex(absl::string_view text) {
  uint64_t value = 0;
  for (char c : text) {
    uint64_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      digit = c - 'a' + 10;
    } else {
      return std::nullopt;
    }
    value = value << 4 | digit;
  }
  return value;
}

uint64_t DrawNonZero(RandomDraw draw) {
  const uint64_t drawn = draw();
  return drawn != 0 ? drawn : 1;
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(absl::string_view header) {
  if (header.size() < kLength || header[2] != '-' || header[35] != '-' ||
      header[52] != '-') {
    return std::nullopt;
  }
  const std::optional<uint64_t> version = ParseHex(header.substr(0, 2));
  if (!version.has_value() || *version == 0xff) return std::nullopt;
  if (header.size() > kLength && (*version == 0 || header[kLength] != '-')) {
    return std::nullopt;
  }
  const std::optional<uint64_t> high = ParseHex(header.substr(3, 16));
  const std::optional<uint64_t> low = ParseHex(header.substr(19, 16));
  const std::optional<uint64_t> span = ParseHex(header.substr(36, 16));
  const std::optional<uint64_t> flags = ParseHex(header.substr(53, 2));
  if (!high.has_value() || !low.has_value() || !span.has_value() ||
      !flags.has_value() || (*high == 0 && *low == 0) || *span == 0) {
    return std::nullopt;
  }
  return TraceContext{.trace_high = *high,
                      .trace_low = *low,
                      .span = *span,
                      .sampled = (*flags & kSampled) != 0};
}

std::string FormatTraceparent(const TraceContext& context) {
  return absl::StrCat("00-", TraceIdHex(context), "-", SpanIdHex(context.span),
                      context.sampled ? "-01" : "-00");
}

TraceContext NewTrace(RandomDraw draw) {
  TraceContext context;
  context.trace_high = draw();
  context.trace_low = DrawNonZero(draw);
  context.span = DrawNonZero(draw);
  // Each span is in our logs.
  context.sampled = true;
  return context;
}

TraceContext ChildSpan(const TraceContext& parent, RandomDraw draw) {
  TraceContext child = parent;
  child.span = DrawNonZero(draw);
  return child;
}

StartedSpan StartSpan(absl::string_view header, RandomDraw draw) {
  const std::optional<TraceContext> caller = ParseTraceparent(header);
  if (!caller.has_value()) return {.context = NewTrace(draw), .parent = 0};
  return {.context = ChildSpan(*caller, draw), .parent = caller->span};
}

bool IsSampled(const TraceContext& context, double ratio) {
  constexpr uint64_t kRandomBits = (uint64_t{1} << 56) - 1;
  const auto random = static_cast<double>(context.trace_low & kRandomBits);
  return random >= (1 - ratio) * static_cast<double>(kRandomBits + 1);
}

TraceContext PartSpan(const TraceContext& parent, absl::string_view part,
                      uint64_t number) {
  const std::string name =
      absl::StrCat(TraceIdHex(parent), SpanIdHex(parent.span), part, number);
  const Hash128 hash =
      StableHash(std::as_bytes(std::span(name.data(), name.size())));
  TraceContext child = parent;
  child.span = hash.low != 0 ? hash.low : 1;
  return child;
}

std::string TraceIdHex(const TraceContext& context) {
  return absl::StrCat(absl::Hex(context.trace_high, absl::kZeroPad16),
                      absl::Hex(context.trace_low, absl::kZeroPad16));
}

std::string SpanIdHex(uint64_t span) {
  return absl::StrCat(absl::Hex(span, absl::kZeroPad16));
}

}  // namespace baton
