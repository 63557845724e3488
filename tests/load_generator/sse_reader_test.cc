#include "load_generator/sse_reader.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::load_generator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Events(const std::string& bytes, size_t piece) {
  SseReader reader;
  std::vector<std::string> events;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    EXPECT_TRUE(reader.Feed(
        absl::string_view(bytes).substr(at, piece),
        [&](absl::string_view data) { events.emplace_back(data); }));
  }
  return events;
}

TEST(SseReaderTest, ReadsEventsHoweverTheyAreCut) {
  const std::string bytes =
      ": a comment\n"
      "data: {\"a\":1}\n\n"
      "event: x\r\ndata:two\r\ndata: lines\r\n\r\n"
      "data: [DONE]\n\n"
      "data: has no end\n";
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    EXPECT_THAT(Events(bytes, piece),
                ElementsAre("{\"a\":1}", "two\nlines", "[DONE]"))
        << piece;
  }
}

TEST(SseReaderTest, EmptyLinesAreNoEvents) {
  EXPECT_THAT(Events("\n\n\r\nid: 4\n\n", 3), IsEmpty());
}

TEST(SseReaderTest, AnEventHasABound) {
  SseReader reader;
  const auto none = [](absl::string_view) {};
  ASSERT_TRUE(reader.Feed("data: ", none));
  const std::string much(size_t{8} << 20, 'x');
  EXPECT_TRUE(reader.Feed(much, none));
  EXPECT_FALSE(reader.Feed(much, none));
}

}  // namespace
}  // namespace baton::load_generator
