#include "router/request_history.h"

#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

EndedRequest Ended(const std::string& id, const std::string& error = "") {
  EndedRequest request;
  request.id = id;
  request.error = error;
  return request;
}

TEST(RequestHistoryTest, TheNewestOfAnIdWins) {
  RequestHistory history({});
  history.Add(Ended("a", "first"));
  history.Add(Ended("b"));
  history.Add(Ended("a", "second"));
  ASSERT_NE(history.Find("a"), nullptr);
  EXPECT_EQ(history.Find("a")->error, "second");
  EXPECT_NE(history.Find("b"), nullptr);
  EXPECT_EQ(history.Find("c"), nullptr);
}

TEST(RequestHistoryTest, TheOldestLeaveFirst) {
  RequestHistory history({.max_requests = 3});
  for (const char* id : {"a", "b", "a", "c", "d"}) history.Add(Ended(id));
  EXPECT_EQ(history.size(), 3u);
  // The first "a" has left, the second one has not.
  EXPECT_NE(history.Find("a"), nullptr);
  EXPECT_EQ(history.Find("b"), nullptr);
  history.Add(Ended("e"));
  EXPECT_EQ(history.Find("a"), nullptr);
  EXPECT_NE(history.Find("c"), nullptr);
}

TEST(RequestHistoryTest, BytesAreBounded) {
  const size_t each = Ended("0000", std::string(1000, 'x')).ByteSize();
  EXPECT_GT(each, 1000u);
  RequestHistory history({.max_bytes = 10 * each});
  for (int i = 1000; i < 2000; ++i) {
    history.Add(Ended(absl::StrCat(i), std::string(1000, 'x')));
    EXPECT_LE(history.bytes(), 10 * each);
  }
  EXPECT_EQ(history.size(), 10u);
  EXPECT_NE(history.Find("1990"), nullptr);
  EXPECT_EQ(history.Find("1989"), nullptr);
  // What does not fit at all empties it, and is not kept itself.
  history.Add(Ended("large", std::string(20 * each, 'x')));
  EXPECT_EQ(history.size(), 0u);
  EXPECT_EQ(history.bytes(), 0u);
  EXPECT_EQ(history.Find("large"), nullptr);
  history.Add(Ended("1"));
  EXPECT_NE(history.Find("1"), nullptr);
}

TEST(RequestHistoryTest, CandidatesCountAsBytes) {
  EndedRequest request = Ended("a");
  const size_t before = request.ByteSize();
  PlacementLog::Entry entry;
  entry.candidates.resize(64);
  request.placements.Add(std::move(entry));
  EXPECT_GE(request.ByteSize(),
            before + 64 * sizeof(scheduling::PlacementCandidate));
}

TEST(RequestHistoryTest, OfManyIdsNoneIsLost) {
  RequestHistory history({.max_requests = 100});
  for (int i = 0; i < 10'000; ++i) {
    history.Add(Ended(absl::StrCat(i * 7919 % 250), absl::StrCat(i)));
    if (i < 250) continue;
    // A period of 250 ids: the last 100 are there, and are the newest.
    for (int back : {0, 50, 99}) {
      const auto* found = history.Find(absl::StrCat((i - back) * 7919 % 250));
      ASSERT_NE(found, nullptr) << i << " " << back;
      ASSERT_EQ(found->error, absl::StrCat(i - back));
    }
    ASSERT_EQ(history.Find(absl::StrCat((i - 100) * 7919 % 250)), nullptr);
  }
}

TEST(PlacementLogTest, KeepsTheFirstAndTheLastOnes) {
  PlacementLog log;
  const absl::Time start = absl::UnixEpoch();
  log.Ended("nothing was placed yet");
  for (int i = 0; i < 20; ++i) {
    log.Add({.at = start + absl::Seconds(i), .total_tokens = i});
    log.Ended(absl::StrCat("end ", i));
    log.Ended("a second word");
  }
  ASSERT_EQ(log.entries().size(), PlacementLog::kMaxEntries);
  EXPECT_EQ(log.left_out(), 4u);
  EXPECT_EQ(log.entries()[0].total_tokens, 0);
  EXPECT_EQ(log.entries()[1].total_tokens, 5);
  EXPECT_EQ(log.entries()[15].total_tokens, 19);
  EXPECT_EQ(log.entries()[15].ended, "end 19");
  v1::ExplainRequestResponse response;
  log.Describe(start, WorkerNames(), &response);
  EXPECT_EQ(response.placements_left_out(), 4u);
  EXPECT_EQ(response.placements(1).at_seconds(), 5);
}

TEST(PlacementLogTest, EndsAreCutBetweenCharacters) {
  PlacementLog log;
  log.Add({});
  std::string text(PlacementLog::kMaxEndedBytes - 1, 'x');
  log.Ended(text + "€ and more");
  EXPECT_EQ(log.entries()[0].ended, text);
}

}  // namespace
}  // namespace baton::router
