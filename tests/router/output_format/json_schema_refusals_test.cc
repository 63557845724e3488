// What JSON schemas are refused, and in which words.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "router/output_format/json_schema.h"
#include "tests/router/output_format/json_schema_grammar.h"

namespace baton::router {
namespace {

struct Refused {
  std::string schema;
  std::string message;
};

void ExpectAll(const std::string& code, const std::vector<Refused>& all) {
  for (const Refused& each : all) {
    EXPECT_EQ(Refusal(each.schema), absl::StrCat(code, " ", each.message))
        << each.schema;
  }
}

TEST(JsonSchemaRefusalsTest, WhatIsNoSchema) {
  ExpectAll(
      "INVALID_ARGUMENT",
      {{"", "is not valid JSON"},
       {"{", "is not valid JSON"},
       {"{} 1", "is not valid JSON"},
       {"{\"title\":\"\xFF\"}", "is not valid JSON"},
       {R"({"maximum":1e999})", "is not valid JSON"},
       {"1", "has 1 at #, which is neither an object nor a boolean"},
       {"[]", "has [] at #, which is neither an object nor a boolean"},
       {R"({"items":3})",
        "has 3 at #/items, which is neither an object nor a boolean"},
       {R"({"properties":{"a":[{}]}})",
        "has [{}] at #/properties/a, which is neither an object nor a "
        "boolean"},
       {R"({"type":"string","title":1,"type":"null"})",
        "has \"type\" twice in one object"},
       {R"({"properties":{"a":{"b":1},"a":[]}})",
        "has \"a\" twice in one object"},
       {R"({"type":"text"})",
        "has \"type\" at # that is \"text\", which is no type"},
       {R"({"type":["null",3]})",
        "has \"type\" at # that is 3, which is no type"},
       {R"({"type":[]})", "has \"type\" at # that is empty"},
       {R"({"properties":{"a/b~":{"minLength":-1}}})",
        "has \"minLength\" at #/properties/a~1b~0 that is -1, not a whole "
        "number from 0"},
       {R"({"maxLength":1.5})",
        "has \"maxLength\" at # that is 1.5, not a whole number from 0"},
       {R"({"prefixItems":[true,{"minItems":"1"}]})",
        "has \"minItems\" at #/prefixItems/1 that is \"1\", not a whole "
        "number from 0"},
       {R"({"type":"integer","minimum":"1"})",
        "has \"minimum\" at # that is not a number"},
       {R"({"exclusiveMaximum":true})",
        "has \"exclusiveMaximum\" at # that is not a number"},
       {R"({"uniqueItems":1})",
        "has \"uniqueItems\" at # that is not a "
        "boolean"},
       {R"({"required":"a"})", "has \"required\" at # that is not an array"},
       {R"({"required":["a",1]})",
        "has \"required\" at # with 1, which is not a string"},
       {R"({"properties":[]})",
        "has \"properties\" at # that is not an object"},
       {R"({"prefixItems":{}})",
        "has \"prefixItems\" at # that is not an array"},
       {R"({"enum":1})", "has \"enum\" at # that is not an array"},
       {R"({"anyOf":[]})",
        "has \"anyOf\" at # that is not an array of "
        "schemas"},
       {R"({"oneOf":{}})",
        "has \"oneOf\" at # that is not an array of "
        "schemas"},
       {R"({"format":1})", "has \"format\" at # that is not a string"},
       {R"({"pattern":1})", "has \"pattern\" at # that is not a string"},
       {R"({"$ref":1})", "has \"$ref\" at # that is not a string"},
       {R"({"$ref":"#/$defs/a"})",
        "has \"$ref\" at # to \"#/$defs/a\", which is not there"},
       {R"({"$ref":"#/examples/2","examples":[1,2]})",
        "has \"$ref\" at # to \"#/examples/2\", which is not there"}});
}

TEST(JsonSchemaRefusalsTest, PatternsThatAreMalformed) {
  const std::string refusal =
      Refusal(R"({"properties":{"a":{"type":"string","pattern":"(a"}}})");
  EXPECT_TRUE(refusal.starts_with(
      "INVALID_ARGUMENT has \"pattern\" at #/properties/a that has "))
      << refusal;
  const std::string unknown = Refusal(R"({"pattern":"(?=a)b"})");
  EXPECT_TRUE(
      unknown.starts_with("UNIMPLEMENTED has \"pattern\" at # that has "))
      << unknown;
}

TEST(JsonSchemaRefusalsTest, WhatAllowsNothing) {
  ExpectAll("INVALID_ARGUMENT",
            {{"false", "allows nothing, since nothing can stand at #"},
             {R"({"enum":[]})", "allows nothing, since nothing can stand at #"},
             {R"({"type":"string","enum":[1,null]})",
              "allows nothing, since nothing can stand at #"},
             {R"({"const":1,"enum":[2]})",
              "allows nothing, since nothing can stand at #"},
             {R"({"type":"integer","minimum":4,"maximum":3})",
              "allows nothing, since nothing can stand at #"},
             {R"({"type":"number","minimum":4,"maximum":3})",
              "allows nothing, since nothing can stand at #"},
             {R"({"type":"integer","minimum":0.2,"maximum":0.8})",
              "allows nothing, since nothing can stand at #"},
             {R"({"type":"string","minLength":2,"maxLength":1})",
              "allows nothing, since nothing can stand at #"},
             {R"({"type":"array","minItems":2,"maxItems":1})",
              "allows nothing, since nothing can stand at #"},
             {R"({"type":"array","items":false,"minItems":1})",
              "allows nothing, since nothing can stand at #"},
             {R"({"type":"object","properties":{"a":{},"b":false},
            "required":["a","b"]})",
              "allows nothing, since nothing can stand at #/properties/b"},
             {R"({"type":"array","prefixItems":[true,false],"minItems":2})",
              "allows nothing, since nothing can stand at #/prefixItems/1"},
             {R"({"$ref":"#"})", "allows nothing that comes to an end"},
             {R"({"type":"object","properties":{"a":{"$ref":"#"}},
            "required":["a"]})",
              "allows nothing that comes to an end"},
             {R"({"type":"array","items":{"$ref":"#"},"minItems":1})",
              "allows nothing that comes to an end"},
             {R"({"type":"object","required":["b"],"properties":{"a":{}},
            "additionalProperties":false})",
              "has \"required\" at # with \"b\", which no property may be"}});
}

TEST(JsonSchemaRefusalsTest, Bounds) {
  const auto nested = [](int depth) {
    std::string schema = "true";
    // Each has two objects.
    for (int i = 0; i < depth / 2; ++i) {
      schema = absl::StrCat(R"({"properties":{"a":)", schema, "}}");
    }
    return schema;
  };
  EXPECT_EQ(Refusal(nested(kMaxSchemaDepth)), "");
  EXPECT_EQ(Refusal(nested(kMaxSchemaDepth + 2)),
            "INVALID_ARGUMENT is nested deeper than 64");
  const std::string name(kMaxSchemaBytes, 'a');
  EXPECT_EQ(Refusal(absl::StrCat("{\"title\":\"", name, "\"}")),
            absl::StrCat("INVALID_ARGUMENT has ", kMaxSchemaBytes + 12,
                         " bytes, more than the 262144 that are allowed"));
  std::string members;
  for (int i = 0; i < 1025; ++i) {
    absl::StrAppend(&members, i ? "," : "", "\"p", i, "\":{}");
  }
  EXPECT_EQ(Refusal(absl::StrCat(R"({"properties":{)", members, "}}")),
            "INVALID_ARGUMENT has an object with more than 1024 members");
  // Names as long as a schema may be: more than a grammar has room for.
  EXPECT_EQ(Refusal(absl::StrCat(R"({"properties":{")", name.substr(0, 200'000),
                                 R"(":true}})")),
            "RESOURCE_EXHAUSTED has more parts than a grammar may have, 65536");
}

// Each unknown keyword says where it stands.
TEST(JsonSchemaRefusalsTest, UnknownKeywords) {
  for (const std::string keyword :
       {"not", "if", "then", "else", "dependentRequired", "dependentSchemas",
        "dependencies", "contains", "minContains", "maxContains",
        "unevaluatedItems", "$dynamicRef", "$recursiveRef", "a\"b"}) {
    const std::string quoted =
        keyword == "a\"b" ? R"("a\"b")" : absl::StrCat("\"", keyword, "\"");
    EXPECT_EQ(Refusal(absl::StrCat("{", quoted, ":{}}")),
              absl::StrCat("UNIMPLEMENTED has ", quoted,
                           " at #, which Baton does not know"));
    EXPECT_EQ(
        Refusal(
            absl::StrCat(R"({"properties":{"name":{"anyOf":[{"type":"null"},{)",
                         quoted, ":{}}]}}}")),
        absl::StrCat("UNIMPLEMENTED has ", quoted,
                     " at #/properties/name/anyOf/1, which Baton does not "
                     "know"));
  }
  // Where a reference leads, by the way it was reached first.
  EXPECT_EQ(
      Refusal(R"({"$ref":"#/$defs/a","$defs":{"a":{"not":{}}}})"),
      "UNIMPLEMENTED has \"not\" at #/$defs/a, which Baton does not know");
  // Nobody needs it.
  EXPECT_EQ(Refusal(R"({"type":"null","$defs":{"a":{"not":{}}}})"), "");
  // Long pointers are cut.
  const std::string name(500, 'a');
  EXPECT_EQ(
      Refusal(absl::StrCat(R"({"properties":{")", name, R"(":{"not":{}}}})")),
      absl::StrCat("UNIMPLEMENTED has \"not\" at #/properties/",
                   name.substr(0, 184), "..., which Baton does not know"));
}

TEST(JsonSchemaRefusalsTest, WhatKeywordsSayThatIsNotKnown) {
  const auto unknown = [](const std::string& what) {
    return absl::StrCat("has ", what, ", which Baton does not know");
  };
  ExpectAll(
      "UNIMPLEMENTED",
      {{R"({"type":"string","format":"iri"})",
        unknown("\"format\" at # that is \"iri\"")},
       {R"({"type":"integer","format":"unix-time"})",
        unknown("\"format\" at # that is \"unix-time\"")},
       {R"({"type":"string","maxLength":65537})",
        unknown("\"maxLength\" at # above 65536")},
       {R"({"type":"array","minItems":1e30})",
        unknown("\"minItems\" at # above 65536")},
       {R"({"type":"array","uniqueItems":true})",
        unknown("\"uniqueItems\" at # of other items than at most 10 listed "
                "values")},
       {R"({"uniqueItems":true,"prefixItems":[{"enum":[1]}],"items":{"enum":[2]}})",
        unknown("\"uniqueItems\" at # of other items than at most 10 listed "
                "values")},
       {R"({"uniqueItems":true,"items":{"enum":[1,2,3,4,5,6,7,8,9,10,11]}})",
        unknown("\"uniqueItems\" at # of other items than at most 10 listed "
                "values")},
       {R"({"type":"array","items":[{}],"prefixItems":[{}]})",
        unknown("\"prefixItems\" at # beside an array of \"items\"")},
       {R"({"type":"array","items":[{"not":{}}]})",
        "has \"not\" at #/items/0, which Baton does not know"},
       {R"({"type":"number","multipleOf":1})", unknown("\"multipleOf\" at #")},
       {R"({"type":"integer","multipleOf":2})", unknown("\"multipleOf\" at #")},
       {R"({"type":"number","minimum":0.5})",
        unknown("\"minimum\" at # for numbers that is not whole")},
       {R"({"type":"number","maximum":1e30})",
        unknown("\"maximum\" at # beyond 64 bits")},
       {R"({"type":"integer","minimum":9223372036854775808})",
        unknown("\"minimum\" at # beyond 64 bits")},
       {R"({"type":"integer","exclusiveMinimum":9223372036854775807})",
        unknown("\"exclusiveMinimum\" at # beyond 64 bits")},
       {R"({"type":"integer","exclusiveMaximum":-9223372036854775808})",
        unknown("\"exclusiveMaximum\" at # beyond 64 bits")},
       {R"({"type":"object","minProperties":1,"properties":{"a":{}}})",
        unknown("\"minProperties\" at # above what is required")},
       {R"({"type":"object","minProperties":2})",
        unknown("\"minProperties\" at # above 1")},
       {R"({"type":"object","maxProperties":5,"properties":{"a":{}}})",
        unknown("\"maxProperties\" at # below what is possible")},
       {R"({"type":"object","properties":{"a":{},"b":{}},"maxProperties":1,
            "additionalProperties":false})",
        unknown("\"maxProperties\" at # below what is possible")},
       {R"({"$ref":"other.json#/a"})",
        unknown("\"$ref\" at # to \"other.json#/a\"")},
       {R"({"$ref":"#a"})", unknown("\"$ref\" at # to \"#a\"")}});
}

TEST(JsonSchemaRefusalsTest, KeywordsBesideOthers) {
  const auto beside = [](const std::string& one, const std::string& other) {
    return absl::StrCat("has \"", one, "\" beside \"", other,
                        "\" at #, which Baton does not know");
  };
  ExpectAll(
      "UNIMPLEMENTED",
      {{R"({"type":"string","enum":["a"],"minLength":1})",
        beside("minLength", "enum")},
       {R"({"const":"a","pattern":"a"})", beside("pattern", "const")},
       {R"({"type":"string","format":"date","pattern":"a"})",
        beside("format", "pattern")},
       {R"({"type":"string","format":"uri","minLength":5,"maxLength":900})",
        beside("minLength", "format")},
       {R"({"pattern":"^(a+b)*$","maxLength":9000})",
        "has \"pattern\" at # that has more than 49152 parts where its "
        "bounds of length are counted, which Baton does not write"}});
}

TEST(JsonSchemaRefusalsTest, OneOfThatMayOverlap) {
  for (const char* schemas :
       {R"({"type":"integer"},{"type":"number"})", R"({},{"type":"null"})",
        R"({"const":1},{"const":1.0})", R"({"enum":["a","b"]},{"const":"b"})",
        R"({"const":[1]},{"const":[2]})", R"({"$ref":"#"},{"type":"null"})",
        // Not required, or not surely an object.
        R"({"type":"object","properties":{"k":{"const":1}},"required":["k"]},
           {"type":"object","properties":{"k":{"const":2}}})",
        R"({"properties":{"k":{"const":1}},"required":["k"]},
           {"properties":{"k":{"const":2}},"required":["k"]})",
        R"({"type":"null"},{"type":"string"},{"type":"null"})"}) {
    EXPECT_EQ(Refusal(absl::StrCat(R"({"oneOf":[)", schemas, "]}")),
              "UNIMPLEMENTED has \"oneOf\" at # with schemas that may overlap, "
              "which Baton does not know")
        << schemas;
  }
}

}  // namespace
}  // namespace baton::router
