#include "router/output_format/json_schema.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "scheduling/grammar_automaton.h"
#include "tests/router/output_format/json_schema_grammar.h"

namespace baton::router {
namespace {

std::string Repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

const std::vector<std::string>& OneOfEach() {
  static const auto* texts = new std::vector<std::string>{
      "null", "true", "-1", "0.5", "\"a\"", "[1,\"b\"]", "{\"a\":[{}]}"};
  return *texts;
}

// Those of OneOfEach that a schema allows, as their numbers.
std::string AllowedOfEach(const std::string& schema) {
  std::string allowed;
  for (size_t i = 0; i < OneOfEach().size(); ++i) {
    if (Allows(schema, OneOfEach()[i])) absl::StrAppend(&allowed, i);
  }
  return allowed;
}

TEST(JsonSchemaTest, Types) {
  EXPECT_EQ(AllowedOfEach("true"), "0123456");
  EXPECT_EQ(AllowedOfEach("{}"), "0123456");
  EXPECT_EQ(AllowedOfEach(R"({"title":"t","x-order":3})"), "0123456");
  EXPECT_EQ(AllowedOfEach(R"({"type":"null"})"), "0");
  EXPECT_EQ(AllowedOfEach(R"({"type":"boolean"})"), "1");
  EXPECT_EQ(AllowedOfEach(R"({"type":"integer"})"), "2");
  EXPECT_EQ(AllowedOfEach(R"({"type":"number"})"), "23");
  EXPECT_EQ(AllowedOfEach(R"({"type":"string"})"), "4");
  EXPECT_EQ(AllowedOfEach(R"({"type":"array"})"), "5");
  EXPECT_EQ(AllowedOfEach(R"({"type":"object"})"), "6");
  EXPECT_EQ(AllowedOfEach(R"({"type":["null","integer","object"]})"), "026");
  EXPECT_EQ(AllowedOfEach(R"({"type":["integer","number"]})"), "23");
  // As OpenAPI 3.0 has it: beside a type alone, and not in a list of values.
  EXPECT_EQ(AllowedOfEach(R"({"type":"integer","nullable":true})"), "02");
  EXPECT_EQ(AllowedOfEach(R"({"type":"integer","nullable":false})"), "2");
  EXPECT_EQ(AllowedOfEach(R"({"nullable":true,"minLength":9})"), "012356");
  EXPECT_EQ(AllowedOfEach(R"({"type":"string","nullable":true,"enum":["a"]})"),
            "4");
  EXPECT_EQ(AllowedOfEach(R"({"type":"string","nullable":true,
                             "anyOf":[{"maxLength":1}]})"),
            "04");
  // What is within a string nobody looks at.
  EXPECT_EQ(AllowedOfEach(R"({"type":"string","contentEncoding":"base64",
                             "contentMediaType":"image/png"})"),
            "4");
}

TEST(JsonSchemaTest, KeywordsOfOtherTypesSayNothing) {
  EXPECT_EQ(AllowedOfEach(R"({"type":"integer","minLength":3})"), "2");
  EXPECT_EQ(AllowedOfEach(R"({"type":"string","minimum":3,"items":false})"),
            "4");
  // Without a type, they are about the values of theirs.
  EXPECT_EQ(AllowedOfEach(R"({"minLength":3})"), "012356");
  EXPECT_EQ(AllowedOfEach(R"({"minimum":0})"), "013456");
  EXPECT_EQ(AllowedOfEach(R"({"required":["b"]})"), "012345");
  EXPECT_EQ(AllowedOfEach(R"({"maxItems":1})"), "012346");
  EXPECT_EQ(AllowedOfEach(R"({"format":"date"})"), "012356");
  EXPECT_EQ(AllowedOfEach(R"({"type":["integer","string"],"minimum":0})"), "4");
}

TEST(JsonSchemaTest, AnyValueIsJson) {
  ExpectAllows("{}",
               {"[]", "{}", "[[],{}]", "[1, 2]", "[ 1 , 2 ]", "[\n  1,\n  2\n]",
                R"({"a": {"b": [true, false, null]}, "c": ""})", "1e5",
                "-0.25E-07", "\"\xC3\xA9\xF0\x9F\x98\x80\""},
               {"",        " 1",       "1 ",        "[1,]", "[,1]", "{1:2}",
                "{\"a\"}", "{\"a\":}", "[1 2]",     "tru",  "nul",  "01",
                "1.",      ".5",       "+1",        "1e",   "--1",  "'a'",
                "[1,  2]", "[1,\t2]",  "[1,\r\n2]", "[ ]",  "NaN"});
  const std::string deep = Repeated("[", 100) + Repeated("]", 100);
  EXPECT_TRUE(Allows("{}", deep));
  EXPECT_TRUE(Allows("{}", "[\n" + Repeated(" ", 32) + "1]"));
  EXPECT_FALSE(Allows("{}", "[\n" + Repeated(" ", 33) + "1]"));
}

TEST(JsonSchemaTest, AnyObject) {
  scheduling::GrammarBuilder builder;
  WriteAnyJsonObject(builder.NewRule(), &builder);
  scheduling::Grammar grammar;
  ASSERT_TRUE(builder.Build(&grammar).ok());
  for (const char* text : {"{}", R"({"a":1})", "{\n  \"a\": [1, {}]\n}"}) {
    EXPECT_TRUE(*scheduling::Matches(grammar, text)) << text;
  }
  for (const char* text : {"", "[]", "1", "null", " {}", "{} ", "{\"a\":1"}) {
    EXPECT_FALSE(*scheduling::Matches(grammar, text)) << text;
  }
}

TEST(JsonSchemaTest, Strings) {
  ExpectAllows(
      R"({"type":"string"})",
      {R"("")", R"("a/b\/")", R"("\"\\\b\f\n\r\t")", R"("\u00e9\uABcd")",
       R"("\ud83d\ude00")", R"("\uD7FF\uE000")", "\"\x7F\xEF\xBF\xBF\""},
      {"a", "\"", "\"a", "\"a\"b", "\"\n\"", "\"\x01\"", R"("\x")", R"("\u12")",
       R"("\u12g4")", R"("\ud83d")", R"("\ude00")", R"("\ud83d\u0041")",
       "\"\xC0\x80\"", "\"\xED\xA0\x80\"", "\"\xC3\"", "\"\xF4\x90\x80\x80\""});
}

TEST(JsonSchemaTest, StringLengths) {
  ExpectAllows(R"({"type":"string","minLength":2,"maxLength":3})",
               {R"("ab")", R"("abc")", "\"\xC3\xA9\xF0\x9F\x98\x80\"",
                R"("\ud83d\ude00\n")"},
               {R"("")", R"("a")", R"("abcd")", "\"\xF0\x9F\x98\x80\""});
  ExpectAllows(R"({"type":"string","minLength":2})",
               {R"("ab")", R"("abcdefghi")"}, {R"("a")"});
  ExpectAllows(R"({"type":"string","maxLength":0})", {R"("")"}, {R"("a")"});
  ExpectAllows(R"({"type":"string","maxLength":1.0})", {R"("")", R"("a")"},
               {R"("ab")"});
  EXPECT_TRUE(SchemaGrammar(R"({"type":"string","maxLength":65536})").ok());
  EXPECT_EQ(AllowedOfEach(
                R"({"type":["string","null"],"minLength":2,"maxLength":1})"),
            "0");
}

TEST(JsonSchemaTest, Patterns) {
  ExpectAllows(R"({"type":"string","pattern":"^[a-z]{2}-\\d+$"})",
               {R"("ab-12")"},
               {R"("ab-")", R"("xab-1")", R"("ab-1x")", "ab-12"});
  ExpectAllows(R"({"type":"string","pattern":"b+"})", {R"("b")", R"("abbc")"},
               {R"("ac")"});
  ExpectAllows(R"({"type":"string","pattern":"^.\"$","minLength":0})",
               {R"("a\"")", R"("\\\"")"}, {R"("a"")", R"("\"")"});
}

TEST(JsonSchemaTest, DatesAndTimes) {
  ExpectAllows(R"({"type":"string","format":"date"})",
               {R"("2024-02-29")", R"("2000-02-29")", R"("1999-12-31")",
                R"("2025-04-30")"},
               {R"("2023-02-29")", R"("1900-02-29")", R"("2025-04-31")",
                R"("2025-13-01")", R"("2025-00-10")", R"("2025-01-00")",
                R"("2025-1-1")", R"("25-01-01")"});
  ExpectAllows(
      R"({"type":"string","format":"time"})",
      {R"("23:59:59Z")", R"("00:00:00.125+02:00")"},
      {R"("24:00:00Z")", R"("12:60:00Z")", R"("12:00:00")", R"("12:00Z")"});
  ExpectAllows(
      R"({"type":"string","format":"date-time"})",
      {R"("2025-11-27T03:24:19Z")", R"("2024-02-29T00:00:00.5-11:30")"},
      {R"("2025-11-27")", R"("2025-11-27 03:24:19Z")", R"("T03:24:19Z")",
       R"("2025-02-29T03:24:19Z")"});
  ExpectAllows(R"({"type":"string","format":"duration"})",
               {R"("P1D")", R"("PT5M")", R"("P1Y2M3DT4H5M6S")", R"("P3W")"},
               {R"("P")", R"("PT")", R"("P1")", R"("P1YT")", R"("P1Y2D")",
                R"("PT1H2S")", R"("P1W2D")", R"("1D")"});
}

TEST(JsonSchemaTest, OtherFormats) {
  ExpectAllows(R"({"type":"string","format":"uuid"})",
               {R"("123e4567-e89b-12d3-A456-426614174000")"},
               {R"("123e4567e89b12d3a456426614174000")", R"("")"});
  ExpectAllows(R"({"type":"string","format":"ipv4"})",
               {R"("127.0.0.1")", R"("255.249.199.99")"},
               {R"("256.0.0.1")", R"("1.2.3")", R"("01.2.3.4")"});
  ExpectAllows(
      R"({"type":"string","format":"ipv6"})",
      {R"("::")", R"("::1")", R"("1::")", R"("2001:db8::8a2e:370:7334")",
       R"("1:2:3:4:5:6:7:8")", R"("1:2:3:4:5:6:7::")", R"("1::3:4:5:6:7:8")"},
      {R"("1:2:3:4:5:6:7")", R"("1::2::3")", R"("12345::")", R"(":")",
       R"("1:2:3:4:5:6:7:8:9")", R"("1:2:3:4::5:6:7:8:9")"});
  ExpectAllows(R"({"type":"string","format":"hostname"})",
               {R"("localhost")", R"("a-1.example.com")"},
               {R"("-a")", R"("a-")", R"("a..b")", R"("")", R"("a_b")"});
  ExpectAllows(R"({"type":"string","format":"email"})",
               {R"("jo.doe+x@example.com")", R"("a@b")"},
               {R"("a")", R"("@b")", R"("a@")", R"("a@@b")", R"(".a@b")"});
}

TEST(JsonSchemaTest, Uris) {
  ExpectAllows(
      R"({"type":"string","format":"uri"})",
      {R"("https://example.com")", R"("https://example.com/")",
       R"("http://jo:pw@host.example:8080/a/b;c?x=1&y=%20/?#f/2?")",
       R"("mailto:jo@example.com")", R"("urn:isbn:0451450523")",
       R"("file:///etc/hosts")", R"("https://[2001:db8::1]:443/x")",
       R"("tel:+1-816-555-1212")", R"("a:/b")", R"("a:")", R"("x+y.z-1:?q")"},
      {R"("example.com")", R"("//host/path")", R"("/path")", R"("")",
       R"("http://a b")", R"("1http://x")", R"("http://[zz]/")",
       R"("http://x/%zz")", R"("http://x/<")", R"("http://x#a#b")",
       R"("http://x:port/")", R"("http://a@b@c/")", R"("http://x/\u00e9")"});
}

TEST(JsonSchemaTest, Integers) {
  ExpectAllows(R"({"type":"integer"})",
               {"0", "7", "-7", "9223372036854775807", "-9223372036854775808"},
               {"-0", "00", "1.0", "1e3", "9223372036854775808",
                "-9223372036854775809", "", "-", "+1"});
  ExpectAllows(R"({"type":"integer","format":"int64"})",
               {"9223372036854775807"}, {});
  ExpectAllows(R"({"type":"integer","format":"int32"})",
               {"2147483647", "-2147483648"}, {"2147483648", "-2147483649"});
  ExpectAllows(R"({"type":"integer","multipleOf":1})", {"5"}, {"0.5"});
}

TEST(JsonSchemaTest, IntegersWithinBounds) {
  for (const auto& [least, most] :
       std::vector<std::pair<int, int>>{{0, 0},
                                        {0, 9},
                                        {1, 10},
                                        {5, 123},
                                        {99, 101},
                                        {100, 999},
                                        {17, 1004},
                                        {-5, 5},
                                        {-123, -45},
                                        {-1, 1000},
                                        {-1000, 0},
                                        {250, 259}}) {
    const auto grammar =
        SchemaGrammar(absl::StrCat(R"({"type":"integer","minimum":)", least,
                                   R"(,"exclusiveMaximum":)", most + 1, "}"));
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    const auto automaton = *scheduling::GrammarAutomaton::Make(*grammar);
    for (int i = -1200; i <= 1200; ++i) {
      const auto state = automaton->Next(automaton->start(), absl::StrCat(i));
      const bool matches = state != scheduling::GrammarAutomaton::kNone &&
                           automaton->MayEnd(state);
      EXPECT_EQ(matches, i >= least && i <= most)
          << i << " in " << least << " to " << most;
    }
  }
  ExpectAllows(R"({"type":"integer","minimum":3})",
               {"3", "10", "9223372036854775807"},
               {"2", "0", "-3", "9223372036854775808"});
  ExpectAllows(R"({"type":"integer","exclusiveMinimum":3})", {"4"}, {"3"});
  ExpectAllows(R"({"type":"integer","maximum":-3})",
               {"-3", "-9223372036854775808"}, {"-2", "0", "3"});
  // Of two bounds the narrower, and what is not whole rounded inwards.
  ExpectAllows(R"({"type":"integer","minimum":0.5,"exclusiveMinimum":-4})",
               {"1"}, {"0"});
  ExpectAllows(R"({"type":"integer","minimum":-2.5,"maximum":2.5})",
               {"-2", "2"}, {"-3", "3"});
  ExpectAllows(
      R"({"type":"integer","exclusiveMinimum":0.5,"exclusiveMaximum":2.5})",
      {"1", "2"}, {"0", "3"});
  ExpectAllows(R"({"type":"integer","minimum":-1e300,"maximum":1e300})", {"5"},
               {});
}

TEST(JsonSchemaTest, Numbers) {
  ExpectAllows(
      R"({"type":"number"})",
      {"0", "-0", "1.5", "1e10", "1.25E-3", "9999999999999999", "1e+99"},
      {"12345678901234567", "0.12345678901234567", "1e100", "1.", "00"});
  ExpectAllows(R"({"type":"number","format":"double"})", {"0.5"}, {});
}

TEST(JsonSchemaTest, NumbersWithinBounds) {
  ExpectAllows(R"({"type":"number","minimum":0})",
               {"0", "0.5", "1e5", "123.25"}, {"-0", "-1", "-0.5"});
  ExpectAllows(R"({"type":"number","minimum":0,"maximum":1})",
               {"0", "0.0", "0.75", "1", "1.0"},
               {"-0.5", "1.01", "2", "10", "1e0", "-0", "1.00000001"});
  ExpectAllows(
      R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1.0})",
      {"0.5", "0.01", "0.99999999"}, {"0", "0.0", "1", "1.0", "-0.5"});
  ExpectAllows(R"({"type":"number","exclusiveMinimum":0})", {"1", "0.1", "1.5"},
               {"0", "0.00", "-1", "-0.0"});
  ExpectAllows(R"({"type":"number","minimum":-10,"maximum":20})",
               {"-10", "-10.0", "-9.99", "-0.5", "0", "19.99", "20"},
               {"-10.01", "-11", "20.01", "21", "-0"});
  ExpectAllows(R"({"type":"number","minimum":-20,"exclusiveMaximum":-3})",
               {"-20", "-3.01", "-4"}, {"-3", "-3.0", "-2", "-20.1", "0", "5"});
  ExpectAllows(R"({"type":"number","maximum":5})", {"5", "-0.5", "-1e9", "4.5"},
               {"5.1", "6", "1e0"});
  ExpectAllows(R"({"type":"number","exclusiveMaximum":0})", {"-0.5", "-12.5"},
               {"0", "-0", "-0.0", "1"});
  ExpectAllows(R"({"type":"number","minimum":3,"maximum":3})", {"3", "3.00"},
               {"3.01", "2.99"});
  EXPECT_EQ(
      AllowedOfEach(
          R"({"type":["number","null"],"minimum":3,"exclusiveMaximum":3})"),
      "0");
}

TEST(JsonSchemaTest, ListedValues) {
  ExpectAllows(
      R"({"enum":["red",1,null,{"a":[1,"x"]},"\u00e9\"\n"]})",
      {R"("red")", "1", "null", R"({"a":[1,"x"]})", "\"\xC3\xA9\\\"\\n\""},
      {R"("re")", "2", R"({"a": [1,"x"]})", "\"\xC3\xA9\""});
  ExpectAllows(R"({"const":"a","title":"A"})", {R"("a")"}, {R"("b")", "\"\""});
  ExpectAllows(R"({"type":"string","enum":["a",1,"b"]})", {R"("a")", R"("b")"},
               {"1"});
  ExpectAllows(R"({"type":["integer","null"],"enum":["a",2,1.5,null]})",
               {"2", "null"}, {"1.5", R"("a")"});
  ExpectAllows(R"({"type":"number","const":2})", {"2"}, {"2.0"});
  ExpectAllows(R"({"const":1,"enum":[2,1]})", {"1"}, {"2"});
  // What is about other types says nothing.
  ExpectAllows(R"({"type":"string","enum":["a"],"minimum":3})", {R"("a")"}, {});
}

}  // namespace
}  // namespace baton::router
