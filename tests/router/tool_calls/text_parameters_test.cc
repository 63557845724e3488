#include "router/tool_calls/text_parameters.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::router {
namespace {

using enum ValueKind;
using testing::Pair;
using testing::UnorderedElementsAre;

TEST(TextParametersTest, SchemasSayIt) {
  const std::vector<std::pair<std::string, ValueKind>> cases = {
      {R"({"type": "string"})", kText},
      {R"({"type": ["string"]})", kText},
      {R"({"type": "string", "enum": [1, null]})", kText},
      {R"({"enum": ["a", "1"]})", kText},
      {R"({"const": "a"})", kText},
      {R"({"anyOf": [{"type": "string"}, {"enum": ["a"]}]})", kText},
      {R"({"type": ["null", "string"]})", kTextOrNull},
      {R"({"enum": ["a", null]})", kTextOrNull},
      {R"({"anyOf": [{"type": "string"}, {"type": "null"}]})", kTextOrNull},
      {R"({"oneOf": [{"type": ["string", "null"]}]})", kTextOrNull},
      {R"({"type": "integer"})", kJson},
      {R"({"type": "null"})", kJson},
      {R"({"type": ["string", "integer"]})", kJson},
      {R"({"type": 3})", kJson},
      {R"({"type": []})", kJson},
      {R"({"enum": ["a", 1]})", kJson},
      {R"({"enum": []})", kJson},
      {R"({"const": null})", kJson},
      {R"({"anyOf": [{"type": "string"}, {"type": "number"}]})", kJson},
      {R"({"anyOf": [{"type": "string"}, {}]})", kJson},
      {R"({"anyOf": [{"type": "string"}, true]})", kJson},
      {R"({"anyOf": 7})", kJson},
      {R"({"$ref": "#/$defs/a"})", kJson},
      {"{}", kJson},
      {"true", kJson},
      {R"("string")", kJson}};
  for (const auto& [schema, kind] : cases) {
    EXPECT_EQ(KindOfValue(nlohmann::ordered_json::parse(schema)), kind)
        << schema;
  }
}

TEST(TextParametersTest, ThoseOfAFunction) {
  EXPECT_THAT(TextParametersOf(
                  R"({"properties": {"a": {"type": "string"}, "b": {},
                      "c": {"type": ["string", "null"]}, "d": 3}})"),
              UnorderedElementsAre(Pair("a", kText), Pair("c", kTextOrNull)));
  const std::string deep(100000, '[');
  for (const std::string& other :
       {std::string(), std::string("{"), std::string("[]"),
        std::string(R"({"properties": []})"), std::string("{}"),
        "{\"properties\": {\"a\": " + deep + std::string(deep.size(), ']') +
            "}}"}) {
    EXPECT_TRUE(TextParametersOf(other).empty()) << other.substr(0, 60);
  }
}

}  // namespace
}  // namespace baton::router
