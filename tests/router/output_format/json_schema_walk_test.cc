// Random answers of what schemas become, against what the schemas say.
#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scheduling/grammar_automaton.h"
#include "tests/router/output_format/json_schema_grammar.h"
#include "tests/router/output_format/schema_validator.h"

namespace baton::router {
namespace {

using scheduling::GrammarAutomaton;

// What ends things: a walk that prefers these comes to its end.
constexpr absl::string_view kEnding = "\"}]0";
constexpr size_t kFreeBytes = 60;
constexpr size_t kMaxBytes = 4000;

class Walker final {
 public:
  explicit Walker(uint32_t seed) : random_(seed) {}

  // An answer; empty if it got too long.
  std::string Walk(GrammarAutomaton* automaton) {
    std::string text;
    GrammarAutomaton::State state = automaton->start();
    while (!automaton->MustEnd(state)) {
      const bool may_end = automaton->MayEnd(state);
      if (may_end && (text.size() > kFreeBytes || Chance(4))) break;
      if (text.size() > kMaxBytes) return "";
      const uint8_t byte = Pick(automaton, state, text);
      text.push_back(static_cast<char>(byte));
      state = automaton->Next(state, byte);
    }
    return text;
  }

 private:
  bool Chance(int of) {
    return std::uniform_int_distribution<int>(0, of - 1)(random_) == 0;
  }

  uint8_t Pick(GrammarAutomaton* automaton, GrammarAutomaton::State state,
               const std::string& text) {
    std::vector<uint8_t> all;
    std::vector<uint8_t> ending;
    for (int b = 0; b < 256; ++b) {
      const auto byte = static_cast<uint8_t>(b);
      if (automaton->Next(state, byte) == GrammarAutomaton::kNone) continue;
      all.push_back(byte);
      if (kEnding.find(static_cast<char>(byte)) != absl::string_view::npos) {
        ending.push_back(byte);
      }
    }
    EXPECT_FALSE(all.empty()) << "a dead end behind " << text;
    if (all.empty()) return 0;
    const bool hurry = text.size() > kFreeBytes || Chance(3);
    const std::vector<uint8_t>& from = hurry && !ending.empty() ? ending : all;
    return from[std::uniform_int_distribution<size_t>(
        0, from.size() - 1)(random_)];
  }

  std::mt19937 random_;
};

void WalkAll(const std::string& schema, int walks) {
  const auto grammar = SchemaGrammar(schema);
  ASSERT_TRUE(grammar.ok()) << grammar.status() << schema;
  auto automaton = GrammarAutomaton::Make(*grammar);
  ASSERT_TRUE(automaton.ok()) << automaton.status() << schema;
  const nlohmann::json parsed = nlohmann::json::parse(schema);
  std::set<std::string> different;
  for (int seed = 0; seed < walks; ++seed) {
    const std::string text =
        Walker(static_cast<uint32_t>(seed)).Walk(automaton->get());
    ASSERT_FALSE((*automaton)->exhausted()) << schema;
    if ((*automaton)->crowded()) (*automaton)->Forget();
    if (text.empty()) continue;
    different.insert(text);
    const nlohmann::json value =
        nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    ASSERT_FALSE(value.is_discarded()) << "seed " << seed << ": " << text;
    EXPECT_EQ(Violation(parsed, parsed, value), "")
        << "seed " << seed << ": " << text << "\n"
        << schema;
  }
  // The walks go somewhere.
  EXPECT_GT(different.size(), static_cast<size_t>(walks / 10)) << schema;
}

constexpr int kWalks = 500;

TEST(JsonSchemaWalkTest, AnyValue) { WalkAll("{}", kWalks); }

TEST(JsonSchemaWalkTest, Strings) {
  WalkAll(R"({"type":"string"})", kWalks);
  WalkAll(R"({"type":"string","minLength":3,"maxLength":6})", kWalks);
  WalkAll(R"({"type":"string","pattern":"^[a-f]+-[0-9]{2,4}$"})", kWalks);
  WalkAll(R"({"type":["string","null"],"pattern":"b|\\d\\d"})", kWalks);
}

TEST(JsonSchemaWalkTest, Numbers) {
  WalkAll(R"({"type":"integer","minimum":-37,"maximum":1234})", kWalks);
  WalkAll(R"({"type":"integer","exclusiveMinimum":98,"maximum":70000})",
          kWalks);
  WalkAll(R"({"type":"number"})", kWalks);
  WalkAll(R"({"type":"number","minimum":0})", kWalks);
  WalkAll(R"({"type":"number","minimum":-3,"maximum":12})", kWalks);
  WalkAll(R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1})",
          kWalks);
  WalkAll(R"({"type":"number","exclusiveMinimum":-1200,"maximum":-99})",
          kWalks);
  WalkAll(R"({"type":"number","exclusiveMaximum":100})", kWalks);
}

TEST(JsonSchemaWalkTest, Objects) {
  WalkAll(R"({"type":"object","properties":{"a":{"type":"integer"},
      "b":{"enum":["x","y",null]},"c":{"type":"boolean"}},
      "required":["b"],"additionalProperties":false})",
          kWalks);
  WalkAll(R"({"type":"object","properties":{"a":{"type":"integer"},
      "ab":{"type":"null"},"b":{"const":"x"}},
      "additionalProperties":{"type":"boolean"}})",
          kWalks);
  WalkAll(R"({"type":"object","properties":{"\u00e9":{"type":"null"},
      "":{"type":"null"}},"required":["z"]})",
          kWalks);
  WalkAll(R"({"minProperties":1,"maxProperties":2,"required":["a"],
      "properties":{"a":{"maximum":5},"b":{"minLength":2}},
      "additionalProperties":false})",
          kWalks);
}

TEST(JsonSchemaWalkTest, Arrays) {
  WalkAll(R"({"type":"array","items":{"type":"integer"},"minItems":1,
      "maxItems":4})",
          kWalks);
  WalkAll(R"({"type":"array","prefixItems":[{"type":"integer"},
      {"type":"string","maxLength":3},{"enum":[1,[2],{"a":3}]}],
      "items":{"type":"boolean"},"minItems":1,"maxItems":6})",
          kWalks);
  WalkAll(R"({"type":["array","boolean"],"minItems":2})", kWalks);
}

TEST(JsonSchemaWalkTest, Combinations) {
  WalkAll(R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object",
      "properties":{"name":{"type":"string"},"children":{"type":"array",
      "items":{"$ref":"#/$defs/node"}}},"required":["name","children"],
      "additionalProperties":false}}})",
          kWalks);
  WalkAll(R"({"type":"object","properties":{"steps":{"type":"array",
      "items":{"anyOf":[{"type":"object","properties":{"kind":{"const":"go"},
      "metres":{"type":"number","minimum":0}},"required":["kind","metres"],
      "additionalProperties":false},{"type":"object","properties":{
      "kind":{"const":"stop"}},"required":["kind"],
      "additionalProperties":false}]},"minItems":1},
      "answer":{"allOf":[{"type":["string","null"],"maxLength":9}]}},
      "required":["steps","answer"],"additionalProperties":false})",
          kWalks);
}

}  // namespace
}  // namespace baton::router
