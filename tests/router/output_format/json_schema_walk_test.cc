// Random answers of what schemas become, against what the schemas say.
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scheduling/grammar_automaton.h"
#include "tests/router/output_format/grammar_walker.h"
#include "tests/router/output_format/json_schema_grammar.h"
#include "tests/router/output_format/schema_validator.h"

namespace baton::router {
namespace {

using scheduling::GrammarAutomaton;

const std::vector<std::string> kJsonEndings = {"\"", "}", "]", "0"};

void WalkAll(const std::string& schema, int walks) {
  const auto grammar = SchemaGrammar(schema);
  ASSERT_TRUE(grammar.ok()) << grammar.status() << schema;
  auto automaton = GrammarAutomaton::Make(*grammar);
  ASSERT_TRUE(automaton.ok()) << automaton.status() << schema;
  const nlohmann::json parsed = nlohmann::json::parse(schema);
  std::set<std::string> different;
  for (int seed = 0; seed < walks; ++seed) {
    const std::string text =
        GrammarWalker(static_cast<uint32_t>(seed), kJsonEndings)
            .Walk(automaton->get());
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
