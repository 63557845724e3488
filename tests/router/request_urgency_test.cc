// What is asked of placement for requests that have targets.
#include "router/request_urgency.h"

#include <memory>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "router/text/tokenizer.h"

namespace baton::router {
namespace {

const absl::Time kReceived = absl::UnixEpoch() + absl::Seconds(50);

class RequestUrgencyTest : public testing::Test {
 protected:
  RequestUrgencyTest() {
    auto tokenizer =
        Tokenizer::Load(absl::StrCat(BATON_SOURCE_DIR, "/models/stories"));
    CHECK(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    targets_.interactive.itl = absl::Milliseconds(60);
    answer_.ttft_target = absl::Seconds(2);
    answer_.itl_target = absl::Milliseconds(50);
  }

  RequestRecord& Record() {
    auto incoming = std::make_unique<IncomingRequest>();
    incoming->spec.id = "r-1";
    incoming->spec.prompt = {5, 6, 7};
    incoming->received_at = kReceived;
    incoming->deadline = absl::InfiniteFuture();
    incoming->answer = answer_;
    record_ =
        std::make_unique<RequestRecord>(std::move(incoming), 3, *tokenizer_);
    return *record_;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  ClassTargets targets_;
  AnswerOptions answer_;
  std::unique_ptr<RequestRecord> record_;
};

TEST_F(RequestUrgencyTest, NothingIsLeftToKeepOfWhatIsMissed) {
  const RequestRecord& record = Record();
  const absl::Time soon = kReceived + absl::Milliseconds(500);
  const absl::Time over = kReceived + absl::Seconds(3);
  EXPECT_DOUBLE_EQ(TtftToKeep(record, false, soon), 1.5);
  EXPECT_EQ(TtftToKeep(record, true, soon), 0);
  EXPECT_EQ(TtftToKeep(record, false, over), 0);
  // To workers it is still one that had a target: behind those in time.
  EXPECT_DOUBLE_EQ(UrgencyOf(record, soon).ttft_target_seconds, 1.5);
  EXPECT_GT(UrgencyOf(record, over).ttft_target_seconds, 0);
  EXPECT_LT(UrgencyOf(record, over).ttft_target_seconds, 0.01);
}

TEST_F(RequestUrgencyTest, WithoutATargetThereIsNothingToKeep) {
  answer_.ttft_target = absl::ZeroDuration();
  const RequestRecord& record = Record();
  EXPECT_EQ(TtftToKeep(record, false, kReceived), 0);
  EXPECT_EQ(UrgencyOf(record, kReceived).ttft_target_seconds, 0);
}

TEST_F(RequestUrgencyTest, TheBatchHoldsNobodyUpForLong) {
  const RequestRecord& record = Record();
  const auto bound = [&](double seconds, bool stands_by) {
    return BatchItlOf(record, targets_, stands_by,
                      kReceived + absl::Seconds(seconds));
  };
  EXPECT_DOUBLE_EQ(bound(29, false), 0.06);
  EXPECT_EQ(bound(31, false), 0);
  // Others pass one that stands by, however long it waits.
  EXPECT_DOUBLE_EQ(bound(31, true), 0.06);
  targets_.interactive.itl = absl::ZeroDuration();
  EXPECT_DOUBLE_EQ(bound(0.9, false), 0.05);
  EXPECT_EQ(bound(1.1, false), 0);
  EXPECT_DOUBLE_EQ(bound(1.1, true), 0.05);
}

}  // namespace
}  // namespace baton::router
