// Bounds, and random answers: the same however they are cut, and nothing lost.
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "router/tool_calls/tool_call_stream.h"
#include "tests/router/tool_calls/pushed_answer.h"

namespace baton::router {
namespace {

using Kind = ToolCallEvent::Kind;

// Those whose calls are JSON.
constexpr ToolCallFormat kFormats[] = {ToolCallFormat::kHermes,
                                       ToolCallFormat::kLlamaJson,
                                       ToolCallFormat::kMistral};

// In the way of the format, an answer that is this call.
std::string OneCall(ToolCallFormat format, const std::string& json) {
  switch (format) {
    case ToolCallFormat::kHermes:
      return absl::StrCat("<tool_call>", json, "</tool_call>");
    case ToolCallFormat::kLlamaJson:
      return json;
    case ToolCallFormat::kMistral:
      return absl::StrCat("[TOOL_CALLS][", json, "]");
    case ToolCallFormat::kGlm:
    case ToolCallFormat::kQwenCoder:
    case ToolCallFormat::kDeepseek:
    case ToolCallFormat::kDeepseekV31:
    case ToolCallFormat::kKimi:
    case ToolCallFormat::kHarmony:
      break;
  }
  return "";
}

TEST(ToolCallCuttingTest, CallsAreBounded) {
  const std::string call = R"({"name": "f", "arguments": {}})";
  for (const ToolCallFormat format : kFormats) {
    std::string text;
    const size_t most = ToolCallStream::kMaxCalls;
    for (size_t i = 0; i < most + 2; ++i) {
      if (format == ToolCallFormat::kHermes) {
        text += OneCall(format, call);
      } else {
        const bool array = format == ToolCallFormat::kMistral;
        absl::StrAppend(&text, i == 0 ? "" : array ? "," : ";", call);
      }
    }
    if (format == ToolCallFormat::kMistral) text = absl::StrCat("[", text, "]");
    const auto events = PushPieces(format, {}, {text});
    ASSERT_EQ(events.size(), 3 * most + 1);
    EXPECT_EQ(events.back().kind, Kind::kContent);
    EXPECT_TRUE(absl::EndsWith(text, events.back().text));
    EXPECT_GE(events.back().text.size(), 2 * call.size());
  }
}

TEST(ToolCallCuttingTest, NamesAreBounded) {
  for (const ToolCallFormat format : kFormats) {
    const std::string most(ToolCallRules::kMaxNameBytes, 'n');
    const auto with_name = [&](const std::string& name) {
      return OneCall(format, absl::StrCat("{\"name\": \"", name,
                                          "\", \"arguments\": {}}"));
    };
    EXPECT_EQ(PushPieces(format, {}, {with_name(most)}),
              CallEvents(0, most, "{}"));
    const std::string text = with_name(most + "n");
    EXPECT_EQ(PushPieces(format, {}, {text}),
              std::vector<ToolCallEvent>{ContentEvent(text)});
  }
}

TEST(ToolCallCuttingTest, WhatIsHeldBackIsBounded) {
  for (const ToolCallFormat format : kFormats) {
    // Bytes of more than one, in which the bound falls.
    const auto with_bytes = [&](size_t bytes) {
      std::string value;
      while (value.size() < bytes) value += "€";
      return OneCall(format, absl::StrCat("{\"arguments\": {\"a\": \"", value,
                                          "\"}, \"name\": \"f\"}"));
    };
    const size_t most = ToolCallStream::kMaxHeldBytes;
    const auto fits = PushPieces(format, {}, {with_bytes(most - 100)});
    ASSERT_EQ(fits.size(), 3);
    EXPECT_EQ(fits[0].text, "f");
    for (size_t more = 0; more < 4; ++more) {
      const std::string text = std::string(more, ' ') + with_bytes(most);
      EXPECT_EQ(PushPieces(format, {}, {text}),
                std::vector<ToolCallEvent>{ContentEvent(text)});
    }
    // It is content as soon as it is too long, not when it is over.
    ToolCallStream stream(format, {});
    EXPECT_FALSE(stream.Push(with_bytes(most)).empty());
    // White space, too.
    ToolCallStream blank(format, {});
    EXPECT_TRUE(blank.Push(std::string(most, ' ')).empty());
    EXPECT_EQ(blank.Push(" "), std::vector<ToolCallEvent>{
                                   ContentEvent(std::string(most + 1, ' '))});
    // Arguments are passed on, however long.
    const std::string arguments =
        absl::StrCat("{\"a\": \"", std::string(2 * most, 'x'), "\"}");
    EXPECT_EQ(
        PushPieces(
            format, {},
            {OneCall(format, absl::StrCat("{\"name\": \"f\", ",
                                          "\"arguments\": ", arguments, "}"))}),
        CallEvents(0, "f", arguments));
  }
}

class RandomAnswers final {
 public:
  explicit RandomAnswers(uint32_t seed) : random_(seed) {}

  size_t Pick(size_t n) { return random_() % n; }

  std::string Text() {
    static const std::vector<std::string>& parts =
        *new std::vector<std::string>{
            "<tool_call>",
            "</tool_call>",
            "<tool_",
            "<",
            "[TOOL_CALLS]",
            "[TOOL",
            "[",
            "]",
            "{",
            "}",
            "\"",
            "\\",
            ",",
            ";",
            ":",
            " ",
            "\n",
            "text",
            "größe 🙂",
            "1.5",
            "null",
            "\"name\"",
            "\"arguments\"",
            "\"parameters\": ",
            R"({"name": "f", )",
            R"("arguments": {"a": 1})",
            R"({"name": "f", "arguments": {"b": "<tool_call>"}})",
            R"({"arguments": {}, "name": "g"})",
            R"({"name": "h", "parameters": {"c": [{}]}})",
            R"({"name": "unknown", "arguments": {}})",
            "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"d\": null}}\n",
        };
    std::string text;
    for (size_t n = Pick(12); n > 0; --n) text += parts[Pick(parts.size())];
    return text;
  }

  // Now and then within a character.
  std::vector<std::string> Cut(const std::string& text) {
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      pieces.push_back(text.substr(at, Pick(10)));
      at += pieces.back().size();
    }
    return pieces;
  }

 private:
  std::mt19937 random_;
};

TEST(ToolCallCuttingTest, RandomAnswersLoseNothing) {
  RandomAnswers random(7);
  size_t calls = 0;
  size_t whole = 0;
  for (int i = 0; i < 40000; ++i) {
    const std::string text = random.Text();
    const ToolCallFormat format = kFormats[random.Pick(3)];
    std::vector<std::string> names;
    if (random.Pick(2) == 0) names = {"f", "g", "h"};
    SCOPED_TRACE(absl::CEscape(text));
    const auto events = PushPieces(format, names, {text});
    EXPECT_EQ(PushPieces(format, names, random.Cut(text)), events);

    std::string content;
    size_t found = 0;
    size_t at = 0;  // where in the text the events have got
    for (const ToolCallEvent& event : events) {
      if (event.kind == Kind::kContent) content += event.text;
      if (event.kind == Kind::kBegun) {
        ++found;
        EXPECT_NE(event.text, names.empty() ? "" : "unknown");
      }
      if (event.kind == Kind::kArguments) {
        whole += nlohmann::json::accept(event.text);
      }
      // In order and unchanged, but for what gets an escape.
      if (event.kind == Kind::kContent || event.kind == Kind::kArguments) {
        if (event.text.find("\\u00") != std::string::npos) continue;
        at = text.find(event.text, at);
        ASSERT_NE(at, std::string::npos) << event.text;
        if (event.kind == Kind::kContent) at += event.text.size();
      }
    }
    if (found == 0) {
      EXPECT_EQ(content, text);
    }
    calls += found;
    if (HasFailure()) break;
  }
  EXPECT_GT(calls, 2000);
  EXPECT_GT(whole, 1000);
}

}  // namespace
}  // namespace baton::router
