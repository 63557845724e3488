// Grammars that are kept for the next request, by many threads.
#include "router/output_format/response_grammars.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "scheduling/grammar_automaton.h"

namespace baton::router {
namespace {

v1::ResponseFormat RegexFormat(const std::string& pattern) {
  v1::ResponseFormat format;
  format.set_regex(pattern);
  return format;
}

TEST(ResponseGrammarsTest, ThreadsGetWhatTheyAskFor) {
  ResponseGrammars grammars;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&grammars, t] {
      for (int i = 0; i < 300; ++i) {
        // More than are kept, and some of them again and again.
        const std::string text =
            absl::StrCat("x", (i * (t + 1)) % (i % 3 == 0 ? 5 : 97));
        const auto grammar = grammars.Get(RegexFormat(text), std::nullopt);
        ASSERT_TRUE(grammar.ok()) << grammar.status();
        EXPECT_TRUE(*scheduling::Matches(**grammar, text));
        EXPECT_FALSE(grammars.Get(RegexFormat("("), std::nullopt).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(*grammars.Get(RegexFormat("x1"), std::nullopt),
            *grammars.Get(RegexFormat("x1"), std::nullopt));
}

TEST(ResponseGrammarsTest, LongOnesAreNotKept) {
  ResponseGrammars grammars;
  v1::ResponseFormat format;
  for (size_t i = 0; i * 20'000 <= ResponseGrammars::kMaxKeptBytes; ++i) {
    format.mutable_choice()->add_texts(
        std::string(20'000, static_cast<char>('a' + i)));
  }
  const auto grammar = grammars.Get(format, std::nullopt);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  EXPECT_NE(*grammars.Get(format, std::nullopt), *grammar);
}

}  // namespace
}  // namespace baton::router
