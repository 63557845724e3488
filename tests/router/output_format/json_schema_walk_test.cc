// Random answers of what schemas become, against what the schemas say.
#include <algorithm>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduling/grammar_automaton.h"
#include "tests/router/output_format/grammar_walker.h"
#include "tests/router/output_format/json_schema_grammar.h"
#include "tests/router/output_format/schema_validator.h"

namespace baton::router::json_schema_walk_test {
namespace {

using scheduling::GrammarAutomaton;

const std::vector<std::string> kJsonEndings = {"\"", "}", "]", "0"};

// Of the walks, more than so many come to different ends.
void WalkAll(const std::string& schema, int walks, size_t different_ends) {
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
  EXPECT_GT(different.size(), different_ends) << schema;
}
void WalkAll(const std::string& schema, int walks) {
  WalkAll(schema, walks, static_cast<size_t>(walks / 10));
}

constexpr int kWalks = 500;

TEST(JsonSchemaWalkTest, AnyValue) { WalkAll("{}", kWalks); }

TEST(JsonSchemaWalkTest, Strings) {
  WalkAll(R"({"type":"string"})", kWalks);
  WalkAll(R"({"type":"string","minLength":3,"maxLength":6})", kWalks);
  WalkAll(R"({"type":"string","pattern":"^[a-f]+-[0-9]{2,4}$"})", kWalks);
  WalkAll(R"({"type":["string","null"],"pattern":"b|\\d\\d"})", kWalks);
  WalkAll(R"({"type":"object","patternProperties":{"^x-[a-c]*$":
      {"type":"integer"}},"minProperties":1,"maxProperties":3})",
          kWalks);
  WalkAll(R"({"type":"object","propertyNames":{"minLength":2,"maxLength":3},
      "additionalProperties":{"type":"boolean"}})",
          kWalks);
  WalkAll(R"({"type":"object","propertyNames":{"enum":["a","b\"","c",1]},
      "additionalProperties":{"type":"boolean"},"maxProperties":3})",
          kWalks);
  WalkAll(R"({"type":"string","pattern":"^[a-f]+(-[0-9]{2,4})*$",
      "minLength":4,"maxLength":9})",
          kWalks);
  for (const char* format : {"uri", "email", "hostname"}) {
    for (const int most : {22, 24, 47, 64, 199, 200, 333, 2083}) {
      WalkAll(absl::StrCat(R"({"type":"string","minLength":1,"format":")",
                           format, R"(","maxLength":)", most, "}"),
              20);
    }
  }
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

TEST(JsonSchemaWalkTest, SchemasThatHoldTogether) {
  WalkAll(R"({"allOf":[{"$ref":"#/$defs/animal"},{"properties":{
      "legs":{"minimum":0,"maximum":8},"name":{"maxLength":5}},
      "required":["legs"]}],"oneOf":[{"properties":{"kind":{"const":"dog"},
      "barks":{"type":"boolean"}},"required":["kind","barks"]},
      {"properties":{"kind":{"const":"cat"}},"required":["kind"]}],
      "additionalProperties":{"type":["integer","string","boolean"]},
      "$defs":{"animal":{"type":"object","properties":{
      "kind":{"type":"string"},"name":{"type":"string","minLength":2},
      "legs":{"type":"integer"}},"required":["name"]}}})",
          kWalks);
  WalkAll(R"({"type":"array","minItems":1,"maxItems":4,
      "allOf":[{"prefixItems":[{"type":"integer"},{"maxLength":3}]},
      {"items":{"type":["integer","string"]}}],
      "anyOf":[{"items":{"minimum":-9}},{"maxItems":2}]})",
          kWalks);
}

// Schemas of a few keywords, put together at random.
class RandomSchema final {
 public:
  explicit RandomSchema(uint32_t seed) : bits_(seed) {}

  std::string Text() {
    return absl::StrCat(R"({"allOf":[)", Schema(3), ",", Schema(3),
                        R"(],"$defs":{"b":)", Schema(0), "}}");
  }

 private:
  int Below(int n) { return std::uniform_int_distribution(0, n - 1)(bits_); }
  bool Maybe() { return Below(2) == 0; }

  std::string Schema(int depth) {
    std::vector<std::string> keywords;
    if (Maybe()) keywords.push_back(Type());
    const int kind = Below(depth > 0 ? 7 : 3);
    if (kind == 0) keywords.push_back(R"("enum":[1,"ab","abc",null,4,true])");
    if (kind == 1) {
      keywords.push_back(absl::StrCat(R"("minimum":)", Below(4)));
      keywords.push_back(absl::StrCat(R"("maxLength":)", 1 + Below(4)));
      if (Maybe()) keywords.push_back(R"("pattern":"^a*b|c")");
    }
    if (kind == 3 || kind == 4) AddObject(depth, &keywords);
    if (kind == 2) {
      keywords.push_back(absl::StrCat(R"("minProperties":)", Below(2)));
      keywords.push_back(absl::StrCat(R"("maxProperties":)", Below(3)));
      keywords.push_back(absl::StrCat(R"("minItems":)", Below(3)));
    }
    if (kind == 5) {
      const bool unique = Below(3) == 0;
      if (unique) keywords.push_back(R"("uniqueItems":true)");
      keywords.push_back(
          absl::StrCat(R"("items":)", unique ? R"({"enum":[1,"ab",[],"ab"]})"
                                             : Schema(depth - 1)));
      keywords.push_back(absl::StrCat(R"("maxItems":)", 1 + Below(3)));
      if (Maybe()) {
        keywords.push_back(
            absl::StrCat(R"("prefixItems":[)", Schema(depth - 1), "]"));
      }
    }
    if (kind == 6) keywords.push_back(R"("$ref":"#/$defs/b")");
    if (depth > 0 && Maybe()) {
      keywords.push_back(absl::StrCat(Maybe() ? R"("anyOf":[)" : R"("allOf":[)",
                                      Schema(depth - 1), ",", Schema(depth - 1),
                                      "]"));
    }
    std::shuffle(keywords.begin(), keywords.end(), bits_);
    return absl::StrCat("{", absl::StrJoin(keywords, ","), "}");
  }

  std::string Type() {
    static constexpr const char* kTypes[] = {
        R"("object")",
        R"("array")",
        R"("string")",
        R"("number")",
        R"("integer")",
        R"(["object","null"])",
        R"(["string","integer","array","object"])"};
    return absl::StrCat(R"("type":)", kTypes[Below(std::size(kTypes))]);
  }

  void AddObject(int depth, std::vector<std::string>* keywords) {
    const char* const first = Maybe() ? "x" : "y";
    const char* const second = Maybe() ? "z" : "w";
    keywords->push_back(absl::StrCat(R"("properties":{")", first, R"(":)",
                                     Schema(depth - 1), R"(,")", second,
                                     R"(":)", Schema(depth - 1), "}"));
    if (Maybe()) {
      keywords->push_back(absl::StrCat(R"("required":[")", first, "\"]"));
    }
    if (Maybe()) {
      keywords->push_back(absl::StrCat(R"("additionalProperties":)",
                                       Maybe() ? "false" : Schema(depth - 1)));
    }
  }

  std::mt19937 bits_;
};

TEST(JsonSchemaWalkTest, SchemasThatHoldTogetherAtRandom) {
  constexpr int kSchemas = 400;
  int known = 0;
  for (int seed = 0; seed < kSchemas; ++seed) {
    const std::string schema = RandomSchema(seed).Text();
    const std::string refusal = Refusal(schema);
    // Those that contradict themselves, or ask for what is not known.
    if (absl::StartsWith(refusal, "INVALID_ARGUMENT allows nothing") ||
        absl::StartsWith(refusal, "UNIMPLEMENTED")) {
      continue;
    }
    ASSERT_EQ(refusal, "") << schema;
    ++known;
    WalkAll(schema, 12, /*different_ends=*/0);
    // Nothing is left out either.
    const nlohmann::json parsed = nlohmann::json::parse(schema);
    for (const char* const text :
         {"1", "2.5", "4", "7", "null", "true", R"("a")", R"("ab")", R"("abc")",
          R"("abcde")", "[]", "{}", "[1]", R"(["ab"])", R"([1,"abc"])",
          R"({"x":1})", R"({"y":"ab"})", R"({"v":null})"}) {
      const auto value = nlohmann::json::parse(text);
      EXPECT_EQ(Allows(schema, text), Violation(parsed, parsed, value).empty())
          << text << " " << schema;
    }
  }
  EXPECT_GT(known, kSchemas / 3);
}

}  // namespace
}  // namespace baton::router::json_schema_walk_test
