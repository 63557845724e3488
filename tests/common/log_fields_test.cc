// What a line of a log looks like, whatever bytes go into it.
#include "common/log_fields.h"

#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "common/json_text.h"
#include "common/log_escape.h"
#include "common/log_line.h"

namespace baton {
namespace {

using testing::ElementsAre;

std::string LogValue(absl::string_view text) {
  std::string out;
  AppendLogValue(text, &out);
  return out;
}

std::string Printable(absl::string_view text) {
  std::string out;
  AppendPrintable(text, &out);
  return out;
}

std::string JsonString(absl::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

TEST(LogEscapeTest, PlainWordsStayAsTheyAre) {
  for (const char* word : {"stop", "r-1", "127.0.0.1:80", "a/b'c{}[]", "0"}) {
    EXPECT_EQ(LogValue(word), word);
  }
}

TEST(LogEscapeTest, WhatCouldPassForAnotherFieldIsQuoted) {
  EXPECT_EQ(LogValue(""), "\"\"");
  EXPECT_EQ(LogValue("a b"), "\"a b\"");
  EXPECT_EQ(LogValue("x outcome=stop"), "\"x outcome=stop\"");
  EXPECT_EQ(LogValue("a=b"), "\"a=b\"");
  EXPECT_EQ(LogValue("say \"hi\""), "\"say \\\"hi\\\"\"");
  EXPECT_EQ(LogValue("C:\\new"), "\"C:\\\\new\"");
  EXPECT_EQ(LogValue("Grüße €😀"), "\"Grüße €😀\"");
}

TEST(LogEscapeTest, NothingEndsTheLineOrReachesTheTerminal) {
  EXPECT_EQ(LogValue("a\nI2026 forged"), "\"a\\nI2026 forged\"");
  EXPECT_EQ(Printable("a\r\n\tb"), "a\\r\\n\\tb");
  EXPECT_EQ(Printable("\x1b[31mred"), "\\u001b[31mred");
  EXPECT_EQ(Printable(std::string("\0\x7f", 2)), "\\u0000\\u007f");
  EXPECT_EQ(Printable("\xc2\x9b"), "\\u009b");      // CSI of C1
  EXPECT_EQ(Printable("\xe2\x80\xa8"), "\\u2028");  // line separator
  EXPECT_EQ(Printable("a\xe2\x80\xae"
                      "b"),
            "a\\u202eb");  // right to left
  // Not UTF-8: a stray byte, a cut character, an overlong one, a surrogate,
  // beyond the last one.
  EXPECT_EQ(Printable("\xff"), "\\xff");
  EXPECT_EQ(Printable("\xe2\x82"), "\\xe2\\x82");
  EXPECT_EQ(Printable("\xc0\xaf"), "\\xc0\\xaf");
  EXPECT_EQ(Printable("\xe0\x80\xaf"), "\\xe0\\x80\\xaf");
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(Printable("\xf4\x8f\xbf\xbf"), "\xf4\x8f\xbf\xbf");
}

TEST(LogEscapeTest, EveryByteGivesOneLine) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text = {static_cast<char>(first),
                                static_cast<char>(second)};
      for (const std::string& line :
           {LogValue(text), Printable(text), JsonString(text)}) {
        for (char c : line) {
          ASSERT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f)
              << first << " " << second;
        }
      }
    }
  }
}

TEST(LogFieldsTest, TextAndJsonSayTheSame) {
  LogFields fields;
  fields.Text("request", "r 1")
      .Text("nothing", "")
      .Number("tokens", -3)
      .Bool("met", true)
      .Millis("ttft_ms", 0.0123456);
  std::string text;
  fields.AppendText(&text);
  EXPECT_EQ(text, "request=\"r 1\" tokens=-3 met=true ttft_ms=12.346");
  std::string json;
  fields.AppendJson(&json);
  EXPECT_EQ(json,
            ",\"request\":\"r 1\",\"tokens\":-3,\"met\":true,"
            "\"ttft_ms\":12.346");
}

TEST(LogFieldsTest, NumbersAreNumbersInJson) {
  LogFields fields;
  fields.Millis("a_ms", std::numeric_limits<double>::quiet_NaN())
      .Millis("b_ms", std::numeric_limits<double>::infinity());
  std::string json;
  fields.AppendJson(&json);
  EXPECT_EQ(json, ",\"a_ms\":0.000,\"b_ms\":0.000");
}

TEST(LogFieldsTest, LongValuesAreCut) {
  std::string text;
  LogFields().Text("e", std::string(100'000, 'x')).AppendText(&text);
  EXPECT_EQ(text.size(), std::string("e=...").size() + LogFields::kMaxBytes);
  EXPECT_TRUE(absl::EndsWith(text, "x..."));
}

TEST(LogLineTest, IsOneJsonObject) {
  const LogOptions process = {.program = "baton-decode", .name = "decode-0"};
  LogFields fields;
  fields.Text("request", "r\n1");
  EXPECT_EQ(FormatJsonLine(process,
                           {.severity = google::GLOG_WARNING,
                            .time = absl::FromUnixMicros(1'767'323'045'678'901),
                            .thread = 17,
                            .file = "x.cc",
                            .line = 3,
                            .message = "it \"broke\"",
                            .fields = &fields}),
            "{\"time\":\"2026-01-02T03:04:05.678901Z\",\"level\":\"warning\","
            "\"process\":\"baton-decode\",\"name\":\"decode-0\",\"thread\":17,"
            "\"source\":\"x.cc:3\",\"message\":\"it \\\"broke\\\"\","
            "\"request\":\"r\\n1\"}");
}

// Collects what is logged while it lives.
class Lines final : public google::LogSink {
 public:
  Lines() { google::AddLogSink(this); }
  ~Lines() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity severity, const char*, const char* file, int,
            const google::LogMessageTime&, const char* message,
            size_t length) override {
    lines.emplace_back(message, length);
    files.emplace_back(file);
    severities.push_back(severity);
    has_fields.push_back(LogEventScope::Current().fields != nullptr);
  }
  std::vector<std::string> lines;
  std::vector<std::string> files;
  std::vector<google::LogSeverity> severities;
  std::vector<bool> has_fields;
};

TEST(LogEventTest, GoesThroughGlogWithItsFields) {
  Lines log;
  LogEvent(google::GLOG_WARNING, "hand-off failed",
           LogFields().Text("request", "r").Number("bytes", 5));
  LOG(INFO) << "plain";
  EXPECT_THAT(log.lines,
              ElementsAre("hand-off failed request=r bytes=5", "plain"));
  EXPECT_THAT(log.files,
              ElementsAre("log_fields_test.cc", "log_fields_test.cc"));
  EXPECT_THAT(log.severities,
              ElementsAre(google::GLOG_WARNING, google::GLOG_INFO));
  EXPECT_THAT(log.has_fields, ElementsAre(true, false));
}

}  // namespace
}  // namespace baton
