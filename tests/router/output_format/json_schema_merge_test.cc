// Schemas that have to hold together: "allOf", and keywords beside "$ref",
// "anyOf" and "oneOf".
#include "router/output_format/schema_merge.h"

#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/router/output_format/json_schema_grammar.h"

namespace baton::router::json_schema_merge_test {
namespace {

TEST(JsonSchemaMergeTest, ObjectsOfSeveralSchemas) {
  // As OpenAPI has a schema that extends another; the first one's properties
  // come first.
  ExpectAllows(R"({"allOf":[{"$ref":"#/$defs/named"},{"type":"object",
      "properties":{"age":{"type":"integer"}},"required":["age"],
      "additionalProperties":true}],"$defs":{"named":{"type":"object",
      "properties":{"name":{"type":"string"}},"required":["name"]}}})",
               {R"({"name":"a","age":1})", R"({"name":"a","age":1,"b":[]})"},
               {R"({"name":"a"})", R"({"age":1})", R"({"age":1,"name":"a"})",
                R"({"name":1,"age":1})", "1"});
  // Keywords beside a reference.
  ExpectAllows(R"({"$ref":"#/$defs/a","properties":{"b":{"const":1}},
      "required":["a","b"],"$defs":{"a":{"type":"object","properties":{
      "a":{"const":0}},"additionalProperties":{"type":"integer"}}}})",
               {R"({"a":0,"b":1})", R"({"a":0,"b":1,"c":2})"},
               {R"({"a":0})", R"({"a":0,"b":2})", R"({"a":0,"b":1,"c":"x"})"});
  // A name of both.
  ExpectAllows(
      R"({"allOf":[
      {"properties":{"a":{"minimum":3}},"required":["a"]},
      {"type":"object","properties":{"a":{"type":"integer","maximum":5}},
       "additionalProperties":false}]})",
      {R"({"a":3})", R"({"a":5})"},
      {R"({"a":2})", R"({"a":6})", R"({"a":"x"})", "{}", R"({"a":3,"b":1})"});
}

TEST(JsonSchemaMergeTest, OthersOfOneArePropertiesOfAnother) {
  // The first allows no "b", which the second asks for.
  const std::string schema = R"({"allOf":[
      {"type":"object","properties":{"a":{}},"additionalProperties":false},
      {"properties":{"b":{}}$}]})";
  const auto with = [&schema](const std::string& more) {
    std::string text = schema;
    return text.replace(text.find('$'), 1, more);
  };
  ExpectAllows(with(""), {"{}", R"({"a":1})"}, {R"({"b":1})"});
  EXPECT_EQ(Refusal(with(R"(,"required":["b"])")),
            "INVALID_ARGUMENT allows nothing, since nothing can stand at "
            "#/properties/b");
}

TEST(JsonSchemaMergeTest, WhatNoneHasSaid) {
  // Of schemas that extend others, as newer ones write it.
  const std::string schema = R"({"allOf":[{"$ref":"#/$defs/a"},
      {"properties":{"b":{"type":"null"}}}],"type":"object",
      "required":["a"],"unevaluatedProperties":$,
      "$defs":{"a":{"properties":{"a":{"type":"null"}}}}})";
  const auto with = [&schema](const std::string& value) {
    std::string text = schema;
    return text.replace(text.find('$', text.find("Properties\":$")), 1, value);
  };
  ExpectAllows(with("false"), {R"({"a":null})", R"({"a":null,"b":null})"},
               {R"({"a":null,"c":1})", "{}"});
  ExpectAllows(with(R"({"type":"integer"})"), {R"({"a":null,"b":null,"c":1})"},
               {R"({"a":null,"c":"x"})"});
  // Nothing is left where others are allowed.
  ExpectAllows(R"({"type":"object","properties":{"a":{}},
      "additionalProperties":true,"unevaluatedProperties":false})",
               {"{}", R"({"b":1})"}, {"1"});
  ExpectAllows(R"({"type":"object","properties":{"a":{}},
      "unevaluatedProperties":false})",
               {"{}", R"({"a":1})"}, {R"({"b":1})"});
  ExpectAllows(R"({"type":"object","properties":{"k":{}},"anyOf":[
      {"properties":{"a":{}},"required":["a"]},
      {"properties":{"b":{}},"required":["b"]}],
      "unevaluatedProperties":false})",
               {R"({"a":1})", R"({"k":1,"b":1})"},
               {"{}", R"({"k":1})", R"({"a":1,"c":1})"});
  EXPECT_EQ(Refusal(R"({"allOf":[{"unevaluatedProperties":false},{}]})"),
            "UNIMPLEMENTED has \"unevaluatedProperties\" at #/allOf/0 within "
            "another schema, which Baton does not know");
}

TEST(JsonSchemaMergeTest, Alternatives) {
  // What all have, and what one of them has to have.
  ExpectAllows(R"({"type":"object","properties":{"a":{"type":"null"},
      "b":{"type":"null"}},"additionalProperties":false,
      "anyOf":[{"required":["a"]},{"required":["b"]}]})",
               {R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null})"},
               {"{}", R"({"a":1})", R"({"c":null})"});
  // A type that narrows them.
  ExpectAllows(R"({"type":["string","null"],
      "anyOf":[{"type":"integer"},{"maxLength":2}]})",
               {R"("ab")", "null"}, {R"("abc")", "1", "true"});
  // Several of them at a time.
  ExpectAllows(R"({"anyOf":[{"enum":[1,2,3]},{"type":"null"}],
      "oneOf":[{"enum":[2,4]},{"const":3},{"type":"null"}]})",
               {"2", "3", "null"}, {"1", "4"});
  ExpectAllows(R"({"allOf":[{"anyOf":[{"minimum":5},{"type":"string"}]},
      {"anyOf":[{"type":"integer","maximum":7},{"enum":["x"]}]}]})",
               {"5", "7", R"("x")"}, {"4", "8", R"("y")"});
  // Kept apart by a mark that objects have, since nothing else is one.
  ExpectAllows(R"({"type":"object","required":["k"],"oneOf":[
      {"properties":{"k":{"const":1}},"required":["k"]},
      {"properties":{"k":{"const":2},"b":{"type":"null"}},"required":["k"]}],
      "additionalProperties":false,"properties":{"k":{},"b":{}}})",
               {R"({"k":1,"b":5})", R"({"k":2,"b":null})"},
               {R"({"k":2,"b":5})", R"({"k":3})", "{}"});
  EXPECT_EQ(Refusal(R"({"type":"integer","oneOf":[{"minimum":1},{}]})"),
            "UNIMPLEMENTED has \"oneOf\" at # with schemas that may overlap, "
            "which Baton does not know");
}

TEST(JsonSchemaMergeTest, StringsAndNumbers) {
  ExpectAllows(R"({"allOf":[{"type":"string","minLength":2,"maxLength":9},
      {"minLength":1,"maxLength":3}]})",
               {R"("ab")", R"("abc")"}, {R"("a")", R"("abcd")", "1"});
  ExpectAllows(R"({"allOf":[{"type":"integer","minimum":2},
      {"exclusiveMinimum":2.0,"maximum":9},{"type":"number","maximum":4},
      {"type":["integer","string"],"exclusiveMaximum":8}]})",
               {"3", "4"}, {"2", "5", "3.5", R"("3")"});
  ExpectAllows(R"({"allOf":[{"format":"date"},{"type":"string"},
      {"format":"date"}]})",
               {R"("2024-01-31")"}, {R"("x")", "1"});
  ExpectAllows(R"({"allOf":[{"pattern":"^a+$"},{"type":"string",
      "pattern":"^a+$"}]})",
               {R"("aa")"}, {R"("ab")"});
  EXPECT_EQ(Refusal(R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})"),
            "UNIMPLEMENTED has \"pattern\" at #/allOf/1 beside another one, "
            "which Baton does not know");
  EXPECT_EQ(Refusal(R"({"allOf":[{"minimum":"x"},{}]})"),
            "INVALID_ARGUMENT has \"minimum\" at #/allOf/0 that is not a "
            "number");
}

TEST(JsonSchemaMergeTest, Arrays) {
  ExpectAllows(R"({"allOf":[{"type":"array","items":{"minimum":1},
      "minItems":1},{"items":{"type":"integer","maximum":3},"maxItems":2}]})",
               {"[1]", "[3, 2]"}, {"[]", "[0]", "[4]", "[1,2,3]"});
  // Places of one, and what another says of all; older drafts' names, too.
  ExpectAllows(R"({"allOf":[{"type":"array","prefixItems":[{"const":1},
      {"const":2}],"items":false},{"items":{"type":"integer"},"minItems":1}]})",
               {"[1]", "[1, 2]"}, {"[]", "[2]", "[1,2,3]"});
  ExpectAllows(R"({"allOf":[{"type":"array","items":[{"type":"integer"}],
      "additionalItems":{"type":"null"}},{"prefixItems":[{"minimum":5},{}]}]})",
               {"[5]", "[6, null]", "[6, null, null]", "[]"},
               {"[4]", "[6, 1]"});
  EXPECT_EQ(Refusal(R"({"allOf":[{"patternProperties":{"a":{}}},
      {"type":"object","additionalProperties":false}]})"),
            "UNIMPLEMENTED has \"patternProperties\" at #/allOf/0 in schemas "
            "that have to hold together, which Baton does not know");
  ExpectAllows(R"({"allOf":[{"propertyNames":{"enum":["a","b"]}},
      {"type":"object","additionalProperties":{"type":"null"}}]})",
               {"{}", R"({"a":null})"}, {R"({"a":1})", R"({"c":null})"});
  EXPECT_EQ(Refusal(R"({"allOf":[{"uniqueItems":true,"type":"array"},{}]})"),
            "UNIMPLEMENTED has \"uniqueItems\" at # of other items than at "
            "most 10 listed values, which Baton does not know");
}

TEST(JsonSchemaMergeTest, ListedValues) {
  ExpectAllows(R"({"allOf":[{"enum":[1,"a",{"x":1,"y":2}]},
      {"enum":["a",{"y":2,"x":1.0},3]}]})",
               {R"("a")", R"({"x":1,"y":2})"}, {"1", "3"});
  ExpectAllows(R"({"$ref":"#/$defs/a","type":"string",
      "$defs":{"a":{"enum":["a",1,null]}}})",
               {R"("a")"}, {"1", "null"});
  ExpectAllows(R"({"allOf":[{"const":1},{"type":"integer"},true]})", {"1"},
               {"2"});
  // What others say of their lengths and sizes.
  ExpectAllows(R"({"allOf":[{"enum":["","\u00e9","aa",1,2.5,3,true]},
      {"minLength":1,"maxLength":1},{"minimum":1,"exclusiveMaximum":3}]})",
               {"\"\xC3\xA9\"", "1", "2.5", "true"}, {R"("")", R"("aa")", "3"});
  EXPECT_EQ(Refusal(R"({"allOf":[{"enum":["a"]},{"pattern":"a"}]})"),
            "UNIMPLEMENTED has \"pattern\" beside \"enum\" at #, which Baton "
            "does not know");
}

TEST(JsonSchemaMergeTest, WhatAllowsNothing) {
  for (const char* schemas :
       {R"({"type":"string"},{"type":"integer"})", R"({},false)",
        R"({"const":1},{"const":2})", R"({"minimum":3},{"maximum":2,
        "type":"integer"})"}) {
    EXPECT_EQ(Refusal(absl::StrCat(R"({"allOf":[)", schemas, "]}")),
              "INVALID_ARGUMENT allows nothing, since nothing can stand at #")
        << schemas;
  }
  EXPECT_EQ(Refusal(R"({"allOf":[{"$ref":"#"},{"type":"integer"}]})"), "");
  EXPECT_EQ(Refusal(R"({"allOf":[1,2]})"),
            "INVALID_ARGUMENT has 1 at #/allOf/0, which is neither an object "
            "nor a boolean");
  EXPECT_EQ(Refusal(R"({"allOf":[{},{"not":{}}]})"),
            "UNIMPLEMENTED has \"not\" at #/allOf/1, which Baton does not "
            "know");
}

TEST(JsonSchemaMergeTest, WhatIsWithinItself) {
  // Two trees at a time: each node has what both say.
  const std::string schema = R"({"allOf":[{"$ref":"#/$defs/tree"},
      {"$ref":"#/$defs/numbered"}],"$defs":{
      "tree":{"type":"object","properties":{"kids":{"type":"array",
        "items":{"$ref":"#/$defs/tree"}}},"required":["kids"]},
      "numbered":{"properties":{"n":{"type":"integer"},"kids":{
        "items":{"$ref":"#/$defs/numbered"}}},"required":["n"],
        "additionalProperties":false}}})";
  ExpectAllows(schema,
               {R"({"kids":[],"n":1})",
                R"({"kids":[{"kids":[{"kids":[],"n":3}],"n":2}],"n":1})"},
               {R"({"kids":[]})", R"({"kids":[{"kids":[]}],"n":1})",
                R"({"kids":[{"kids":[],"n":2,"x":1}],"n":1})"});
}

TEST(JsonSchemaMergeTest, Bounds) {
  const std::string exhausted = absl::StrCat(
      "RESOURCE_EXHAUSTED has more schemas to be put together than may be: ",
      kMaxMergedSchemas, ", of ", kMaxMergedBytes, " bytes");
  // Each level has two schemas, which have two of the next one each.
  std::string schema = R"({"type":"integer"})";
  for (int i = 0; i < 15; ++i) {
    schema = absl::StrCat(R"({"type":"object","properties":{"a)", i,
                          R"(":{"allOf":[)", R"({"$ref":"#/$defs/d"},)", schema,
                          "]}}}");
  }
  schema.insert(schema.size() - 1, R"(,"$defs":{"d":{}})");
  EXPECT_EQ(Refusal(schema), "");
  // A large part that many others would have copies of.
  std::string names;
  std::string branches = "{}";
  for (int i = 0; i < 1000; ++i) {
    absl::StrAppend(&names, i > 0 ? "," : "", "\"p", i, "\":{}");
    branches += ",{}";
  }
  EXPECT_EQ(Refusal(absl::StrCat(R"({"type":"object","properties":{)", names,
                                 R"(},"anyOf":[)", branches, "]}")),
            exhausted);
  // Alternatives of alternatives, all of which have to be looked at.
  std::string groups;
  for (int i = 0; i < 12; ++i) {
    absl::StrAppend(&groups, i > 0 ? "," : "", R"({"anyOf":[{"required":["a)",
                    i, R"("]},{"required":["b)", i, R"("]}]})");
  }
  EXPECT_EQ(
      Refusal(absl::StrCat(R"({"type":"object","allOf":[)", groups, "]}")),
      exhausted);
  // References to references.
  const auto chain = [](int length) {
    std::string defs = R"("d0":{"type":"integer"})";
    for (int i = 1; i < length; ++i) {
      absl::StrAppend(&defs, ",\"d", i, R"(":{"$ref":"#/$defs/d)", i - 1,
                      "\"}");
    }
    return absl::StrCat(R"({"allOf":[{"$ref":"#/$defs/d)", length - 1,
                        R"("},{}],"$defs":{)", defs, "}}");
  };
  EXPECT_EQ(Refusal(chain(150)), "");
  EXPECT_EQ(Refusal(chain(1000)),
            "RESOURCE_EXHAUSTED has more than 200 schemas that lead to each "
            "other at #/$defs/d800");
}

}  // namespace
}  // namespace baton::router::json_schema_merge_test
