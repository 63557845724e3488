// Random outputs in Harmony, and such as only look like it: the same however
// they are cut, and nothing lost.
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "common/json.h"
#include "router/harmony/harmony_stream.h"

namespace baton::router::harmony_cutting_test {
namespace {

using Kind = AnswerEvent::Kind;

class RandomOutputs final {
 public:
  explicit RandomOutputs(uint32_t seed) : random_(seed) {}

  size_t Pick(size_t n) { return random_() % n; }

  std::string Text() {
    static const std::vector<std::string>& parts =
        *new std::vector<std::string>{
            "<|start|>",
            "<|end|>",
            "<|message|>",
            "<|channel|>",
            "<|constrain|>",
            "<|return|>",
            "<|call|>",
            "<|start|>assistant<|channel|>analysis<|message|>",
            "<|start|>assistant<|channel|>final<|message|>",
            "<|start|>assistant<|channel|>commentary to=functions.f"
            "<|message|>",
            "<|start|>assistant to=functions.g<|channel|>commentary "
            "<|constrain|>json<|message|>",
            "<|start|>assistant to=python<|message|>",
            "assistant",
            "analysis",
            "final",
            " to=functions.unknown",
            "<|",
            "<",
            "|>",
            " ",
            "\n",
            "text",
            "gr\u00f6\u00dfe \U0001F642",
            "{}",
            "{\"a\": \"<|end|>\"}",
            "{\"a\": [1, ",
        };
    std::string text;
    for (size_t n = Pick(14); n > 0; --n) text += parts[Pick(parts.size())];
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

std::vector<AnswerEvent> Joined(const std::vector<std::string>& pieces,
                                const std::string& opening,
                                const std::vector<std::string>& names) {
  HarmonyStream stream(opening, names);
  std::vector<AnswerEvent> all;
  const auto take = [&](const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) {
      if (!all.empty() && all.back().kind == event.kind &&
          event.kind != Kind::kCallBegun) {
        all.back().text += event.text;
      } else {
        all.push_back(event);
      }
    }
  };
  for (const std::string& piece : pieces) take(stream.Push(piece));
  take(stream.Finish());
  return all;
}

TEST(HarmonyCuttingTest, RandomOutputs) {
  RandomOutputs random(5);
  size_t calls = 0;
  size_t whole = 0;
  size_t thoughts = 0;
  for (int i = 0; i < 40000 && !::testing::Test::HasFailure(); ++i) {
    const std::string text = random.Text();
    const std::string opening =
        random.Pick(3) == 0 ? std::string() : "assistant";
    const std::vector<std::string> names = {"f", "g"};
    SCOPED_TRACE(absl::CEscape(text));
    const auto events = Joined({text}, opening, names);
    EXPECT_EQ(Joined(random.Cut(text), opening, names), events);
    size_t at = 0;
    for (const AnswerEvent& event : events) {
      if (event.kind == Kind::kCallBegun) {
        EXPECT_TRUE(event.text == "f" || event.text == "g") << event.text;
        ++calls;
        continue;
      }
      thoughts += event.kind == Kind::kReasoning;
      if (event.kind == Kind::kArguments) {
        whole += nlohmann::json::accept(event.text);
        continue;
      }
      // In order; but for the line breaks that are put in.
      for (const char c : event.text) {
        const size_t found = text.find(c, at);
        if (c == '\n' && found == std::string::npos) continue;
        if (c == '\n' && found != at) continue;
        ASSERT_NE(found, std::string::npos) << event.text;
        at = found + 1;
      }
    }
  }
  EXPECT_GT(calls, 2000);
  EXPECT_GT(whole, 500);
  EXPECT_GT(thoughts, 2000);
}

// What is no header by any of its bytes comes out as it is.
TEST(HarmonyCuttingTest, WithoutHeadersNothingChanges) {
  RandomOutputs random(6);
  for (int i = 0; i < 20000 && !::testing::Test::HasFailure(); ++i) {
    const std::string text = "x" + random.Text();
    if (text.find("<|start|>") != std::string::npos ||
        text.find("<|channel|>") != std::string::npos) {
      continue;
    }
    std::string said;
    for (const AnswerEvent& event :
         Joined(random.Cut(text), "assistant", {"f"})) {
      EXPECT_EQ(event.kind, Kind::kContent);
      said += event.text;
    }
    // An end at the end of all is one.
    EXPECT_EQ(text.substr(0, said.size()), said);
    const std::string rest = text.substr(said.size());
    EXPECT_TRUE(rest.empty() || rest.starts_with("<|end|>") ||
                rest.starts_with("<|return|>") || rest.starts_with("<|call|>"))
        << absl::CEscape(text);
  }
}

}  // namespace
}  // namespace baton::router::harmony_cutting_test
