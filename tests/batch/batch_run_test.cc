#include "batch/batch_run.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "common/output_file.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scratch_dir.h"

namespace baton::batch {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;

constexpr char kUsage[] =
    R"({"usage": {"prompt_tokens": 2, "completion_tokens": 3}})";

CallEnd Status(int status, const std::string& body = kUsage) {
  return {.answer = {.status = status, .request_id = "r", .body = body}};
}

CallEnd Broke() {
  return {.kind = CallEndKind::kBroke,
          .answer = {.error_code = "no_answer", .error = "refused"}};
}

// A server of the test's: says how each try ends, after how long. Time passes
// only while it is waited for.
class ScriptedCalls final : public Calls {
 public:
  struct Reply {
    absl::Duration after = absl::Milliseconds(10);
    CallEnd end;
  };
  // Of a request, its try (from 0) and how many are open besides.
  using Script =
      std::function<Reply(const std::string& id, int attempt, size_t open)>;

  ScriptedCalls(test::ManualClock* clock, Script script)
      : clock_(*clock), script_(std::move(script)) {}

  void Start(int64_t call, const BatchRequest& request) override {
    const absl::Time now = clock_.Now();
    const int attempt = static_cast<int>(tries[request.custom_id].size());
    tries[request.custom_id].push_back(now);
    Reply reply = script_(request.custom_id, attempt, open_.size());
    reply.end.call = call;
    open_.emplace(now + reply.after, std::move(reply.end));
    most_open = std::max(most_open, open_.size());
  }

  std::vector<CallEnd> Wait(absl::Duration timeout) override {
    absl::Time until = clock_.Now() + timeout;
    if (!open_.empty()) until = std::min(until, open_.begin()->first);
    clock_.Advance(std::max(until - clock_.Now(), absl::ZeroDuration()));
    std::vector<CallEnd> ends;
    while (!open_.empty() && open_.begin()->first <= clock_.Now()) {
      ends.push_back(std::move(open_.begin()->second));
      open_.erase(open_.begin());
    }
    return ends;
  }

  // When each was tried.
  std::map<std::string, std::vector<absl::Time>> tries;
  size_t most_open = 0;

 private:
  test::ManualClock& clock_;
  const Script script_;
  std::multimap<absl::Time, CallEnd> open_;
};

class BatchRunTest : public testing::Test {
 protected:
  BatchRunTest() {
    options_.on_progress = [](const BatchProgress&) { return true; };
  }

  void WriteRequests(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      absl::StrAppend(&text, R"({"custom_id": "q)", i,
                      R"(", "url": "/v1/completions", "body": {}})", "\n");
    }
    ASSERT_TRUE(WriteTextFile(RequestsPath(), text).ok());
  }
  std::string RequestsPath() const { return scratch_.path() + "/requests"; }
  std::string ResultsPath() const { return scratch_.path() + "/results"; }

  BatchEnd RunAll(ScriptedCalls::Script script, bool resume = false) {
    calls_ = std::make_unique<ScriptedCalls>(&clock_, std::move(script));
    auto requests = RequestFile::Open(RequestsPath());
    auto results = resume ? ResultFile::Resume(ResultsPath())
                          : ResultFile::Create(ResultsPath());
    EXPECT_TRUE(requests.ok() && results.ok());
    auto end = RunBatch(&*requests, &*results, calls_.get(), &clock_, options_);
    EXPECT_TRUE(end.ok()) << end.status();
    EXPECT_TRUE(results->Finish().ok());
    return *std::move(end);
  }

  // What the file has, by custom_id.
  std::map<std::string, json> Results() const {
    std::map<std::string, json> results;
    std::ifstream in(ResultsPath());
    std::string line;
    while (std::getline(in, line)) {
      json result = json::parse(line);
      const std::string id = result["custom_id"];
      EXPECT_FALSE(results.contains(id)) << id << " twice";
      results[id] = std::move(result);
    }
    return results;
  }

  // Between tries of a request, in seconds.
  std::vector<double> Pauses(const std::string& id) const {
    const auto& tries = calls_->tries.at(id);
    std::vector<double> pauses;
    for (size_t i = 1; i < tries.size(); ++i) {
      pauses.push_back(absl::ToDoubleSeconds(tries[i] - tries[i - 1]));
    }
    return pauses;
  }

  const test::ScratchDir scratch_;
  test::ManualClock clock_;
  BatchOptions options_;
  std::unique_ptr<ScriptedCalls> calls_;
};

TEST_F(BatchRunTest, AsksForAllAndWritesThemDown) {
  WriteRequests(100);
  options_.max_in_flight = 8;
  const BatchEnd end = RunAll([](const std::string& id, int, size_t) {
    return ScriptedCalls::Reply{.end = Status(id == "q7" ? 400 : 200)};
  });
  EXPECT_EQ(end.stopped, "");
  EXPECT_EQ(end.progress.answered, 99);
  EXPECT_EQ(end.progress.failed, 1);
  EXPECT_EQ(end.progress.failed_by_status.at(400), 1);
  EXPECT_EQ(end.progress.prompt_tokens, 2 * 99);
  EXPECT_EQ(end.progress.output_tokens, 3 * 99);
  EXPECT_EQ(end.progress.again, 0);
  EXPECT_EQ(calls_->most_open, 8u);
  const auto results = Results();
  ASSERT_EQ(results.size(), 100u);
  EXPECT_EQ(results.at("q7")["response"]["status_code"], 400);
  EXPECT_EQ(results.at("q8")["response"]["body"], json::parse(kUsage));
}

TEST_F(BatchRunTest, TheOtherApisTokensCountToo) {
  WriteRequests(1);
  const BatchEnd end = RunAll([](const std::string&, int, size_t) {
    return ScriptedCalls::Reply{
        .end = Status(200, R"({"usage": {"input_tokens": 5, )"
                           R"("output_tokens": 7}})")};
  });
  EXPECT_EQ(end.progress.prompt_tokens, 5);
  EXPECT_EQ(end.progress.output_tokens, 7);
}

TEST_F(BatchRunTest, WhatIsRefusedIsAskedAgainLaterAndLater) {
  WriteRequests(3);
  const BatchEnd end = RunAll([](const std::string& id, int attempt, size_t) {
    const bool refused = id == "q1" && attempt < 8;
    return ScriptedCalls::Reply{
        .end =
            refused ? (attempt % 2 == 0 ? Status(503) : Broke()) : Status(200)};
  });
  EXPECT_EQ(end.stopped, "");
  EXPECT_EQ(end.progress.answered, 3);
  EXPECT_EQ(end.progress.again, 8);
  EXPECT_EQ(Results().size(), 3u);
  const std::vector<double> pauses = Pauses("q1");
  ASSERT_EQ(pauses.size(), 8u);
  for (size_t i = 0; i < pauses.size(); ++i) {
    const double most = std::min(60.0, static_cast<double>(1 << i));
    EXPECT_THAT(pauses[i], AllOf(Ge(most / 2), Le(most + 0.3))) << i;
  }
}

TEST_F(BatchRunTest, TheServerSaysWhenToAskAgain) {
  WriteRequests(20);
  const BatchEnd end = RunAll([](const std::string&, int attempt, size_t) {
    ScriptedCalls::Reply reply{.end = Status(attempt == 0 ? 429 : 200)};
    if (attempt == 0) reply.end.retry_after = absl::Seconds(5);
    return reply;
  });
  EXPECT_EQ(end.progress.answered, 20);
  std::vector<double> all;
  for (int i = 0; i < 20; ++i) {
    for (const double pause : Pauses(absl::StrCat("q", i))) {
      all.push_back(pause);
    }
  }
  // Never before, and not all at once.
  EXPECT_THAT(all, Each(AllOf(Ge(5.0), Le(6.5))));
  EXPECT_GT(*std::max_element(all.begin(), all.end()) -
                *std::min_element(all.begin(), all.end()),
            0.2);
}

// One that takes four at a time and refuses what is beyond.
TEST_F(BatchRunTest, FindsHowManyTheServerTakes) {
  WriteRequests(2000);
  const BatchEnd end = RunAll([](const std::string&, int, size_t open) {
    return open < 4 ? ScriptedCalls::Reply{.after = absl::Milliseconds(100),
                                           .end = Status(200)}
                    : ScriptedCalls::Reply{.after = absl::Milliseconds(1),
                                           .end = Status(429)};
  });
  EXPECT_EQ(end.stopped, "");
  EXPECT_EQ(end.progress.answered, 2000);
  EXPECT_EQ(Results().size(), 2000u);
  // A tenth of the requests at most.
  EXPECT_LT(end.progress.again, 200);
  // Four at once for 2000 of 100 ms take 50 s.
  EXPECT_LT(end.progress.elapsed, absl::Seconds(80));
}

TEST_F(BatchRunTest, NobodyThereIsSaidSoon) {
  WriteRequests(1000);
  const BatchEnd end = RunAll([](const std::string&, int, size_t) {
    return ScriptedCalls::Reply{.end = Broke()};
  });
  EXPECT_THAT(end.stopped, HasSubstr("no answer for 10s; the last: refused"));
  EXPECT_LT(end.progress.elapsed, absl::Seconds(12));
  EXPECT_EQ(Results().size(), 0u);
}

TEST_F(BatchRunTest, AServerThatComesBackIsWaitedFor) {
  WriteRequests(100);
  options_.max_in_flight = 4;
  const absl::Time down = clock_.Now() + absl::Seconds(1);
  const absl::Time up = down + absl::Minutes(5);
  const auto script = [&](const std::string&, int, size_t) {
    const absl::Time now = clock_.Now();
    return ScriptedCalls::Reply{
        .after = absl::Milliseconds(50),
        .end = now >= down && now < up ? Broke() : Status(200)};
  };
  const BatchEnd end = RunAll(script);
  EXPECT_EQ(end.stopped, "");
  EXPECT_EQ(end.progress.answered, 100);
  EXPECT_GT(end.progress.elapsed, absl::Minutes(5));
}

TEST_F(BatchRunTest, OneThatIsRefusedForEverEndsTheRun) {
  WriteRequests(10);
  const BatchEnd end = RunAll([](const std::string& id, int, size_t) {
    return ScriptedCalls::Reply{.end = Status(id == "q3" ? 429 : 200)};
  });
  EXPECT_THAT(end.stopped,
              HasSubstr("no answer for 10m; the last: status 429"));
  EXPECT_EQ(end.progress.answered, 9);
  EXPECT_EQ(end.progress.waiting, 1);
  EXPECT_LT(end.progress.elapsed, absl::Minutes(12));
}

// A long answer beside refusals is no reason to give up.
TEST_F(BatchRunTest, AnAnswerThatTakesLongIsWaitedFor) {
  WriteRequests(2);
  const BatchEnd end = RunAll([&](const std::string& id, int attempt, size_t) {
    if (id == "q0") {
      return ScriptedCalls::Reply{.after = absl::Hours(1), .end = Status(200)};
    }
    return ScriptedCalls::Reply{.end = Status(attempt < 5 ? 503 : 200)};
  });
  EXPECT_EQ(end.stopped, "");
  EXPECT_EQ(end.progress.answered, 2);
}

TEST_F(BatchRunTest, WhatRefusesUsAltogetherEndsTheRun) {
  WriteRequests(100);
  const BatchEnd of_key = RunAll([](const std::string&, int, size_t) {
    return ScriptedCalls::Reply{.end = Status(401)};
  });
  EXPECT_THAT(of_key.stopped, HasSubstr("API key"));
  EXPECT_EQ(Results().size(), 0u);
  const BatchEnd of_tls = RunAll(
      [](const std::string&, int, size_t) {
        ScriptedCalls::Reply reply;
        reply.end.kind = CallEndKind::kRefusedUs;
        reply.end.answer = {.error_code = "no_answer", .error = "certificate"};
        return reply;
      },
      /*resume=*/true);
  EXPECT_THAT(of_tls.stopped, HasSubstr("certificate"));
  EXPECT_EQ(Results().size(), 0u);
}

TEST_F(BatchRunTest, GoesOnWhereItWasInterrupted) {
  WriteRequests(50);
  options_.max_in_flight = 2;
  options_.look = absl::Milliseconds(20);
  options_.on_progress = [](const BatchProgress& progress) {
    return progress.answered < 20;
  };
  const auto script = [](const std::string& id, int attempt, size_t) {
    const bool fails = id == "q0" || (id == "q5" && attempt == 0);
    return ScriptedCalls::Reply{.end = Status(fails ? 500 : 200)};
  };
  const BatchEnd first = RunAll(script);
  EXPECT_TRUE(first.interrupted);
  EXPECT_EQ(first.progress.failed, 2);
  EXPECT_LT(first.progress.answered, 30);
  options_.on_progress = [](const BatchProgress&) { return true; };
  const BatchEnd second =
      RunAll([&](const std::string& id, int,
                 size_t open) { return script(id, 1, open); },
             /*resume=*/true);
  EXPECT_EQ(second.stopped, "");
  EXPECT_EQ(second.progress.earlier, first.progress.answered);
  EXPECT_EQ(second.progress.answered, 49 - first.progress.answered);
  EXPECT_EQ(second.progress.failed, 1);
  EXPECT_EQ(Results().size(), 50u);
  // Only what had no answer, or none that was of use, was asked.
  EXPECT_EQ(calls_->tries.size(),
            50u - static_cast<size_t>(first.progress.answered));
  EXPECT_TRUE(calls_->tries.contains("q5"));
}

}  // namespace
}  // namespace baton::batch
