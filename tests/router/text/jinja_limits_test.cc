// What a hostile template, or a hostile message, cannot do: crash, hang, or
// take memory without end. Each case ends with an error within its bounds.

#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "router/text/chat_template.h"

namespace baton::router::jinja_limits_test {
namespace {

using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

absl::StatusOr<std::string> Render(const std::string& source,
                                   const Json& arguments = {}) {
  const auto chat_template = ChatTemplate::Parse(source, {});
  if (!chat_template.ok()) return chat_template.status();
  ChatInput input;
  input.messages = Json::array();
  input.arguments = arguments;
  return (*chat_template)->Render(input);
}

void ExpectBounded(const std::string& source, const Json& arguments = {}) {
  const absl::Status status = Render(source, arguments).status();
  EXPECT_THAT(status.code(), AnyOf(Eq(absl::StatusCode::kResourceExhausted),
                                   Eq(absl::StatusCode::kInvalidArgument)))
      << source.substr(0, 100) << ": " << status;
}

std::string Repeated(const std::string& part, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += part;
  return text;
}

TEST(JinjaLimitsTest, LongTexts) {
  for (const char* source : {
           "{{ 'x' * 10**9 }}",
           "{{ 'x' * 10**20 }}",
           "{{ [0] * 10**9 }}",
           "{{ [[0] * 10**6] * 10**7 }}",
           "{{ 'x'.ljust(10**9) }}",
           "{{ 'x'.rjust(10**18) }}",
           "{{ 'x'.center(10**9, '\u00e9') }}",
           "{{ 'x'.zfill(10**12) }}",
           "{{ '\t'.expandtabs(10**12) }}",
           "{{ '%1000000000d' % 5 }}",
           "{{ '%.1000000000f' % 5 }}",
           "{{ '%*d' % (10**9, 5) }}",
           "{{ '{:1000000000}'.format(5) }}",
           "{{ '{:{}}'.format(5, 10**9) }}",
           "{{ 'x' | center(10**9) }}",
           "{{ 'a\nb' | indent(10**9) }}",
           "{{ [1] | tojson(indent=10**9) }}",
           "{{ ('x' * 10**6).replace('x', 'y' * 10**6) }}",
           "{{ ('x' * 10**6) | replace('', 'y' * 10**6) }}",
           "{{ ('x' * 10**6).join('y' * 10**6) }}",
           "{{ ['x' * 10**6] | map('center', 10**9) | list }}",
           "{{ [1] | batch(10**12, 'x') | list }}",
           "{{ [1] | slice(10**12) | list }}",
           "{{ range(10**12) }}",
           "{{ strftime_now('%1000000d') }}",
           "{{ strftime_now('x' * 10**6) }}",
           "{{ ('x,' * 10**7).split(',') | length }}",
           "{{ ('x ' * 10**7).split() | length }}",
           "{{ ('\n' * 3 * 10**7).splitlines() | length }}",
           "{{ ('x' * 3 * 10**7) | list | length }}",
           "{{ 2 ** (10**9) }}",
           "{{ 10 ** 30 * 10 ** 30 }}",
           "{{ -(2 ** 126 + (2 ** 126 - 1)) - 2 }}",
           "{{ '9' * 50 | int }}{{ ('9' * 50) | int }}",
       }) {
    ExpectBounded(source);
  }
}

TEST(JinjaLimitsTest, TextsThatGrow) {
  ExpectBounded(
      "{% set ns = namespace(s='x') %}{% for i in range(100000) %}"
      "{% set ns.s = ns.s + ns.s %}{% endfor %}");
  ExpectBounded(
      "{% set ns = namespace(s=[0]) %}{% for i in range(100000) %}"
      "{% set ns.s = ns.s + ns.s %}{% endfor %}");
  ExpectBounded("{% for i in range(100000) %}{{ 'x' * 10000 }}{% endfor %}");
  ExpectBounded(
      "{% macro m() %}{% for i in range(100000) %}{{ 'x' * 10000 }}"
      "{% endfor %}{% endmacro %}{{ m() }}");
  ExpectBounded(
      "{% set ns = namespace(d={}) %}{% for i in range(100000) %}"
      "{% set ns.d = dict(ns.d, **{'k' ~ i: i}) %}{% endfor %}");
}

TEST(JinjaLimitsTest, LoopsWithoutEnd) {
  ExpectBounded(
      "{% for a in range(100000) %}{% for b in range(100000) %}"
      "{% endfor %}{% endfor %}");
  ExpectBounded(
      "{% for a in range(100000) %}{% for b in range(100000) %}"
      "{% if loop.last %}x{% endif %}{% endfor %}{% endfor %}");
  ExpectBounded(
      "{% for a in range(99999) if range(99999) | list | length > 9 %}"
      "{% endfor %}");
  ExpectBounded(
      "{% set x = range(99999) | list %}{% for a in x %}"
      "{{ x | sort | length }}{% endfor %}");
  ExpectBounded(
      "{% set x = 'a' * 10**7 %}{% for a in range(99999) %}"
      "{{ 'b' in x }}{{ x.count('a') }}{{ x == x ~ 'a' }}{% endfor %}");
  ExpectBounded(
      "{% set x = 'a' * 10**7 %}{% for a in range(99999) %}"
      "{{ {x: 1}[x] }}{% endfor %}");
}

TEST(JinjaLimitsTest, SearchesTakeLinearTime) {
  // With a quadratic search each of these would take hours.
  EXPECT_EQ(*Render("{{ ('a' * 10**7).find('a' * 5 * 10**6 ~ 'b') }}"), "-1");
  EXPECT_EQ(*Render("{{ ('a' * 10**7).rfind('b' ~ 'a' * 5 * 10**6) }}"), "-1");
  EXPECT_EQ(*Render("{{ ('a' * 5 * 10**6 ~ 'b') in 'a' * 10**7 }}"), "False");
  EXPECT_EQ(*Render("{{ ('a' * 10**7).count('a' * 5 * 10**6 ~ 'b') }}"), "0");
}

TEST(JinjaLimitsTest, Recursion) {
  ExpectBounded("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
  ExpectBounded(
      "{% macro a() %}{{ b() }}{% endmacro %}"
      "{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}");
  ExpectBounded(
      "{% macro m() %}{{ caller() }}{% endmacro %}"
      "{% macro n() %}{% call m() %}{{ n() }}{% endcall %}{% endmacro %}"
      "{{ n() }}");
  ExpectBounded("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}");
  ExpectBounded(
      "{% macro m(x=none) %}{% for i in [1, 2] %}{{ m(i) if 1 else 2 }}"
      "{% endfor %}{% endmacro %}{{ m() }}");
}

TEST(JinjaLimitsTest, DeepSources) {
  ExpectBounded("{{ " + Repeated("(", 100'000) + "1" + Repeated(")", 100'000) +
                " }}");
  ExpectBounded("{{ " + Repeated("[", 100'000) + Repeated("]", 100'000) +
                " }}");
  ExpectBounded("{{ " + Repeated("not ", 100'000) + "1 }}");
  ExpectBounded("{{ " + Repeated("-", 100'000) + "1 }}");
  ExpectBounded("{{ 1" + Repeated(" + 1", 100'000) + " }}");
  ExpectBounded("{{ x" + Repeated(".x", 100'000) + " }}");
  ExpectBounded("{{ x" + Repeated("|e", 100'000) + " }}");
  ExpectBounded("{{ x" + Repeated("()", 100'000) + " }}");
  ExpectBounded("{{ 1" + Repeated(" if 1 else 1", 100'000) + " }}");
  ExpectBounded("{{ 1" + Repeated(" and 1", 100'000) + " }}");
  ExpectBounded(Repeated("{% if 1 %}", 50'000));
  ExpectBounded(Repeated("{% for x in y %}", 50'000));
  ExpectBounded("{% for " + Repeated("(", 100'000) + "x in y %}");
  ExpectBounded(std::string(2 << 20, 'x'));
  // As deep as is allowed works.
  EXPECT_EQ(
      *Render("{{ " + Repeated("(", 60) + "1" + Repeated(")", 60) + " }}"),
      "1");
  EXPECT_EQ(*Render("{{ 1" + Repeated(" + 1", 140) + " }}"), "141");
  EXPECT_EQ(
      *Render(Repeated("{% if 1 %}", 140) + "x" + Repeated("{% endif %}", 140)),
      "x");
  EXPECT_EQ(*Render("{% if 0 %}" + Repeated("{% elif 0 %}a", 2000) +
                    "{% else %}b{% endif %}"),
            "b");
}

TEST(JinjaLimitsTest, DeepValues) {
  ExpectBounded(
      "{% set ns = namespace(x=[]) %}{% for i in range(1000) %}"
      "{% set ns.x = [ns.x] %}{% endfor %}");
  ExpectBounded(
      "{% set ns = namespace(x={}) %}{% for i in range(1000) %}"
      "{% set ns.x = {'a': ns.x} %}{% endfor %}");
  Json deep = 1;
  for (int i = 0; i < 1000; ++i) deep = Json::array({deep});
  ExpectBounded("{{ deep }}", {{"deep", deep}});
}

TEST(JinjaLimitsTest, SharedPartsAreNotSmall) {
  // Sixty pairs of pairs: small in memory, endless when printed or compared.
  const std::string kPairs =
      "{% set ns = namespace(x=(0,), y=(0,)) %}{% for i in range(60) %}"
      "{% set ns.x = (ns.x, ns.x) %}{% set ns.y = (ns.y, ns.y) %}{% endfor %}";
  for (const char* use : {"{{ ns.x }}", "{{ ns.x == ns.y }}", "{{ {ns.x: 1} }}",
                          "{{ [ns.x, ns.y] | unique | list }}"}) {
    ExpectBounded(kPairs + use);
  }
}

TEST(JinjaLimitsTest, ValuesThatHoldThemselves) {
  ExpectBounded("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}");
  ExpectBounded("{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns }}");
  ExpectBounded(
      "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns | tojson }}");
  // A macro that is kept beyond its block, which holds the macro.
  EXPECT_EQ(*Render("{% set ns = namespace() %}{% for i in [1, 2] %}"
                    "{% macro m() %}{{ i }}{{ ns.m is defined }}{% endmacro %}"
                    "{% set ns.m = m %}{% endfor %}{{ ns.m() }}"),
            "2True");
  // A loop that is kept, and still looks at its filter.
  EXPECT_EQ(*Render("{% set ns = namespace() %}{% if true %}"
                    "{% set k = 2 %}{% for x in [1, 2, 3] if x < k + 1 %}"
                    "{% set ns.l = loop %}{% break %}{% endfor %}{% endif %}"
                    "{{ ns.l.nextitem }}{{ ns.l.length }}{{ ns.l }}"),
            "22<LoopContext 1/2>");
  // A caller that is kept.
  EXPECT_EQ(*Render("{% set ns = namespace() %}{% macro m() %}"
                    "{% set ns.c = caller %}{% endmacro %}"
                    "{% for i in [7] %}{% call m() %}{{ i }}{% endcall %}"
                    "{% endfor %}{{ ns.c() }}"),
            "7");
}

TEST(JinjaLimitsTest, DeepRecursionFitsTheStack) {
  const std::string source =
      "{% macro m(n) %}{% if true %}{% for i in [n] %}"
      "{{ ['x', m(n + 1)][0] | upper | default('y' ~ n) }}"
      "{% endfor %}{% endif %}{% endmacro %}{{ m(0) }}";
  ExpectBounded(source);
  EXPECT_THAT(std::string(Render(source).status().message()),
              HasSubstr("maximum recursion depth exceeded"));
}

TEST(JinjaLimitsTest, HostileMessages) {
  const std::string source =
      "{% for m in messages %}{{ m.content.strip().split('\n')[0] | tojson }}"
      "{{ m['role'] }}{{ m.x.y }}{% endfor %}";
  const auto chat_template = ChatTemplate::Parse(source, {});
  ASSERT_TRUE(chat_template.ok());
  const auto status = [&](const Json& messages) {
    ChatInput input;
    input.messages = messages;
    return (*chat_template)->Render(input).status();
  };
  for (const Json& message :
       {Json(1), Json("x"), Json(nullptr), Json::array(), Json::object(),
        Json({{"content", 1}}), Json({{"content", {{"strip", 1}}}}),
        Json({{"content", std::string("\xff\xfe")}})}) {
    EXPECT_FALSE(status(Json::array({message})).ok()) << message;
  }
  EXPECT_EQ(status(Json::array({{{"content", 5}}})).message(),
            "chat template: line 1: 'int object' has no attribute 'strip'");
  // Ill-formed text is repaired.
  ChatInput input;
  input.messages =
      Json::array({{{"content", "a\xff"}, {"role", "r"}, {"x", {{"y", "z"}}}}});
  EXPECT_EQ(*(*chat_template)->Render(input), "\"a\uFFFD\"rz");
}

// Random pieces of templates, put together at random: whatever comes of it, it
// comes with a status.
TEST(JinjaLimitsTest, RandomTemplatesEnd) {
  const std::vector<std::string> pieces = {
      "{{ ",     " }}",       "{% ",          " %}",         "{%- ",
      " -%}",    "{# ",       " #}",          "if ",         "for ",
      "x ",      "in ",       "messages ",    "endif ",      "endfor ",
      "set ",    "= ",        "macro ",       "m(",          ") ",
      "( ",      "[ ",        "] ",           "{ ",          "} ",
      "1 ",      "'a' ",      "| ",           "join ",       "map('upper') ",
      "tojson ", ". ",        "is ",          "defined ",    "not ",
      "and ",    "+ ",        "* ",           "** ",         "% ",
      "~ ",      "loop.",     "index ",       "9999999999 ", ", ",
      ": ",      "else ",     "namespace() ", "range(3) ",   "\"b\" ",
      "none ",   "raw ",      "endraw ",      "call ",       "endcall ",
      "filter ", "caller() ", "\n",           "é",           "recursive ",
      "with ",   "endwith ",  "break ",       "| sort ",     "| list "};
  std::mt19937 random(7);
  int rendered = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string source;
    const int count = static_cast<int>(random() % 14);
    for (int j = 0; j < count; ++j) source += pieces[random() % pieces.size()];
    // Half of them as an expression, so that more get past the parser.
    if (i % 2 == 0) source = "{{ " + source + " }}";
    rendered += Render(source, {{"x", {1, "a", nullptr}}}).ok() ? 1 : 0;
  }
  EXPECT_GT(rendered, 500);
}

}  // namespace
}  // namespace baton::router::jinja_limits_test
