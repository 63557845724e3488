#include "router/tracing/otlp_json.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "common/json_text.h"

namespace baton::router::tracing {
namespace {

// The instrumentation that made the spans.
constexpr char kScope[] = "baton.router";

// Of what a collector says, for the log.
constexpr size_t kMaxMessageBytes = 256;

void AppendKey(absl::string_view key, std::string* out) {
  if (out->back() != '{') out->push_back(',');
  absl::StrAppend(out, "\"", key, "\":");
}

// Before an element of an array.
void AppendComma(std::string* out) {
  if (out->back() != '[') out->push_back(',');
}

void AppendText(absl::string_view text, std::string* out) {
  out->append("{\"stringValue\":");
  AppendJsonString(text, out);
  out->push_back('}');
}

void AppendValue(const Attribute::Value& value, std::string* out) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    AppendText(*text, out);
  } else if (const auto* whole = std::get_if<int64_t>(&value)) {
    absl::StrAppend(out, "{\"intValue\":\"", *whole, "\"}");
  } else if (const auto* number = std::get_if<double>(&value)) {
    // JSON has no number for the others.
    const double finite = std::isfinite(*number) ? *number : 0;
    absl::StrAppend(out, "{\"doubleValue\":", nlohmann::json(finite).dump(),
                    "}");
  } else {
    out->append("{\"arrayValue\":{\"values\":[");
    for (const std::string& text : std::get<std::vector<std::string>>(value)) {
      AppendComma(out);
      AppendText(text, out);
    }
    out->append("]}}");
  }
}

void AppendAttributes(const std::vector<Attribute>& attributes,
                      std::string* out) {
  AppendKey("attributes", out);
  out->push_back('[');
  for (const Attribute& attribute : attributes) {
    AppendComma(out);
    out->append("{\"key\":");
    AppendJsonString(attribute.key, out);
    out->append(",\"value\":");
    AppendValue(attribute.value, out);
    out->push_back('}');
  }
  out->push_back(']');
}

void AppendTime(absl::string_view key, absl::Time at, std::string* out) {
  AppendKey(key, out);
  absl::StrAppend(out, "\"", std::max<int64_t>(0, absl::ToUnixNanos(at)), "\"");
}

void AppendEvents(const std::vector<SpanEvent>& events, std::string* out) {
  if (events.empty()) return;
  AppendKey("events", out);
  out->push_back('[');
  for (const SpanEvent& event : events) {
    AppendComma(out);
    out->push_back('{');
    AppendTime("timeUnixNano", event.at, out);
    AppendKey("name", out);
    AppendJsonString(event.name, out);
    AppendAttributes(event.attributes, out);
    out->push_back('}');
  }
  out->push_back(']');
}

void AppendSpan(const Span& span, std::string* out) {
  out->push_back('{');
  AppendKey("traceId", out);
  absl::StrAppend(out, "\"", TraceIdHex(span.context), "\"");
  AppendKey("spanId", out);
  absl::StrAppend(out, "\"", SpanIdHex(span.context.span), "\"");
  if (span.parent != 0) {
    AppendKey("parentSpanId", out);
    absl::StrAppend(out, "\"", SpanIdHex(span.parent), "\"");
  }
  AppendKey("flags", out);
  out->append(span.context.sampled ? "1" : "0");
  AppendKey("name", out);
  AppendJsonString(span.name, out);
  AppendKey("kind", out);
  absl::StrAppend(out, static_cast<int>(span.kind));
  AppendTime("startTimeUnixNano", span.start, out);
  AppendTime("endTimeUnixNano", std::max(span.start, span.end), out);
  AppendAttributes(span.attributes, out);
  AppendEvents(span.events, out);
  AppendKey("status", out);
  if (span.failed) {
    out->append("{\"code\":2,\"message\":");
    AppendJsonString(span.error, out);
    out->push_back('}');
  } else {
    out->append("{}");
  }
  out->push_back('}');
}

}  // namespace

std::string OtlpTraceRequest(const std::vector<Attribute>& resource,
                             absl::Span<const Span> spans) {
  std::string out = "{\"resourceSpans\":[{\"resource\":{";
  AppendAttributes(resource, &out);
  absl::StrAppend(&out, "},\"scopeSpans\":[{\"scope\":{\"name\":\"", kScope,
                  "\"},\"spans\":[");
  for (const Span& span : spans) {
    AppendComma(&out);
    AppendSpan(span, &out);
  }
  out.append("]}]}]}");
  return out;
}

PartialSuccess ParseTraceResponse(absl::string_view body) {
  PartialSuccess result;
  const nlohmann::json parsed = nlohmann::json::parse(
      body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return result;
  const auto partial = parsed.find("partialSuccess");
  if (partial == parsed.end() || !partial->is_object()) return result;
  const auto rejected = partial->find("rejectedSpans");
  if (rejected != partial->end()) {
    if (rejected->is_number_integer()) {
      result.rejected_spans = rejected->get<int64_t>();
    } else if (rejected->is_string() &&
               !absl::SimpleAtoi(rejected->get<std::string>(),
                                 &result.rejected_spans)) {
      result.rejected_spans = 0;
    }
    result.rejected_spans = std::max<int64_t>(0, result.rejected_spans);
  }
  const auto message = partial->find("errorMessage");
  if (message != partial->end() && message->is_string()) {
    result.message = message->get<std::string>().substr(0, kMaxMessageBytes);
  }
  return result;
}

}  // namespace baton::router::tracing
