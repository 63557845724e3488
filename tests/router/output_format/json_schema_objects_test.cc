// Objects, arrays, and schemas made of others.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/router/output_format/json_schema_grammar.h"

namespace baton::router {
namespace {

TEST(JsonSchemaObjectsTest, RequiredPropertiesInTheirOrder) {
  ExpectAllows(
      R"({"type":"object","properties":{"b":{"type":"integer"},
             "a":{"type":"string"}},"required":["a","b"],
             "additionalProperties":false})",
      {R"({"b":1,"a":"x"})", "{\n  \"b\": 1,\n  \"a\": \"x\"\n}",
       R"({ "b" : 1 , "a" : "x" })"},
      {R"({"a":"x","b":1})", R"({"b":1})", "{}", R"({"b":1,"a":"x","c":1})",
       R"({"b":1,"a":2})", R"({"b":1"a":"x"})", R"({"b":1,"a":"x",})",
       R"({,"b":1,"a":"x"})", R"({"b":1,"b":1,"a":"x"})"});
}

// Every choice of the properties that may be missing.
TEST(JsonSchemaObjectsTest, OptionalProperties) {
  const std::string names = "abcde";
  for (unsigned required = 0; required < 32; ++required) {
    std::string properties;
    std::string needed;
    for (size_t i = 0; i < 5; ++i) {
      const std::string name = absl::StrCat("\"", names.substr(i, 1), "\"");
      absl::StrAppend(&properties, i ? "," : "", name, ":{\"const\":", i, "}");
      if ((required >> i & 1) == 0) continue;
      absl::StrAppend(&needed, needed.empty() ? "" : ",", name);
    }
    const std::string schema = absl::StrCat(
        R"({"type":"object","properties":{)", properties, R"(},"required":[)",
        needed, R"(],"additionalProperties":false})");
    for (unsigned present = 0; present < 32; ++present) {
      std::string text;
      for (size_t i = 0; i < 5; ++i) {
        if ((present >> i & 1) == 0) continue;
        absl::StrAppend(&text, text.empty() ? "" : ",", "\"",
                        names.substr(i, 1), "\":", i);
      }
      EXPECT_EQ(Allows(schema, absl::StrCat("{", text, "}")),
                (required & ~present) == 0)
          << schema << " " << text;
    }
  }
}

TEST(JsonSchemaObjectsTest, NamesAreEscaped) {
  ExpectAllows(R"({"type":"object","properties":{"a\"\\\n/\u00e9":true},
             "additionalProperties":false})",
               {"{\"a\\\"\\\\\\n/\xC3\xA9\":1}", "{}"}, {"{\"a\":1}"});
}

TEST(JsonSchemaObjectsTest, OtherProperties) {
  const std::string schema = R"({"type":"object",
      "properties":{"name":{"type":"integer"},"no":{"type":"integer"}},
      "additionalProperties":{"type":"boolean"}})";
  ExpectAllows(
      schema,
      {"{}", R"({"name":1})", R"({"no":1})", R"({"name":1,"no":2})",
       R"({"x":true})", R"({"name":1,"x":true,"y":false})", R"({"":true})",
       R"({"n":true})", R"({"na":true})", R"({"names":true,"not":false})",
       R"({"Name":true})", "{\"n\xC3\xA9\":true}", R"({"n\n":true})",
       R"({"nx\u0041":true})", R"({"no\u0041":true})",
       R"({"x\u0041":true, "x":true})"},
      {R"({"name":true})", R"({"no":1,"name":true})", R"({"x":1})",
       R"({"x":true,"name":1})", R"({"no":1,"name":1})",
       R"({"no":1,"no":true})", R"({"x":true,"name":true})",
       R"({"\u006eame":true})", R"({"n\u0061me":true})",
       R"({"nam\u0065":true})", R"({"x":true,})"});
  // Any value of any name, if it is not said.
  ExpectAllows(R"({"type":"object","properties":{"a":{"type":"integer"}}})",
               {"{}", R"({"a":1})", R"({"a":1,"b":[{}]})", R"({"b":"x"})"},
               {R"({"a":"x"})", R"({"b":1,"a":1})"});
  ExpectAllows(R"({"type":"object","additionalProperties":{"type":"integer"}})",
               {"{}", R"({"a":1})", R"({"a":1, "b":2})"}, {R"({"a":"x"})"});
  ExpectAllows(R"({"type":"object","additionalProperties":false})", {"{}"},
               {R"({"a":1})"});
}

TEST(JsonSchemaObjectsTest, OtherPropertiesBesideUnusualNames) {
  const std::string schema = R"({"type":"object",
      "properties":{"":{"const":0},"\u00e9":{"const":0},"\"\n":{"const":0}},
      "additionalProperties":{"const":1}})";
  ExpectAllows(schema,
               {R"({"":0})", "{\"\xC3\xA9\":0}", R"({"\"\n":0})", R"({"a":1})",
                "{\"\xC3\xA8\":1}", "{\"\xC3\xA9x\":1}", R"({"\"":1})",
                R"({"\n":1})", R"({"\"\nx":1})", R"({"\\":1})"},
               {R"({"":1})", "{\"\xC3\xA9\":1}", R"({"\"\n":1})",
                R"({"\u00e9":1})", R"({"\"\u000a":1})"});
}

TEST(JsonSchemaObjectsTest, RequiredWithoutASchema) {
  ExpectAllows(R"({"type":"object","properties":{"a":{"const":1}},
             "required":["z","a","y"],"additionalProperties":{"const":2}})",
               {R"({"a":1,"z":2,"y":2})", R"({"a":1,"z":2,"y":2,"x":2})"},
               {R"({"a":1})", R"({"a":1,"z":2})", R"({"a":1,"y":2,"z":2})",
                R"({"a":1,"z":1,"y":2})", R"({"a":1,"z":2,"y":2,"z":2})"});
  ExpectAllows(R"({"type":"object","required":["a"]})",
               {R"({"a":[]})", R"({"a":1,"b":2})"}, {"{}", R"({"b":2,"a":1})"});
}

TEST(JsonSchemaObjectsTest, CountsOfPropertiesThatSayNothingNew) {
  ExpectAllows(
      R"({"type":"object","properties":{"a":{},"b":{}},"required":["a"],
             "minProperties":1,"maxProperties":2,
             "additionalProperties":false})",
      {R"({"a":1})", R"({"a":1,"b":1})"}, {"{}", R"({"b":1})"});
  ExpectAllows(R"({"type":"object","maxProperties":0})", {"{}"},
               {R"({"a":1})"});
}

TEST(JsonSchemaObjectsTest, CountsOfPropertiesWithoutNames) {
  ExpectAllows(R"({"type":"object","minProperties":1})",
               {R"({"a":1})", R"({"a":1,"b":2})"}, {"{}"});
  ExpectAllows(R"({"type":"object","minProperties":1,"maxProperties":2,
             "additionalProperties":{"type":"integer"}})",
               {R"({"a":1})", R"({"a":1,"b":2})"},
               {"{}", R"({"a":1,"b":2,"c":3})", R"({"a":"x"})"});
  ExpectAllows(R"({"type":"object","maxProperties":1})", {"{}", R"({"a":1})"},
               {R"({"a":1,"b":2})"});
  ExpectAllows(R"({"type":["object","null"],"minProperties":2,
             "maxProperties":1})",
               {"null"}, {"{}", R"({"a":1})"});
  EXPECT_EQ(Refusal(R"({"type":"object","minProperties":1,
             "additionalProperties":{"allOf":[false]}})"),
            "INVALID_ARGUMENT allows nothing, since nothing can stand at "
            "#/additionalProperties/allOf/0");
}

TEST(JsonSchemaObjectsTest, PropertiesThatAllowNothing) {
  ExpectAllows(R"({"type":"object","properties":{"a":false,"b":{"const":1}}})",
               {"{}", R"({"b":1})", R"({"c":1})"}, {R"({"a":1})"});
  ExpectAllows(R"({"anyOf":[{"type":"object","properties":{"a":false},
             "required":["a"]},{"type":"null"}]})",
               {"null"}, {R"({"a":1})", "{}"});
}

TEST(JsonSchemaObjectsTest, Arrays) {
  ExpectAllows(R"({"type":"array","items":{"type":"integer"}})",
               {"[]", "[1]", "[1,2]", "[1, 2, 3]", "[\n  1,\n  2\n]"},
               {"[\"a\"]", "[1,]", "[1 2]", "[,]"});
  ExpectAllows(
      R"({"type":"array","items":{"const":1},"minItems":2,"maxItems":3})",
      {"[1,1]", "[1,1,1]"}, {"[]", "[1]", "[1,1,1,1]"});
  ExpectAllows(R"({"type":"array","items":{"const":1},"minItems":1})",
               {"[1]", "[1,1,1,1,1]"}, {"[]"});
  ExpectAllows(R"({"type":"array","items":{"const":1},"maxItems":1})",
               {"[]", "[1]"}, {"[1,1]"});
  ExpectAllows(R"({"type":"array","maxItems":0,"uniqueItems":false})", {"[]"},
               {"[1]"});
  ExpectAllows(R"({"type":"array","items":false})", {"[]"}, {"[1]"});
  ExpectAllows(R"({"type":"array","minItems":2})", {"[1,\"a\"]"}, {"[1]"});
}

// As pydantic writes dicts whose keys are bounded, of an Enum, or match.
TEST(JsonSchemaObjectsTest, NamesOfAllProperties) {
  ExpectAllows(
      R"({"type":"object","additionalProperties":{"type":"integer"},
      "propertyNames":{"$ref":"#/$defs/c"},
      "$defs":{"c":{"enum":["r","g","r",7],"type":["string","integer"]}}})",
      {"{}", R"({"r":1})", R"({"g":2})", R"({"r":1,"g":2})"},
      {R"({"b":1})", R"({"r":1,"r":2})", R"({"7":1})", R"({"r":"1"})"});
  ExpectAllows(R"({"type":"object","propertyNames":{"minLength":2,
      "pattern":"^a*b$"},"minProperties":1,
      "additionalProperties":{"type":"null"}})",
               {R"({"ab":null})", R"({"aab":null,"aaab":null})"},
               {"{}", R"({"b":null})", R"({"abc":null})", R"({"ab":1})"});
  ExpectAllows(R"({"type":"object","patternProperties":{"^x-\\d+$":
      {"type":"boolean"}},"additionalProperties":false,"maxProperties":2})",
               {"{}", R"({"x-1":true})", R"({"x-1":true,"x-22":false})"},
               {R"({"y":true})", R"({"x-1":1})",
                R"({"x-1":true,"x-2":true,"x-3":true})"});
  ExpectAllows(R"({"type":"object","patternProperties":{},
      "additionalProperties":{"type":"null"}})",
               {R"({"a":null})"}, {R"({"a":1})"});
  ExpectAllows(R"({"type":"object","propertyNames":false})", {"{}"},
               {R"({"a":1})"});
  ExpectAllows(R"({"type":"object","propertyNames":true})",
               {"{}", R"({"a":1})"}, {});
  ExpectAllows(R"({"type":"object","propertyNames":{"type":"integer"}})",
               {"{}"}, {R"({"1":1})"});
  for (const auto& [schema, what] :
       std::vector<std::pair<std::string, std::string>>{
           {R"({"type":"object","patternProperties":{"a":{}},
                "properties":{"b":{}}})",
            "\"patternProperties\" beside \"properties\" at #"},
           {R"({"type":"object","propertyNames":{},"required":["b"]})",
            "\"propertyNames\" beside \"required\" at #"},
           {R"({"type":"object","propertyNames":{"anyOf":[{}]}})",
            "\"propertyNames\" at # with \"anyOf\""},
           {R"({"type":"object","patternProperties":{"a":{},"b":{}}})",
            "\"patternProperties\" at # with several patterns"}}) {
    EXPECT_EQ(Refusal(schema), absl::StrCat("UNIMPLEMENTED has ", what,
                                            ", which Baton does not know"));
  }
  EXPECT_EQ(Refusal(R"({"type":"object","patternProperties":{"(":{}}})"),
            "INVALID_ARGUMENT has a pattern in \"patternProperties\" at # that "
            "has an unclosed group at byte 0");
  EXPECT_EQ(Refusal(R"({"type":"object","patternProperties":[]})"),
            "INVALID_ARGUMENT has \"patternProperties\" at # that is not an "
            "object");
}

// As pydantic writes sets of an Enum.
TEST(JsonSchemaObjectsTest, ArraysOfListedValuesThatDiffer) {
  ExpectAllows(
      R"({"type":"array","items":{"$ref":"#/$defs/c"},
      "uniqueItems":true,"$defs":{"c":{"enum":["r","g","b"],"type":"string",
      "title":"Colour"}}})",
      {"[]", R"(["b"])", R"(["b","r"])", R"(["g","b","r"])"},
      {R"(["b","b"])", R"(["g","b","g"])", R"(["g","b","r","r"])", R"(["x"])"});
  ExpectAllows(R"({"type":"array","items":{"enum":[1,1.0,null,1,[2]]},
      "uniqueItems":true,"minItems":2,"maxItems":9})",
               {"[1,null]", "[null,1]", "[1, [2], null]"},
               {"[]", "[1]", "[1,1]", "[1,1.0]", "[1,null,[2],1]"});
  ExpectAllows(R"({"type":"array","items":{"enum":[{"a":1,"b":2},{"b":2,"a":1},
      3]},"uniqueItems":true})",
               {R"([{"a":1,"b":2},3])"}, {R"([{"a":1,"b":2},{"b":2,"a":1}])"});
  ExpectAllows(R"({"type":"array","items":{"enum":[0,1,2,3,4,5,6,7,8,9]},
      "uniqueItems":true,"maxItems":3})",
               {"[9,0,5]", "[]", "[3]"}, {"[9,0,9]", "[1,2,3,4]"});
  ExpectAllows(R"({"items":{"type":"string"},"uniqueItems":true,"maxItems":1,
      "type":"array"})",
               {R"(["a"])", "[]"}, {R"(["a","b"])"});
  EXPECT_EQ(Refusal(R"({"type":"array","items":{"const":1},"uniqueItems":true,
      "minItems":2})"),
            "INVALID_ARGUMENT allows nothing, since nothing can stand at #");
}

// As drafts before 2020-12 have it.
TEST(JsonSchemaObjectsTest, ArraysOfItemsInTheirPlaces) {
  const std::string prefix =
      R"({"type":"array","items":[{"const":1},{"const":2}])";
  ExpectAllows(prefix + "}", {"[]", "[1]", "[1,2]", "[1,2,\"x\",[]]"},
               {"[2]", "[1,3]"});
  ExpectAllows(prefix + R"(,"additionalItems":{"const":0}})",
               {"[]", "[1,2,0,0]"}, {"[1,0]", "[1,2,1]"});
  ExpectAllows(prefix + R"(,"additionalItems":false,"minItems":2})", {"[1,2]"},
               {"[]", "[1]", "[1,2,3]"});
  ExpectAllows(prefix + R"(,"minItems":2,"maxItems":2})", {"[1,2]"},
               {"[1]", "[1,2,3]"});
  ExpectAllows(R"({"type":"array","items":[],"additionalItems":{"const":0}})",
               {"[]", "[0,0]"}, {"[1]"});
  // Heeded nowhere else.
  ExpectAllows(
      R"({"type":"array","items":{"const":1},"additionalItems":false})",
      {"[]", "[1,1]"}, {"[0]"});
  ExpectAllows(R"({"type":"array","additionalItems":false})", {"[]", "[1]"},
               {"1"});
}

TEST(JsonSchemaObjectsTest, ArraysWithAPrefix) {
  const std::string prefix =
      R"({"type":"array","prefixItems":[{"const":1},{"const":2},{"const":3}])";
  ExpectAllows(prefix + "}",
               {"[]", "[1]", "[1,2]", "[1,2,3]", "[1,2,3,\"x\",[]]"},
               {"[2]", "[1,3]", "[1,2,4]"});
  ExpectAllows(prefix + R"(,"items":{"const":0}})",
               {"[]", "[1,2,3]", "[1,2,3,0,0]"}, {"[1,0]", "[1,2,3,4]"});
  ExpectAllows(prefix + R"(,"items":false,"minItems":2})", {"[1,2]", "[1,2,3]"},
               {"[]", "[1]", "[1,2,3,4]"});
  ExpectAllows(prefix + R"(,"items":{"const":0},"minItems":5,"maxItems":6})",
               {"[1,2,3,0,0]", "[1,2,3,0,0,0]"},
               {"[1,2,3,0]", "[1,2,3,0,0,0,0]", "[]"});
  ExpectAllows(prefix + R"(,"maxItems":2})", {"[]", "[1]", "[1,2]"},
               {"[1,2,3]"});
  ExpectAllows(prefix + R"(,"minItems":1,"maxItems":4})",
               {"[1]", "[1,2,3]", "[1,2,3,9]"}, {"[]", "[1,2,3,9,9]"});
}

TEST(JsonSchemaObjectsTest, AnyOf) {
  ExpectAllows(R"({"anyOf":[{"type":"integer"},{"type":"null"},{"const":"a"}],
             "description":"d","default":null})",
               {"1", "null", R"("a")"}, {R"("b")", "true"});
  // A type that says nothing new.
  ExpectAllows(R"({"type":["integer","string"],
             "anyOf":[{"type":"integer"},{"const":"a"}]})",
               {"1", R"("a")"}, {R"("b")"});
  ExpectAllows(R"({"allOf":[{"type":"integer"}],"title":"t"})", {"1"},
               {"null"});
}

TEST(JsonSchemaObjectsTest, OneOf) {
  ExpectAllows(R"({"oneOf":[{"type":"integer"},{"type":"null"}]})",
               {"1", "null"}, {"true"});
  ExpectAllows(R"({"oneOf":[{"const":1,"title":"one"},{"enum":[2,3]}]})",
               {"1", "2", "3"}, {"4"});
  ExpectAllows(R"({"oneOf":[{"$ref":"#/$defs/cat"},{"$ref":"#/$defs/dog"}],
             "discriminator":{"propertyName":"kind"},
             "$defs":{
               "cat":{"type":"object","properties":{"kind":{"const":"cat"}},
                      "required":["kind"],"additionalProperties":false},
               "dog":{"type":"object","properties":{"kind":{"enum":["dog"]},
                      "age":{"type":"integer"}},"required":["kind","age"],
                      "additionalProperties":false}}})",
               {R"({"kind":"cat"})", R"({"kind":"dog","age":3})"},
               {R"({"kind":"dog"})", R"({"kind":"cow"})"});
}

TEST(JsonSchemaObjectsTest, References) {
  ExpectAllows(R"({"type":"array","items":{"$ref":"#/$defs/a~1b%20c"},
             "$defs":{"a/b c":{"$ref":"#/definitions/x/anyOf/1"}},
             "definitions":{"x":{"anyOf":[true,{"type":"null"}]}}})",
               {"[]", "[null,null]"}, {"[1]"});
  ExpectAllows(R"({"type":"object","$ref":"#/$defs/a",
             "$defs":{"a":{"type":"object","maxProperties":0}}})",
               {"{}"}, {"null"});
}

TEST(JsonSchemaObjectsTest, Recursion) {
  const std::string list = R"({"type":"object","properties":{
      "value":{"type":"integer"},
      "next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},
      "required":["value","next"],"additionalProperties":false})";
  std::string text = "null";
  for (int i = 0; i < 50; ++i) {
    text = absl::StrCat(R"({"value":)", i, R"(,"next":)", text, "}");
    EXPECT_TRUE(Allows(list, text)) << text;
  }
  EXPECT_FALSE(Allows(list, R"({"value":1,"next":{"value":2}})"));
  const std::string tree = R"({"$ref":"#/$defs/node","$defs":{"node":{
      "type":"object","properties":{"children":{"type":"array",
      "items":{"$ref":"#/$defs/node"}}},"additionalProperties":false}}})";
  ExpectAllows(tree,
               {"{}", R"({"children":[]})",
                R"({"children":[{},{"children":[{"children":[]}]}]})"},
               {"[]", R"({"children":{}})", R"({"children":[1]})"});
  // One that needs another, and itself only perhaps.
  ExpectAllows(R"({"anyOf":[{"$ref":"#"},{"const":1}]})", {"1"}, {"2"});
}

// Large schemas stay small: a rule for each place.
TEST(JsonSchemaObjectsTest, GrowsWithTheSchemaOnly) {
  const auto parts = [](int properties) {
    std::string schema = R"({"type":"object","properties":{)";
    for (int i = 0; i < properties; ++i) {
      absl::StrAppend(&schema, i ? "," : "", "\"property_", i, "\":{",
                      R"("type":"string","maxLength":10})");
    }
    const auto grammar = SchemaGrammar(schema + "}}");
    EXPECT_TRUE(grammar.ok()) << grammar.status();
    return grammar->expressions.size();
  };
  const size_t hundred = parts(100);
  EXPECT_LT(hundred, 4000u);
  EXPECT_LT(parts(1000), 12 * hundred);
}

}  // namespace
}  // namespace baton::router
