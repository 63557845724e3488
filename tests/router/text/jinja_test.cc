// Parts of the template engine by themselves. What it renders is compared with
// Jinja2's own answers in chat_template_test.cc.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "router/text/jinja/compare.h"
#include "router/text/jinja/lexer.h"
#include "router/text/jinja/operators.h"
#include "router/text/jinja/parser.h"
#include "router/text/jinja/python_text.h"
#include "router/text/jinja/run.h"
#include "router/text/jinja/value_text.h"

namespace baton::router::jinja {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Texts(absl::string_view source) {
  std::vector<std::string> texts;
  const auto tokens = Tokenize(source);
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  for (const Token& token : *tokens) texts.push_back(token.text);
  return texts;
}

TEST(LexerTest, CutsTagsAndText) {
  EXPECT_THAT(Texts("a {{ b.c|d('e') }} f"),
              ElementsAre("a ", "", "b", ".", "c", "|", "d", "(", "e", ")", "",
                          " f", ""));
  EXPECT_THAT(Texts("{{ 1.5 // 0x10 ** a }}"),
              ElementsAre("", "1.5", "//", "0x10", "**", "a", "", ""));
  EXPECT_THAT(Texts("{{ {'a': {}} }}"),
              ElementsAre("", "{", "a", ":", "{", "}", "}", "", ""));
}

TEST(LexerTest, LineEndsAreOne) {
  EXPECT_THAT(Texts("a\r\nb\rc\n"), ElementsAre("a\nb\nc", ""));
}

TEST(LexerTest, KnowsLines) {
  const auto tokens = Tokenize("a\n{{ b\n\n}}\r\n{# x\n #}{% c %}\n{{ d }}");
  ASSERT_TRUE(tokens.ok());
  std::vector<int> lines;
  for (const Token& token : *tokens) {
    if (token.type == TokenType::kName) lines.push_back(token.line);
  }
  EXPECT_THAT(lines, ElementsAre(2, 6, 7));
}

TEST(ParserTest, ErrorsAreClear) {
  const auto error = [](absl::string_view source) {
    return std::string(Parse(source).status().message());
  };
  EXPECT_EQ(error("x\n{% nope %}"), "line 2: encountered unknown tag 'nope'");
  EXPECT_EQ(error("{% if 1 %}\n"),
            "line 1: the template ends where elif or else or endif is missing");
  EXPECT_EQ(error("{{ (1] }}"), "line 1: unexpected ']', expected ')'");
  EXPECT_EQ(error("{{ 'a }}"), "line 1: a string has no end");
  EXPECT_EQ(error("\n\n{# x"), "line 3: a comment that begins here has no end");
  EXPECT_EQ(error("{% raw %} x"),
            "line 1: a raw block that begins here has no end");
  EXPECT_EQ(error("{{ 1 ? 2 }}"), "line 1: unexpected character '?'");
  EXPECT_THAT(error("{{ " + std::string(60, '9') + " }}"),
              HasSubstr("is too large"));
  EXPECT_THAT(error("{{ '\\ud800' }}"), HasSubstr("stands for no character"));
  EXPECT_THAT(error("{{ '\\N{DASH}' }}"), HasSubstr("not supported"));
}

TEST(PythonTextTest, FloatsAsPythonSpellsThem) {
  EXPECT_EQ(ReprFloat(0.1), "0.1");
  EXPECT_EQ(ReprFloat(1e16), "1e+16");
  EXPECT_EQ(ReprFloat(9999999999999998.0), "9999999999999998.0");
  EXPECT_EQ(ReprFloat(1e-4), "0.0001");
  EXPECT_EQ(ReprFloat(1.25e-5), "1.25e-05");
  EXPECT_EQ(ReprFloat(1e100), "1e+100");
  EXPECT_EQ(ReprFloat(-0.0), "-0.0");
  EXPECT_EQ(ReprFloat(123.0), "123.0");
  EXPECT_EQ(ReprFloat(std::numeric_limits<double>::max()),
            "1.7976931348623157e+308");
  EXPECT_EQ(ReprFloat(std::nan("")), "nan");
}

TEST(PythonTextTest, IntegersToTheirEnds) {
  const Integer max = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(ReprInteger(max + 1), "9223372036854775808");
  Integer least = 1;
  for (int i = 0; i < 127; ++i) least *= (i == 126 ? -2 : 2);
  EXPECT_EQ(ReprInteger(least), "-170141183460469231731687303715884105728");
  bool too_large = false;
  EXPECT_TRUE(ParseInteger("-170141183460469231731687303715884105728", 10,
                           &too_large) == least);
  EXPECT_FALSE(
      ParseInteger("170141183460469231731687303715884105728", 10, &too_large)
          .has_value());
  EXPECT_TRUE(too_large);
}

TEST(PythonTextTest, FindsTheLastPlace) {
  EXPECT_EQ(FindLastText("abcabc", "bc", 6), 4u);
  EXPECT_EQ(FindLastText("abcabc", "bc", 5), 1u);
  EXPECT_EQ(FindLastText("abc", "", 2), 2u);
  EXPECT_EQ(FindLastText("abc", "x", 3), std::string::npos);
  EXPECT_EQ(FindLastText("a", "abc", 1), std::string::npos);
}

TEST(RunTest, GivesMemoryBack) {
  Limits limits;
  limits.bytes = 10'000;
  jinja::Run run(limits, absl::Now());
  // Far more than the limit in all, but never at one time.
  for (int i = 0; i < 100; ++i) {
    const auto text = run.String(std::string(5'000, 'x'));
    ASSERT_TRUE(text.ok()) << i << ": " << text.status();
    const auto list = run.List({*text, *text});
    ASSERT_TRUE(list.ok()) << i << ": " << list.status();
  }
  const auto first = run.String(std::string(6'000, 'x'));
  EXPECT_TRUE(first.ok());
  EXPECT_EQ(run.String(std::string(6'000, 'x')).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(RunTest, StepsAndLengthsEnd) {
  Limits limits;
  limits.steps = 10;
  limits.string_bytes = 100;
  jinja::Run run(limits, absl::Now());
  EXPECT_FALSE(run.String(std::string(101, 'x')).ok());
  EXPECT_TRUE(run.Spend(10 - 2).ok());
  EXPECT_EQ(run.Spend(3).code(), absl::StatusCode::kResourceExhausted);
}

// Wherever in a lookup the budget ends, that is an error like any other.
TEST(RunTest, StepsMayEndInAnyPlaceOfALookup) {
  for (int64_t steps = 0; steps < 20; ++steps) {
    Limits limits;
    limits.steps = steps;
    jinja::Run run(limits, absl::Now());
    const auto list = run.List({Value::Int(1)});
    if (!list.ok()) continue;
    const auto item = GetItem(run, *list, Value::Int(5));
    EXPECT_TRUE(item.ok() || absl::IsResourceExhausted(item.status())) << steps;
  }
}

TEST(DictTest, FindsAmongManyKeys) {
  jinja::Run run(Limits{}, absl::Now());
  std::vector<DictRep::Entry> entries;
  for (int i = 0; i < 1000; ++i) {
    entries.emplace_back(*run.String(absl::StrCat("k", i)), Value::Int(i));
    entries.emplace_back(Value::Int(i), Value::Int(-i));
  }
  entries.emplace_back(Value::Float(5.0), Value::Int(55));
  const Value dict = *run.Dict(std::move(entries));
  EXPECT_EQ(dict.dict().entries.size(), 2000u);
  EXPECT_TRUE(dict.dict().Find("k999")->as_integer() == 999);
  EXPECT_TRUE(dict.dict().Find(Value::Int(5))->as_integer() == 55);
  EXPECT_TRUE(dict.dict().Find(Value::Bool(true))->as_integer() == -1);
  EXPECT_EQ(dict.dict().Find("k1000"), nullptr);
  EXPECT_EQ(dict.dict().Find(dict), nullptr);
}

TEST(ValueTextTest, JsonOfOtherThings) {
  jinja::Run run(Limits{}, absl::Now());
  const auto json = ToJson(run, Value::Float(std::nan("")), JsonStyle{});
  EXPECT_EQ(*json, "NaN");
  EXPECT_EQ(ToJson(run, Value(), JsonStyle{}).status().message(),
            "Object of type Undefined is not JSON serializable");
}

}  // namespace
}  // namespace baton::router::jinja
