#include "router/tool_calls/json_scanner.h"

#include <random>
#include <string>

#include <gtest/gtest.h>

#include "common/json.h"

namespace baton::router {
namespace {

using Step = JsonScanner::Step;

// How much of the text is one value; npos if it is none, or not whole.
size_t ScannedBytes(const std::string& text) {
  JsonScanner scanner;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (scanner.Take(text[i])) {
      case Step::kMore:
        break;
      case Step::kLast:
        return i + 1;
      case Step::kPast:
        return i;
      case Step::kBad:
        return std::string::npos;
    }
  }
  return std::string::npos;
}

TEST(JsonScannerTest, FindsTheEndOfEveryValue) {
  for (const std::string value :
       {R"({})", R"([])", R"("")", "0", "-0", "12", "0.5", "-1.25e+10", "1E5",
        "2e-3", "true", "false", "null", R"("a\"b\\")", R"("\u00e9\/\n")",
        R"({"a": {"b": [1, 2, {"c": "}]"}]}, "d": null})", "[ 1 ,\n[ ] , {} ]",
        R"("größe 大")", R"([-0.1e2,"x"])"}) {
    EXPECT_EQ(ScannedBytes(value + ","), value.size()) << value;
    EXPECT_EQ(ScannedBytes(" \t\r\n" + value + "}"), value.size() + 4) << value;
  }
}

TEST(JsonScannerTest, RefusesWhatIsNoJson) {
  for (const std::string text :
       {"{,",         "{]",    "[}",       "[1,]", "{\"a\",", "{\"a\":}",
        "{\"a\":1,}", "{a",    "{1",       "'a'",  "+1",      "01",
        "-,",         "1.,",   "1e,",      "1e+,", ".5",      "tru ",
        "nulL",       "\"\\x", "\"\\u12g", "[1 2", "]",       "}",
        ",",          ":",     "\"a\\\n",  "[\v",  "NaN",     "{\"a\":1 \"b\"",
        "[1.5.",      "[00",   "[1e5."}) {
    EXPECT_EQ(ScannedBytes(text), std::string::npos) << text;
  }
}

TEST(JsonScannerTest, IsNotDeeperThanItsBound) {
  const size_t most = JsonScanner::kMaxDepth;
  EXPECT_EQ(ScannedBytes(std::string(most, '[') + std::string(most, ']')),
            2 * most);
  JsonScanner scanner;
  for (size_t i = 0; i < most; ++i) ASSERT_EQ(scanner.Take('['), Step::kMore);
  EXPECT_EQ(scanner.Take('['), Step::kBad);
}

TEST(JsonScannerTest, ControlCharactersMayStandInStrings) {
  EXPECT_EQ(ScannedBytes("\"a\n\tb\""), 6);
}

TEST(JsonScannerTest, KnowsWhereStringsAre) {
  JsonScanner scanner;
  std::string seen;
  for (const char c : std::string(R"({"a":"b\u0041\"","c":1})")) {
    seen += scanner.in_string() ? 's' : '.';
    scanner.Take(c);
  }
  EXPECT_EQ(seen, "..ss..ssssssssss..ss...");
}

// Against another reader, on JSON with a byte changed, left out or put in.
TEST(JsonScannerTest, AgreesWithAnotherReader) {
  std::mt19937 random(20251);
  const std::string good =
      R"({"a": [1, -2.5e-3, true, null], "b\n": {"c": "\u00e9 }]"}, "d": 0})";
  const std::string bytes = "{}[]\",:\\0123456789eE+-.truefalsn u";
  const auto pick = [&](size_t n) { return random() % n; };
  int whole = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = good;
    for (size_t changes = pick(3); changes > 0; --changes) {
      const size_t at = 1 + pick(text.size() - 1);
      const char c = bytes[pick(bytes.size())];
      const size_t how = pick(3);
      if (how == 0) text[at] = c;
      if (how == 1) text.erase(at, 1);
      if (how == 2) text.insert(at, 1, c);
    }
    const size_t size = ScannedBytes(text);
    const std::string end = text.substr(0, size);  // all of it if none
    EXPECT_EQ(nlohmann::json::accept(end), size != std::string::npos) << text;
    whole += size != std::string::npos;
  }
  EXPECT_GT(whole, 1000);
}

}  // namespace
}  // namespace baton::router
