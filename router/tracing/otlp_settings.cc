#include "router/tracing/otlp_settings.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace baton::router::tracing {
namespace {

constexpr char kTracesPath[] = "/v1/traces";
constexpr char kDefaultService[] = "baton-router";

using Pairs = std::vector<std::pair<std::string, std::string>>;

std::string Read(const char* name, Environment environment) {
  const char* const value = environment(name);
  return value == nullptr ? "" : value;
}

// "a%20b" is "a b"; nothing when a '%' is not followed by two hexadecimal
// digits.
std::optional<std::string> DecodePercent(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    int byte = 0;
    if (i + 2 >= text.size() ||
        !absl::SimpleHexAtoi(text.substr(i + 1, 2), &byte)) {
      return std::nullopt;
    }
    out.push_back(static_cast<char>(byte));
    i += 2;
  }
  return out;
}

// "key1=value1,key2=value2", values percent-encoded.
absl::StatusOr<Pairs> ParsePairs(const char* name, const std::string& text) {
  Pairs pairs;
  int number = 0;
  for (absl::string_view entry : absl::StrSplit(text, ',')) {
    ++number;
    entry = absl::StripAsciiWhitespace(entry);
    if (entry.empty()) continue;
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(entry, absl::MaxSplits('=', 1));
    const std::string key(absl::StripAsciiWhitespace(parts.first));
    const std::optional<std::string> value =
        DecodePercent(absl::StripAsciiWhitespace(parts.second));
    if (key.empty() || !absl::StrContains(entry, '=') || !value.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": entry ", number, " is not KEY=VALUE"));
    }
    pairs.emplace_back(key, *value);
  }
  return pairs;
}

bool HasControls(absl::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_iscntrl(c); });
}

absl::StatusOr<std::string> TracesUrl(absl::string_view endpoint,
                                      Environment environment) {
  constexpr char kBase[] = "OTEL_EXPORTER_OTLP_ENDPOINT";
  constexpr char kWhole[] = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
  std::string base(endpoint);
  std::string source = "--otlp-endpoint";
  if (base.empty()) {
    // As it is, without the path behind it.
    const std::string whole = Read(kWhole, environment);
    if (!whole.empty()) {
      const std::string wrong = CheckOtlpEndpoint(whole);
      if (wrong.empty()) return whole;
      return absl::InvalidArgumentError(absl::StrCat(kWhole, ": ", wrong));
    }
    base = Read(kBase, environment);
    source = kBase;
  }
  if (base.empty()) return "";
  const std::string wrong = CheckOtlpEndpoint(base);
  if (!wrong.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", wrong));
  }
  return absl::StrCat(absl::StripSuffix(base, "/"), kTracesPath);
}

// Later ones of a key go before earlier ones.
void SetAttribute(const std::string& key, const std::string& value,
                  std::vector<Attribute>* resource) {
  for (Attribute& attribute : *resource) {
    if (attribute.key != key) continue;
    attribute.value = value;
    return;
  }
  resource->push_back({key, value});
}

}  // namespace

std::string CheckOtlpEndpoint(const std::string& endpoint) {
  absl::string_view rest = endpoint;
  const bool is_url = absl::ConsumePrefix(&rest, "http://") ||
                      absl::ConsumePrefix(&rest, "https://");
  if (!is_url || rest.empty() || rest.front() == '/' ||
      absl::StrContains(rest, ' ') || HasControls(rest)) {
    return "it must be http://HOST:PORT or https://HOST:PORT";
  }
  // It would be in logs.
  if (absl::StrContains(rest.substr(0, rest.find('/')), '@')) {
    return "it must not hold a user or a password: OTEL_EXPORTER_OTLP_HEADERS "
           "is for that";
  }
  return "";
}

absl::StatusOr<OtlpSettings> MakeOtlpSettings(absl::string_view endpoint,
                                              absl::string_view name,
                                              absl::string_view version,
                                              Environment environment) {
  OtlpSettings settings;
  if (endpoint.empty() &&
      absl::EqualsIgnoreCase(Read("OTEL_SDK_DISABLED", environment), "true")) {
    return settings;
  }
  BATON_ASSIGN_OR_RETURN(settings.url, TracesUrl(endpoint, environment));
  if (settings.url.empty()) return settings;
  constexpr char kHeaders[] = "OTEL_EXPORTER_OTLP_HEADERS";
  BATON_ASSIGN_OR_RETURN(settings.headers,
                         ParsePairs(kHeaders, Read(kHeaders, environment)));
  for (const auto& [key, value] : settings.headers) {
    if (HasControls(key) || HasControls(value) || absl::StrContains(key, ':')) {
      return absl::InvalidArgumentError(
          absl::StrCat(kHeaders, ": a header has a forbidden character"));
    }
  }
  settings.ca_file = Read("OTEL_EXPORTER_OTLP_CERTIFICATE", environment);
  SetAttribute("service.name", kDefaultService, &settings.resource);
  SetAttribute("service.instance.id", std::string(name), &settings.resource);
  SetAttribute("service.version", std::string(version), &settings.resource);
  constexpr char kResource[] = "OTEL_RESOURCE_ATTRIBUTES";
  BATON_ASSIGN_OR_RETURN(const Pairs attributes,
                         ParsePairs(kResource, Read(kResource, environment)));
  for (const auto& [key, value] : attributes) {
    SetAttribute(key, value, &settings.resource);
  }
  const std::string service = Read("OTEL_SERVICE_NAME", environment);
  if (!service.empty()) {
    SetAttribute("service.name", service, &settings.resource);
  }
  return settings;
}

}  // namespace baton::router::tracing
