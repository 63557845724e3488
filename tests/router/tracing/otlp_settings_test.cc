#include "router/tracing/otlp_settings.h"

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::router::tracing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

using Variables = std::map<std::string, std::string>;

absl::StatusOr<OtlpSettings> Make(const std::string& endpoint,
                                  const Variables& variables) {
  return MakeOtlpSettings(
      endpoint, "router-1", "0.1.0", [&](const char* name) -> const char* {
        const auto it = variables.find(name);
        return it == variables.end() ? nullptr : it->second.c_str();
      });
}

std::string UrlOf(const std::string& endpoint, const Variables& variables) {
  const auto settings = Make(endpoint, variables);
  EXPECT_TRUE(settings.ok()) << settings.status();
  return settings.ok() ? settings->url : "";
}

std::map<std::string, std::string> ResourceOf(const Variables& variables) {
  const auto settings = Make("http://c:4318", variables);
  EXPECT_TRUE(settings.ok()) << settings.status();
  std::map<std::string, std::string> resource;
  if (!settings.ok()) return resource;
  for (const Attribute& attribute : settings->resource) {
    resource[attribute.key] = std::get<std::string>(attribute.value);
  }
  return resource;
}

TEST(OtlpSettingsTest, NothingIsExportedUnlessAsked) {
  EXPECT_EQ(UrlOf("", {}), "");
  EXPECT_EQ(UrlOf("", {{"OTEL_EXPORTER_OTLP_ENDPOINT", ""}}), "");
}

TEST(OtlpSettingsTest, TheFlagGoesBeforeTheEnvironment) {
  const Variables variables = {
      {"OTEL_EXPORTER_OTLP_ENDPOINT", "http://base:4318"},
      {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://whole:4318/otlp"}};
  EXPECT_EQ(UrlOf("http://flag:4318", variables), "http://flag:4318/v1/traces");
  EXPECT_EQ(UrlOf("https://flag/", variables), "https://flag/v1/traces");
  // As it is; only the base gets the path.
  EXPECT_EQ(UrlOf("", variables), "http://whole:4318/otlp");
  EXPECT_EQ(UrlOf("", {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://base:4318/x"}}),
            "http://base:4318/x/v1/traces");
}

TEST(OtlpSettingsTest, TheEnvironmentCanSwitchItOff) {
  EXPECT_EQ(UrlOf("", {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://base:4318"},
                       {"OTEL_SDK_DISABLED", "TRUE"}}),
            "");
  EXPECT_EQ(UrlOf("http://flag:4318", {{"OTEL_SDK_DISABLED", "true"}}),
            "http://flag:4318/v1/traces");
}

TEST(OtlpSettingsTest, BadEndpointsAreNamed) {
  for (const char* bad :
       {"collector:4318", "grpc://c:4317", "http://", "http:///v1",
        "http://a b", "http://a\nb", "http://user:pw@c:4318"}) {
    EXPECT_THAT(CheckOtlpEndpoint(bad), Not(IsEmpty())) << bad;
    const auto flag = Make(bad, {});
    EXPECT_EQ(flag.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(flag.status().message(), HasSubstr("--otlp-endpoint"));
    EXPECT_THAT(flag.status().message(), Not(HasSubstr("pw")));
    EXPECT_THAT(
        Make("", {{"OTEL_EXPORTER_OTLP_ENDPOINT", bad}}).status().message(),
        HasSubstr("OTEL_EXPORTER_OTLP_ENDPOINT"));
  }
  EXPECT_THAT(Make("", {{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "c:4318"}})
                  .status()
                  .message(),
              HasSubstr("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"));
  for (const char* good : {"http://c:4318", "https://[::1]:4318/a/"}) {
    EXPECT_EQ(CheckOtlpEndpoint(good), "") << good;
  }
}

TEST(OtlpSettingsTest, WhoReports) {
  EXPECT_THAT(ResourceOf({}),
              ElementsAre(Pair("service.instance.id", "router-1"),
                          Pair("service.name", "baton-router"),
                          Pair("service.version", "0.1.0")));
  EXPECT_THAT(ResourceOf({{"OTEL_SERVICE_NAME", "chat"},
                          {"OTEL_RESOURCE_ATTRIBUTES",
                           "service.name=other, k8s.pod.name=r%20%3D0,,"
                           "service.instance.id=7"}}),
              ElementsAre(Pair("k8s.pod.name", "r =0"),
                          Pair("service.instance.id", "7"),
                          Pair("service.name", "chat"),
                          Pair("service.version", "0.1.0")));
}

TEST(OtlpSettingsTest, HeadersOfEachPost) {
  const auto settings =
      Make("https://c", {{"OTEL_EXPORTER_OTLP_HEADERS",
                          "authorization=Bearer%20abc,x-scope-orgid=a=b"},
                         {"OTEL_EXPORTER_OTLP_CERTIFICATE", "/etc/ca.pem"}});
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_THAT(settings->headers,
              ElementsAre(Pair("authorization", "Bearer abc"),
                          Pair("x-scope-orgid", "a=b")));
  EXPECT_EQ(settings->ca_file, "/etc/ca.pem");
}

TEST(OtlpSettingsTest, WhatIsWrongWithHeadersIsSaidWithoutThem) {
  for (const char* bad : {"secret", "=secret", "a=secret%", "a=secret%zz",
                          "a=secret%0d%0ab: c", "a:b=secret"}) {
    const auto settings =
        Make("https://c", {{"OTEL_EXPORTER_OTLP_HEADERS", bad}});
    EXPECT_EQ(settings.status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
    EXPECT_THAT(settings.status().message(),
                HasSubstr("OTEL_EXPORTER_OTLP_HEADERS"));
    EXPECT_THAT(settings.status().message(), Not(HasSubstr("secret"))) << bad;
  }
}

}  // namespace
}  // namespace baton::router::tracing
