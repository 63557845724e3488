// A decode worker that checks guesses at its streams' next tokens: what a step
// brings when they come true, when they do not, and when the stream ends among
// them.
#include <numeric>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/timed_worker.h"

namespace baton::worker::timed {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr int32_t kPrompt = 20;

WorkerOptions DraftOptions(int32_t draft_tokens) {
  WorkerOptions options;
  options.name = "drafts";
  options.draft_tokens = draft_tokens;
  options.itl_target_ms = 0;
  return options;
}

v1::SequenceSpec DraftSpec(uint32_t max_output_tokens) {
  v1::SequenceSpec spec = TimedWorker::Spec(1, kPrompt);
  spec.set_max_output_tokens(max_output_tokens);
  return spec;
}

std::vector<uint32_t> UpTo(uint32_t end) {
  std::vector<uint32_t> all(end);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Runs turns until the answer is there; how many.
int RunToTheEnd(TimedWorker& worker) {
  int turns = 0;
  while (!worker.said().finished && turns < 10'000) {
    worker.Turn();
    ++turns;
  }
  return turns;
}

TEST(DraftsLoopsTest, GuessesThatComeTrueSaveSteps) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, DraftOptions(8));
  worker.SendLocal(DraftSpec(200));
  const int turns = RunToTheEnd(worker);
  // Nearly nine tokens a step, once it knows what steps cost and that it is
  // right.
  EXPECT_LT(turns, 50);
  EXPECT_EQ(worker.said().tokens, UpTo(200));
  EXPECT_THAT(worker.said().values, Each(kSampled));
  const WorkerMetrics& metrics = worker.metrics();
  EXPECT_EQ(metrics.generation_tokens->Value(), 200);
  EXPECT_EQ(metrics.steps->Value(), turns);
  EXPECT_GT(metrics.drafts->Value(), 0);
  // Each came true, and one token more came of each step.
  EXPECT_EQ(metrics.accepted_draft_tokens->Value(),
            metrics.draft_tokens->Value());
  EXPECT_EQ(metrics.accepted_draft_tokens->Value(), 200 - turns);
}

// Of blocks that come as a stream grows, it has one more while it guesses.
TEST(DraftsLoopsTest, GuessesHaveRoom) {
  const auto turns = [](int32_t output_reserve) {
    WorkerOptions options = DraftOptions(16);
    options.output_reserve = output_reserve;
    TimedWorker worker(v1::WORKER_ROLE_DECODE, options);
    worker.SendLocal(DraftSpec(500));
    return RunToTheEnd(worker);
  };
  const int reserved = turns(/*output_reserve=*/500);
  EXPECT_LT(reserved, 80);
  EXPECT_EQ(turns(/*output_reserve=*/1), reserved);
}

// An answer in which nothing comes twice, and what the model guesses of it
// itself: of each eight tokens all but `wrong`. How long it takes.
class ModelGuesses {
 public:
  explicit ModelGuesses(int32_t wrong)
      : worker_(v1::WORKER_ROLE_DECODE, DraftOptions(4)) {
    worker_.engine().sampled = TokenAt;
    if (wrong == 8) return;
    worker_.engine().guessed = [wrong](int32_t index) {
      return index % 8 < wrong ? 98 : TokenAt(index);
    };
  }
  absl::Duration Run(uint32_t tokens = 400) {
    worker_.SendLocal(DraftSpec(tokens));
    const absl::Time started = worker_.clock().Now();
    RunToTheEnd(worker_);
    EXPECT_EQ(worker_.said().tokens, UpTo(tokens));
    for (int32_t i = 0; i < static_cast<int32_t>(tokens); ++i) {
      EXPECT_EQ(worker_.said().values[i], TokenAt(i)) << i;
    }
    return worker_.clock().Now() - started;
  }
  const WorkerMetrics& metrics() { return worker_.metrics(); }
  double DraftSteps() {
    return static_cast<double>(
        metrics().draft_step_seconds->Collect().histogram.sample_count);
  }

 private:
  static TokenId TokenAt(int32_t index) {
    return static_cast<TokenId>((index * index / 7 + 13 * index) % 97);
  }
  TimedWorker worker_;
};

TEST(DraftsLoopsTest, TheModelGuessesWithWeightsOfFewerBits) {
  ModelGuesses none(8), right(0), mostly(2), never(7);
  const absl::Duration alone = none.Run();
  EXPECT_EQ(none.DraftSteps(), 0);
  // Five tokens for a step and four quarters of one, at best.
  const absl::Duration best = right.Run();
  EXPECT_LT(best, 0.6 * alone);
  EXPECT_LT(mostly.Run(), 0.9 * alone);
  // And hardly a step where it is of no use.
  EXPECT_LT(never.Run(), 1.1 * alone);
  for (ModelGuesses* with : {&right, &mostly, &never}) {
    const WorkerMetrics& metrics = with->metrics();
    EXPECT_GT(with->DraftSteps(), 0);
    EXPECT_GE(metrics.draft_tokens->Value(), with->DraftSteps());
    EXPECT_EQ(metrics.steps->Value() + metrics.accepted_draft_tokens->Value(),
              400);
  }
  // Steps that guess are not counted as steps that take as long as others do.
  EXPECT_LT(right.metrics().step_prediction_error->Value(), 0.2);
}

TEST(DraftsLoopsTest, NobodyWaitsForMoreGuesses) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, DraftOptions(4));
  worker.engine().sampled = [](int32_t index) { return index % 97; };
  int32_t guesses = 0;
  bool comes = false;
  worker.engine().guessed = [&](int32_t index) {
    ++guesses;
    if (std::exchange(comes, false)) worker.SendLocal(TimedWorker::Spec(2, 40));
    return static_cast<TokenId>(index % 97);
  };
  worker.SendLocal(DraftSpec(90));
  for (int i = 0; i < 14; ++i) worker.Turn();
  guesses = 0;
  EXPECT_THAT(worker.Turn(), ElementsAre(testing::Pair(testing::_, 5)));
  EXPECT_EQ(guesses, 4);
  comes = true;
  EXPECT_THAT(worker.Turn(), ElementsAre(testing::Pair(testing::_, 2)));
  EXPECT_EQ(guesses, 5);
}

TEST(DraftsLoopsTest, WithoutTheFlagNothingIsGuessed) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, DraftOptions(0));
  worker.SendLocal(DraftSpec(50));
  EXPECT_EQ(RunToTheEnd(worker), 50);
  EXPECT_EQ(worker.metrics().drafts->Value(), 0);
}

// What comes is taken, whatever was guessed.
TEST(DraftsLoopsTest, WrongGuessesChangeNothing) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, DraftOptions(8));
  // Runs of one token, each a little longer.
  const auto token_at = [](int32_t index) {
    int32_t run = 0;
    for (int32_t begin = 0; begin <= index; begin += 2 + run) ++run;
    return static_cast<TokenId>(50 + run % 40);
  };
  worker.engine().sampled = token_at;
  worker.SendLocal(DraftSpec(400));
  EXPECT_LT(RunToTheEnd(worker), 400);
  EXPECT_EQ(worker.said().tokens, UpTo(400));
  ASSERT_THAT(worker.said().values, SizeIs(400));
  for (int32_t i = 0; i < 400; ++i) {
    ASSERT_EQ(worker.said().values[i], token_at(i)) << i;
  }
  const WorkerMetrics& metrics = worker.metrics();
  EXPECT_GT(metrics.accepted_draft_tokens->Value(), 0);
  EXPECT_LT(metrics.accepted_draft_tokens->Value(),
            metrics.draft_tokens->Value());
}

// The token that ends it may come as a guess, with more behind it.
TEST(DraftsLoopsTest, AStreamMayEndAmongItsGuesses) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, DraftOptions(8));
  // 60 61 62 ... 69 60 61 ..., whose 67 may end it, but not the first ten.
  worker.engine().sampled = [](int32_t index) { return 60 + index % 10; };
  v1::SequenceSpec spec = DraftSpec(300);
  spec.add_stop_token_ids(67);
  spec.set_min_output_tokens(60);
  // Has said as much before, so that it is known what follows.
  for (int32_t i = 0; i < 58; ++i) {
    spec.add_tokens(static_cast<uint32_t>(60 + i % 10));
  }
  worker.SendLocal(spec);
  EXPECT_LT(RunToTheEnd(worker), 10);
  std::vector<uint32_t> places = UpTo(68);
  places.erase(places.begin(), places.begin() + 58);
  EXPECT_EQ(worker.said().tokens, places);
  EXPECT_EQ(worker.said().values.back(), 67);
}

// While a prompt is computed beside it, a stream has its own token alone.
TEST(DraftsLoopsTest, PromptsComeFirst) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, DraftOptions(8));
  worker.SendLocal(DraftSpec(1000));
  for (int i = 0; i < 20; ++i) worker.Turn();
  ASSERT_GT(worker.engine().step.at(0).second, 4);
  worker.SendLocal(TimedWorker::Spec(2, 40));
  EXPECT_THAT(worker.Turn(), ElementsAre(Part(kSampled, 1), Part(2, 40)));
  EXPECT_GT(worker.Turn().at(0).second, 1);
}

// On a device a step does not wait for the tokens of the one before, unless
// there are guesses at what comes behind these.
TEST(DraftsLoopsTest, OnADeviceStepsRunAheadWhereNothingIsGuessed) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, DraftOptions(8),
                     /*on_device=*/true);
  // What was not there before, ten tokens again and again, and other news.
  const auto token_at = [](int32_t index) -> TokenId {
    if (index < 30) return 2 + index;
    return index < 150 ? 60 + index % 10 : index * 7 % 59;
  };
  worker.engine().sampled = token_at;
  worker.SendLocal(DraftSpec(200));
  const WorkerMetrics& metrics = worker.metrics();
  int32_t ahead_of_guesses = 0;
  double steps_before = 0;
  while (!worker.said().finished) {
    const double drafts = metrics.drafts->Value();
    worker.Turn();
    const bool guessed = metrics.drafts->Value() > drafts;
    ahead_of_guesses += guessed && worker.engine().has_ahead();
    // Those 30, but for the prompt's and the first.
    if (metrics.generation_tokens->Value() <= 30) {
      EXPECT_FALSE(guessed);
      steps_before = metrics.steps_ahead->Value();
    }
  }
  EXPECT_EQ(ahead_of_guesses, 0);
  EXPECT_EQ(steps_before, 28);
  ASSERT_THAT(worker.said().values, SizeIs(200));
  for (int32_t i = 0; i < 200; ++i) {
    ASSERT_EQ(worker.said().values[i], token_at(i)) << i;
  }
  // The second and the third ten tokens may show that they come again.
  EXPECT_GT(metrics.accepted_draft_tokens->Value(), 70);
  EXPECT_LT(metrics.steps->Value(), 130);
  EXPECT_GT(metrics.steps_ahead->Value(), steps_before + 40);
}

// Nor where they would not pay, or nobody asked for them.
TEST(DraftsLoopsTest, OnADeviceStepsWaitForNoGuessesInVain) {
  for (const int32_t drafts : {0, 8}) {
    TimedWorker worker(v1::WORKER_ROLE_DECODE, DraftOptions(drafts),
                       /*on_device=*/true);
    // Pairs that come again, behind which something else comes each time.
    worker.engine().sampled = [](int32_t index) -> TokenId {
      return index % 3 == 2 ? 10 + index / 3 % 90 : index % 3;
    };
    worker.SendLocal(DraftSpec(250));
    RunToTheEnd(worker);
    // One in three would be too many.
    EXPECT_GT(worker.metrics().steps_ahead->Value(), drafts == 0 ? 247 : 230);
    EXPECT_EQ(worker.metrics().drafts->Value(), 0);
  }
}

TEST(DraftsLoopsTest, WhoIsCancelledIsGone) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, DraftOptions(8));
  worker.SendLocal(DraftSpec(1000));
  for (int i = 0; i < 20; ++i) worker.Turn();
  worker.engine().while_running = [&] { worker.Cancel(1); };
  worker.Turn();
  worker.Turn();
  EXPECT_EQ(worker.Turn().size(), 0u);
  worker.LastTurn();
}

}  // namespace
}  // namespace baton::worker::timed
