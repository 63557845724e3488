#include "router/worker_registry.h"

#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_worker.h"

namespace baton::router {
namespace {

using scheduling::kNoWorker;
using scheduling::WorkerId;
using scheduling::WorkerRole;
using scheduling::WorkerSnapshot;
using test::FakeWorker;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const absl::Time kStart = absl::UnixEpoch() + absl::Seconds(100);

class WorkerRegistryTest : public testing::Test {
 protected:
  WorkerRegistryTest() {
    model_.architecture = "LlamaForCausalLM";
    model_.vocab_size = 2048;
    model_.num_layers = 6;
    model_.max_context = 512;
    registry_.emplace(model_, WorkerRegistry::Options(), kStart);
    p_ = registry_->Add(WorkerRole::kPrefill, "p:1");
    d_ = registry_->Add(WorkerRole::kDecode, "d:1");
  }

  static v1::WorkerHello PrefillHello() {
    return FakeWorker::Hello(v1::WORKER_ROLE_PREFILL, "p0");
  }
  static v1::WorkerHello DecodeHello() {
    return FakeWorker::Hello(v1::WORKER_ROLE_DECODE, "d0");
  }
  void Pair(int prefill, uint64_t decode_incarnation, bool yes = true) {
    v1::PairReport report;
    report.set_decode_incarnation(decode_incarnation);
    report.set_paired(yes);
    report.set_reason(yes ? "" : "no route");
    registry_->PairReported(prefill, report, kStart);
  }
  const WorkerSnapshot* Find(WorkerId id) const {
    for (const WorkerSnapshot& w : registry_->snapshot().workers) {
      if (w.id == id) return &w;
    }
    return nullptr;
  }

  ServedModel model_;
  std::optional<WorkerRegistry> registry_;
  int p_ = 0;
  int d_ = 0;
};

TEST_F(WorkerRegistryTest, PairsAreAskedForAndUsedWhenConfirmed) {
  EXPECT_FALSE(registry_->CouldPlace());
  EXPECT_THAT(registry_->DuePairs(kStart), IsEmpty());
  const WorkerId p = registry_->Connected(p_, PrefillHello(), kStart);
  const v1::WorkerHello decode = DecodeHello();
  const WorkerId d = registry_->Connected(d_, decode, kStart);
  const auto due = registry_->DuePairs(kStart);
  ASSERT_THAT(due, SizeIs(1));
  EXPECT_EQ(due[0].prefill, p_);
  EXPECT_EQ(due[0].pair.decode_incarnation(), decode.incarnation());
  EXPECT_EQ(due[0].pair.data_address(), decode.data_address());
  EXPECT_THAT(Find(p)->paired_with, IsEmpty());
  EXPECT_FALSE(registry_->CouldPlace());  // pairing is under way

  EXPECT_THAT(registry_->DuePairs(kStart), IsEmpty());  // not asked twice
  Pair(p_, decode.incarnation());
  EXPECT_THAT(Find(p)->paired_with, testing::ElementsAre(d));
  EXPECT_TRUE(registry_->CouldPlace());
  EXPECT_EQ(registry_->NumServing(WorkerRole::kPrefill), 1);
  EXPECT_EQ(registry_->NumServing(WorkerRole::kDecode), 1);
  EXPECT_EQ(registry_->NumPairs(), 1);
  EXPECT_EQ(registry_->NameOf(p), "p0");
}

TEST_F(WorkerRegistryTest, RefusedAndUnansweredPairsAreAskedAgain) {
  const v1::WorkerHello decode = DecodeHello();
  registry_->Connected(p_, PrefillHello(), kStart);
  registry_->Connected(d_, decode, kStart);
  ASSERT_THAT(registry_->DuePairs(kStart), SizeIs(1));
  Pair(p_, decode.incarnation(), /*yes=*/false);
  EXPECT_EQ(registry_->NumPairs(), 0);
  const absl::Duration half = absl::Milliseconds(500);
  EXPECT_EQ(registry_->NextDue(kStart), kStart + half);
  EXPECT_THAT(registry_->DuePairs(kStart + 0.9 * half), IsEmpty());
  EXPECT_THAT(registry_->DuePairs(kStart + half), SizeIs(1));
  // No answer at all.
  EXPECT_THAT(registry_->DuePairs(kStart + half + absl::Seconds(7)), IsEmpty());
  EXPECT_THAT(registry_->DuePairs(kStart + half + absl::Seconds(8)), SizeIs(1));
  // Each refusal doubles the wait.
  Pair(p_, decode.incarnation(), /*yes=*/false);
  EXPECT_THAT(registry_->DuePairs(kStart + 1.9 * half), IsEmpty());
  EXPECT_THAT(registry_->DuePairs(kStart + 2 * half), SizeIs(1));
  // A pair that breaks later is asked for again, too.
  Pair(p_, decode.incarnation());
  EXPECT_EQ(registry_->NumPairs(), 1);
  Pair(p_, decode.incarnation(), /*yes=*/false);
  EXPECT_EQ(registry_->NumPairs(), 0);
}

TEST_F(WorkerRegistryTest, AWorkerThatFailsAgainAndAgainIsProbedOnly) {
  const v1::WorkerHello decode = DecodeHello();
  const WorkerId p = registry_->Connected(p_, PrefillHello(), kStart);
  const WorkerId d = registry_->Connected(d_, decode, kStart);
  Pair(p_, decode.incarnation());
  for (int i = 0; i < 3; ++i) registry_->LegFailed(d, kStart);
  EXPECT_FALSE(Find(d)->usable);
  EXPECT_TRUE(Find(p)->usable);
  EXPECT_TRUE(registry_->BreakerOpen(d_, kStart));
  EXPECT_FALSE(registry_->CouldPlace());
  EXPECT_THAT(registry_->WhyNot(), HasSubstr("fails again and again"));
  const absl::Time later = kStart + absl::Seconds(1);
  EXPECT_EQ(registry_->NextDue(kStart), later);
  registry_->DuePairs(later);
  EXPECT_TRUE(Find(d)->usable);
  registry_->AttemptSent(p, d, later);
  EXPECT_FALSE(Find(d)->usable) << "one probe at a time";
  registry_->LegSucceeded(d, later);
  EXPECT_TRUE(Find(d)->usable);
  EXPECT_EQ(registry_->NumBreakersOpen(later), 0);
}

TEST_F(WorkerRegistryTest, APairWhoseHandOffsFailIsLeftOut) {
  const v1::WorkerHello decode = DecodeHello();
  const WorkerId p = registry_->Connected(p_, PrefillHello(), kStart);
  const WorkerId d = registry_->Connected(d_, decode, kStart);
  Pair(p_, decode.incarnation());
  for (int i = 0; i < 3; ++i) registry_->TransferFailed(p, d, kStart);
  EXPECT_THAT(Find(p)->paired_with, IsEmpty());
  EXPECT_TRUE(Find(d)->usable);
  const absl::Time later = kStart + absl::Seconds(1);
  registry_->DuePairs(later);
  EXPECT_THAT(Find(p)->paired_with, testing::ElementsAre(d));
  registry_->AttemptSent(p, d, later);
  EXPECT_THAT(Find(p)->paired_with, IsEmpty());
  registry_->TransferSucceeded(p, d, later);
  EXPECT_THAT(Find(p)->paired_with, testing::ElementsAre(d));
}

TEST_F(WorkerRegistryTest, LocalPrefillIsAllowedAfterTheGrace) {
  registry_->Connected(d_, DecodeHello(), kStart);
  EXPECT_FALSE(registry_->snapshot().allow_local_prefill);
  EXPECT_EQ(registry_->NextDue(kStart), kStart + absl::Seconds(2));
  EXPECT_THAT(registry_->WhyNot(), HasSubstr("no prefill worker can serve"));
  EXPECT_THAT(registry_->WhyNot(), HasSubstr("p:1 is not connected"));
  registry_->DuePairs(kStart + absl::Seconds(2));
  EXPECT_TRUE(registry_->snapshot().allow_local_prefill);
  EXPECT_TRUE(registry_->CouldPlace());
}

TEST_F(WorkerRegistryTest, LocalPrefillCanBeSwitchedOff) {
  WorkerRegistry::Options options;
  options.local_prefill = false;
  registry_.emplace(model_, options, kStart);
  p_ = registry_->Add(WorkerRole::kPrefill, "p:1");
  d_ = registry_->Add(WorkerRole::kDecode, "d:1");
  registry_->Connected(d_, DecodeHello(), kStart);
  // No grace ends that.
  EXPECT_EQ(registry_->NextDue(kStart), absl::InfiniteFuture());
  registry_->DuePairs(kStart + absl::Hours(1));
  EXPECT_FALSE(registry_->snapshot().allow_local_prefill);
  EXPECT_FALSE(registry_->CouldPlace());
  EXPECT_THAT(registry_->WhyNot(), HasSubstr("p:1 is not connected"));
}

TEST_F(WorkerRegistryTest, SaysWhyAWorkerIsNotConnected) {
  registry_->Unreachable(p_, "it shows no certificate");
  EXPECT_EQ(registry_->WhyUnusable(p_),
            "is not connected: it shows no certificate");
  EXPECT_EQ(registry_->WhyUnusable(d_), "is not connected");
  registry_->Connected(p_, PrefillHello(), kStart);
  EXPECT_EQ(registry_->WhyUnusable(p_), "");
  registry_->Lost(p_);
  EXPECT_EQ(registry_->WhyUnusable(p_), "is not connected");
}

TEST_F(WorkerRegistryTest, RestartedWorkerIsANewPeer) {
  const v1::WorkerHello first = DecodeHello();
  const WorkerId p = registry_->Connected(p_, PrefillHello(), kStart);
  const WorkerId d1 = registry_->Connected(d_, first, kStart);
  registry_->DuePairs(kStart);
  Pair(p_, first.incarnation());
  EXPECT_EQ(registry_->Lost(d_), d1);
  EXPECT_EQ(registry_->Lost(d_), kNoWorker);
  EXPECT_THAT(Find(p)->paired_with, IsEmpty());
  EXPECT_FALSE(registry_->CouldPlace());
  EXPECT_EQ(registry_->IndexOf(d1), -1);

  const v1::WorkerHello second = DecodeHello();
  const WorkerId d2 = registry_->Connected(d_, second, kStart);
  EXPECT_NE(d1, d2);
  ASSERT_THAT(registry_->DuePairs(kStart), SizeIs(1));
  Pair(p_, first.incarnation());  // late: about the life before
  EXPECT_THAT(Find(p)->paired_with, IsEmpty());
  Pair(p_, second.incarnation());
  EXPECT_THAT(Find(p)->paired_with, testing::ElementsAre(d2));
}

TEST_F(WorkerRegistryTest, EachDifferingFieldIsNamed) {
  v1::WorkerHello decode = DecodeHello();
  decode.mutable_fingerprint()->set_block_size(24);
  decode.mutable_fingerprint()->set_model_identity("others");
  registry_->Connected(p_, PrefillHello(), kStart);
  const WorkerId d = registry_->Connected(d_, decode, kStart);
  EXPECT_FALSE(Find(d)->usable);
  EXPECT_THAT(registry_->DuePairs(kStart), IsEmpty());
  const std::string why = registry_->WhyNot();
  EXPECT_THAT(why, HasSubstr("d0"));
  EXPECT_THAT(why, HasSubstr("p0"));
  EXPECT_THAT(why, HasSubstr("block_size (24 here, 16 there)"));
  EXPECT_THAT(why, HasSubstr("model_identity (\"others\" here"));
}

TEST_F(WorkerRegistryTest, MisfitStaysOneWhileItsCounterpartIsAway) {
  v1::WorkerHello decode = DecodeHello();
  decode.mutable_fingerprint()->set_model_identity("others");
  registry_->Connected(p_, PrefillHello(), kStart);
  const WorkerId d = registry_->Connected(d_, decode, kStart);
  registry_->Lost(p_);
  registry_->DuePairs(kStart + absl::Hours(1));
  EXPECT_FALSE(Find(d)->usable);
  EXPECT_FALSE(registry_->CouldPlace());
  // The prefill worker comes back with the same model: now they fit.
  v1::WorkerHello prefill = PrefillHello();
  prefill.mutable_fingerprint()->set_model_identity("others");
  registry_->Connected(p_, prefill, kStart);
  EXPECT_TRUE(Find(d)->usable);
  EXPECT_THAT(registry_->DuePairs(kStart), SizeIs(1));
}

TEST_F(WorkerRegistryTest, OfSeveralModelsTheLargestGroupServes) {
  const int d2 = registry_->Add(WorkerRole::kDecode, "d:2");
  const int d3 = registry_->Add(WorkerRole::kDecode, "d:3");
  v1::WorkerHello other = DecodeHello();
  other.set_worker_name("d1");
  other.mutable_fingerprint()->set_model_identity("other weights");
  registry_->Connected(d_, other, kStart);
  EXPECT_TRUE(registry_->workers()[d_].misfit.empty());  // alone so far
  registry_->Connected(d2, DecodeHello(), kStart);
  EXPECT_TRUE(registry_->workers()[d_].misfit.empty());  // named first
  EXPECT_THAT(registry_->workers()[d2].misfit, HasSubstr("model_identity"));
  registry_->Connected(d3, DecodeHello(), kStart);
  EXPECT_THAT(registry_->workers()[d_].misfit, HasSubstr("model_identity"));
  EXPECT_TRUE(registry_->workers()[d2].misfit.empty());
  EXPECT_TRUE(registry_->workers()[d3].misfit.empty());
}

TEST_F(WorkerRegistryTest, BackendsMayDifferUnlessTheOperatorSaysNot) {
  v1::WorkerHello fast = DecodeHello();
  fast.set_backend("cpu-avx512bf16");
  v1::WorkerHello slow = PrefillHello();
  slow.set_backend("cpu-avx2");
  registry_->Connected(d_, fast, kStart);
  EXPECT_THAT(registry_->backends(), ElementsAre("cpu-avx512bf16"));
  registry_->Connected(p_, slow, kStart);
  EXPECT_THAT(registry_->backends(), ElementsAre("cpu-avx2", "cpu-avx512bf16"));
  EXPECT_TRUE(registry_->workers()[p_].misfit.empty());
  EXPECT_THAT(registry_->DuePairs(kStart), SizeIs(1));
  registry_->Lost(p_);
  EXPECT_THAT(registry_->backends(), ElementsAre("cpu-avx512bf16"));

  registry_.emplace(model_, WorkerRegistry::Options{.mixed_backends = false},
                    kStart);
  p_ = registry_->Add(WorkerRole::kPrefill, "p:1");
  d_ = registry_->Add(WorkerRole::kDecode, "d:1");
  const int d2 = registry_->Add(WorkerRole::kDecode, "d:2");
  const int p2 = registry_->Add(WorkerRole::kPrefill, "p:2");
  registry_->Connected(p_, slow, kStart);
  EXPECT_TRUE(registry_->workers()[p_].misfit.empty());  // alone so far
  slow.set_worker_name("p2");
  registry_->Connected(p2, slow, kStart);
  registry_->Connected(d_, fast, kStart);
  // It can serve alone, and these two cannot.
  EXPECT_TRUE(registry_->workers()[d_].misfit.empty());
  EXPECT_THAT(registry_->workers()[p_].misfit,
              HasSubstr("backend (cpu-avx2 here, cpu-avx512bf16 there)"));
  EXPECT_THAT(registry_->backends(), ElementsAre("cpu-avx512bf16"));
  v1::WorkerHello third = DecodeHello();
  third.set_worker_name("d2");
  third.set_backend("cpu-avx2");
  registry_->Connected(d2, third, kStart);
  EXPECT_TRUE(registry_->workers()[p_].misfit.empty());
  EXPECT_TRUE(registry_->workers()[d2].misfit.empty());
  EXPECT_THAT(registry_->workers()[d_].misfit, HasSubstr("backend"));
  EXPECT_THAT(registry_->backends(), ElementsAre("cpu-avx2"));
}

TEST_F(WorkerRegistryTest, WorkerOfAnotherModelThanTheRoutersIsNotUsed) {
  v1::WorkerHello decode = DecodeHello();
  decode.mutable_fingerprint()->set_vocab_size(32000);
  EXPECT_FALSE(Find(registry_->Connected(d_, decode, kStart))->usable);
  EXPECT_THAT(registry_->workers()[d_].misfit,
              HasSubstr("vocab_size (32000 there, 2048 at the router)"));
  registry_->Lost(d_);
  EXPECT_FALSE(Find(registry_->Connected(d_, PrefillHello(), kStart))->usable);
  EXPECT_THAT(registry_->workers()[d_].misfit, HasSubstr("role"));
  registry_->Lost(d_);
  EXPECT_TRUE(Find(registry_->Connected(d_, DecodeHello(), kStart))->usable);
}

TEST_F(WorkerRegistryTest, LoadIsTheReportAndWhatWasPlacedSince) {
  const WorkerId p = registry_->Connected(p_, PrefillHello(), kStart);
  const WorkerId d = registry_->Connected(d_, DecodeHello(), kStart);
  EXPECT_EQ(Find(d)->free_blocks, 1000);  // idle until it reports
  registry_->PlacedDecode(d, 10);
  registry_->PlacedDecode(d, 5);
  registry_->EndedDecode(d, 10);
  EXPECT_EQ(Find(d)->placed_blocks, 5);
  EXPECT_EQ(Find(d)->placed_sequences, 1);
  v1::LoadReport load;
  load.set_running(1);
  load.set_free_blocks(900);
  registry_->Reported(d_, load, kStart);
  EXPECT_EQ(Find(d)->placed_blocks, 0);
  EXPECT_EQ(Find(d)->free_blocks, 900);
  registry_->EndedDecode(d, 5);  // the report does not know yet
  EXPECT_EQ(Find(d)->placed_blocks, -5);
  EXPECT_EQ(Find(d)->placed_sequences, -1);

  const uint64_t report = registry_->PlacedPrefill(p, 100);
  EXPECT_EQ(Find(p)->placed_tokens, 100);
  EXPECT_EQ(Find(p)->placed_prompts, 1);
  registry_->EndedPrefill(p, 100, report);
  EXPECT_EQ(Find(p)->placed_tokens, 0);
  EXPECT_EQ(Find(p)->placed_prompts, 0);
  const uint64_t again = registry_->PlacedPrefill(p, 100);
  registry_->Reported(p_, load, kStart);
  registry_->EndedPrefill(p, 100, again);  // counted by the report
  EXPECT_EQ(Find(p)->placed_tokens, 0);
  registry_->Lost(p_);
  registry_->EndedPrefill(p, 100, again);
  registry_->PlacedDecode(WorkerId{999}, 1);
}

TEST_F(WorkerRegistryTest, ReportsAgeByTheTimeOfTheTurns) {
  const WorkerId d = registry_->Connected(d_, DecodeHello(), kStart);
  EXPECT_EQ(Find(d)->reported_at, kStart);
  const absl::Time reported = kStart + absl::Seconds(1);
  registry_->Reported(d_, v1::LoadReport(), reported);
  EXPECT_EQ(Find(d)->reported_at, reported);
  EXPECT_EQ(registry_->snapshot().now, reported);
  registry_->DuePairs(kStart + absl::Seconds(3));
  EXPECT_EQ(Find(d)->reported_at, reported);
  EXPECT_EQ(registry_->snapshot().now, kStart + absl::Seconds(3));
}

TEST_F(WorkerRegistryTest, DrainingWorkerIsNotUsable) {
  const WorkerId d = registry_->Connected(d_, DecodeHello(), kStart);
  registry_->Draining(d);
  EXPECT_FALSE(Find(d)->usable);
  EXPECT_THAT(registry_->WhyNot(), HasSubstr("is draining"));
  registry_->Lost(d_);
  EXPECT_TRUE(Find(registry_->Connected(d_, DecodeHello(), kStart))->usable);
}

TEST_F(WorkerRegistryTest, AWorkerThatHangsGetsNothing) {
  const WorkerId d = registry_->Connected(d_, DecodeHello(), kStart);
  v1::LoadReport load;
  load.set_running(2);
  load.set_steps(7);
  registry_->Reported(d_, load, kStart);
  // It reports, but takes no step.
  registry_->Reported(d_, load, kStart + absl::Seconds(59));
  registry_->DuePairs(kStart + absl::Seconds(60));
  EXPECT_TRUE(Find(d)->usable);
  registry_->DuePairs(kStart + absl::Seconds(61));
  EXPECT_FALSE(Find(d)->usable);
  EXPECT_FALSE(registry_->CouldPlace());
  EXPECT_THAT(registry_->WhyNot(), HasSubstr("makes no progress"));
  load.set_steps(8);
  registry_->Reported(d_, load, kStart + absl::Seconds(62));
  registry_->DuePairs(kStart + absl::Seconds(62));
  EXPECT_TRUE(Find(d)->usable);
  // Idle is no hang, silence is.
  load.set_running(0);
  registry_->Reported(d_, load, kStart + absl::Seconds(200));
  registry_->DuePairs(kStart + absl::Seconds(201));
  EXPECT_TRUE(Find(d)->usable);
  registry_->DuePairs(kStart + absl::Seconds(261));
  EXPECT_FALSE(Find(d)->usable);
}

// What it has computed waits for a slow link, or for a worker that is stuck
// itself.
TEST_F(WorkerRegistryTest, APrefillWorkerThatHandsOffDoesNotHang) {
  const WorkerId p = registry_->Connected(p_, PrefillHello(), kStart);
  v1::LoadReport load;
  load.set_running(2);
  load.set_steps(7);
  registry_->Reported(p_, load, kStart);
  registry_->Reported(p_, load, kStart + absl::Seconds(120));
  registry_->DuePairs(kStart + absl::Seconds(120));
  EXPECT_TRUE(Find(p)->usable);
  EXPECT_EQ(registry_->num_stuck_changes(), 0);
  // With something to compute it must take steps.
  load.set_queued_tokens(100);
  registry_->Reported(p_, load, kStart + absl::Seconds(130));
  registry_->Reported(p_, load, kStart + absl::Seconds(181));
  registry_->DuePairs(kStart + absl::Seconds(181));
  EXPECT_FALSE(Find(p)->usable);
  EXPECT_EQ(registry_->num_stuck_changes(), 1);
}

TEST_F(WorkerRegistryTest, ContextIsWhatTheLargestPoolHolds) {
  EXPECT_EQ(registry_->MaxContext(), 512);
  EXPECT_EQ(registry_->Fingerprint(), nullptr);
  v1::WorkerHello decode = DecodeHello();
  decode.set_total_blocks(10);
  registry_->Connected(d_, decode, kStart);
  EXPECT_EQ(registry_->MaxContext(), 160);
  const int second = registry_->Add(WorkerRole::kDecode, "d:2");
  decode.set_total_blocks(1000000);
  decode.set_max_context(1000000);
  registry_->Connected(second, decode, kStart);
  EXPECT_EQ(registry_->MaxContext(), 512);
  EXPECT_EQ(registry_->Fingerprint()->model_identity(), "stories-weights");
}

TEST_F(WorkerRegistryTest, SnapshotIsInTheOperatorsOrder) {
  const WorkerId d = registry_->Connected(d_, DecodeHello(), kStart);
  const WorkerId p = registry_->Connected(p_, PrefillHello(), kStart);
  ASSERT_THAT(registry_->snapshot().workers, SizeIs(2));
  EXPECT_EQ(registry_->snapshot().workers[0].id, p);
  EXPECT_EQ(registry_->snapshot().workers[1].id, d);
}

}  // namespace
}  // namespace baton::router
