// What holds for every placement policy, whatever it prefers.
#include "scheduling/placement_policies.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/placement_room.h"
#include "tests/scheduling/placement_cluster.h"

namespace baton::scheduling::placement_policies_test {
namespace {

using test::DecodeWorker;
using test::Dice;
using test::PrefillWorker;
using test::RandomCached;
using test::RandomCluster;
using test::RandomOptions;
using test::RandomRequest;
using test::RequestOf;
using Kind = PlacementVerdict::Kind;
using Standing = PlacementCandidate::Standing;

TEST(PlacementPoliciesTest, EachIsMadeByItsName) {
  EXPECT_THAT(PlacementPolicyNames(),
              testing::ElementsAre("least-load", "power-of-two",
                                   "prefix-affine", "cost-model"));
  EXPECT_THAT(PlacementPolicyNames(),
              testing::Contains(std::string(kDefaultPlacementPolicy)));
  for (const std::string& name : PlacementPolicyNames()) {
    EXPECT_TRUE(MakePlacementPolicy(name).ok()) << name;
    EXPECT_THAT(DescribePlacementPolicies(), testing::HasSubstr(name + ": "));
  }
  const absl::Status unknown = MakePlacementPolicy("random").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(unknown.message(),
            "placement policy \"random\" is unknown; there are least-load, "
            "power-of-two, prefix-affine, cost-model");
}

const WorkerSnapshot* Find(const ClusterSnapshot& cluster, WorkerId id);

// Adapters decide who may serve, the policy who of them does.
TEST(PlacementPoliciesTest, NobodyIsAskedForAnAdapterThatHeDoesNotHave) {
  constexpr uint64_t kAdapter = 7;
  Dice dice(11);
  for (const std::string& name : PlacementPolicyNames()) {
    const auto policy = MakePlacementPolicy(name).value();
    int placed = 0;
    int none = 0;
    for (int i = 0; i < 400; ++i) {
      RandomOptions options;
      options.unfit_one_in = 10;
      ClusterSnapshot cluster = RandomCluster(options, &dice);
      cluster.allow_local_prefill = dice.OneIn(2);
      bool decodes = false;
      bool prefills = false;
      for (WorkerSnapshot& worker : cluster.workers) {
        if (dice.OneIn(2)) worker.adapters = {3, 9};
        if (dice.OneIn(3)) worker.adapters = {3, kAdapter, 9};
        if (worker.adapters.size() < 3 || !worker.usable) continue;
        (worker.role == WorkerRole::kDecode ? decodes : prefills) = true;
      }
      PlacementRequest request = RandomRequest(&dice);
      request.adapter = kAdapter;
      const PlacementVerdict verdict = policy->Place(cluster, request);
      for (const WorkerId id : {verdict.prefill, verdict.decode}) {
        if (id == kNoWorker) continue;
        EXPECT_THAT(Find(cluster, id)->adapters, testing::Contains(kAdapter));
      }
      const bool could = decodes && (prefills || cluster.allow_local_prefill);
      if (!could) {
        ++none;
        EXPECT_EQ(verdict.kind, Kind::kNone);
        EXPECT_THAT(verdict.reason,
                    testing::AnyOf(PlacementReason::kNoAdapter,
                                   PlacementReason::kNoDecodeWorker,
                                   PlacementReason::kPairingPending,
                                   PlacementReason::kTooLarge,
                                   PlacementReason::kDecodeFull));
      } else if (verdict.kind != Kind::kNone) {
        ++placed;
      } else {
        EXPECT_NE(verdict.reason, PlacementReason::kNoDecodeWorker);
      }
      for (const PlacementCandidate& candidate :
           policy->Weigh(cluster, request, verdict, 100)) {
        const WorkerSnapshot& worker = *Find(cluster, candidate.id);
        if (!worker.usable) continue;
        EXPECT_EQ(candidate.standing == Standing::kNoAdapter,
                  worker.adapters.size() < 3);
      }
    }
    EXPECT_GT(placed, 50) << name;
    EXPECT_GT(none, 20) << name;
  }
}

TEST(PlacementPoliciesTest, SayThatNobodyHasTheAdapter) {
  for (const std::string& name : PlacementPolicyNames()) {
    const auto policy = MakePlacementPolicy(name).value();
    ClusterSnapshot cluster;
    cluster.workers = {PrefillWorker(WorkerId{1}, {WorkerId{2}}),
                       DecodeWorker(WorkerId{2})};
    PlacementRequest request = RequestOf(100, 10);
    request.adapter = AdapterKey("some identity");
    EXPECT_EQ(policy->Place(cluster, request).reason,
              PlacementReason::kNoAdapter)
        << name;
    cluster.workers[1].adapters = {request.adapter};
    EXPECT_EQ(policy->Place(cluster, request).kind, Kind::kDecodeOnly) << name;
    cluster.allow_local_prefill = false;
    EXPECT_EQ(policy->Place(cluster, request).reason,
              PlacementReason::kNoAdapter)
        << name;
    cluster.workers[0].adapters = {request.adapter};
    EXPECT_EQ(policy->Place(cluster, request).kind, Kind::kPrefillAndDecode)
        << name;
  }
  EXPECT_EQ(AdapterKey(""), 0u);
  EXPECT_NE(AdapterKey("a"), AdapterKey("b"));
}

const WorkerSnapshot* Find(const ClusterSnapshot& cluster, WorkerId id) {
  for (const WorkerSnapshot& worker : cluster.workers) {
    if (worker.id == id) return &worker;
  }
  return nullptr;
}

bool Same(const PlacementVerdict& a, const PlacementVerdict& b) {
  const auto all = [](const PlacementVerdict& v) {
    return std::tie(v.kind, v.reason, v.prefill, v.decode, v.cached_tokens,
                    v.predicted_ttft_seconds);
  };
  return all(a) == all(b);
}

class AnyPolicyTest : public testing::TestWithParam<std::string> {
 protected:
  AnyPolicyTest() : policy_(*MakePlacementPolicy(GetParam())) {}

  bool MayDecode(const WorkerSnapshot& worker,
                 const PlacementRequest& request) const {
    return worker.role == WorkerRole::kDecode && worker.usable &&
           CouldEverHold(worker, request.total_tokens) &&
           DecodeHasRoom(worker, request) &&
           (request.allow_excluded_decode ||
            !Contains(request.excluded, worker.id));
  }
  bool MayPrefill(const WorkerSnapshot& worker,
                  const PlacementRequest& request) const {
    return worker.role == WorkerRole::kPrefill && worker.usable &&
           CouldEverHold(worker, request.prefill_tokens) &&
           PrefillHasRoom(worker, request.prefill_tokens) &&
           !Contains(request.excluded, worker.id);
  }

  void CheckVerdict(const ClusterSnapshot& cluster,
                    const PlacementRequest& request,
                    const PlacementVerdict& verdict) const {
    if (verdict.kind == Kind::kNone) {
      EXPECT_EQ(verdict.prefill, kNoWorker);
      EXPECT_EQ(verdict.decode, kNoWorker);
      EXPECT_FALSE(AnyPair(cluster, request));
      return;
    }
    const WorkerSnapshot* decode = Find(cluster, verdict.decode);
    ASSERT_NE(decode, nullptr);
    EXPECT_TRUE(MayDecode(*decode, request));
    const WorkerSnapshot* computes = decode;
    if (verdict.kind == Kind::kPrefillAndDecode) {
      const WorkerSnapshot* prefill = Find(cluster, verdict.prefill);
      ASSERT_NE(prefill, nullptr);
      PlacementRequest asked = request;
      // A last resort, where decode workers compute no prompts.
      if (!cluster.allow_local_prefill && request.allow_excluded_decode) {
        asked.excluded = {};
      }
      EXPECT_TRUE(MayPrefill(*prefill, asked));
      EXPECT_THAT(prefill->paired_with, testing::Contains(decode->id));
      computes = prefill;
    } else {
      EXPECT_EQ(verdict.prefill, kNoWorker);
      EXPECT_TRUE(cluster.allow_local_prefill);
    }
    int32_t cached = 0;
    for (const CachedPrompt& entry : request.cached) {
      if (entry.worker == computes->id) cached = entry.tokens;
    }
    EXPECT_EQ(verdict.cached_tokens, cached);
  }

  // Excluded decode workers are a last resort, not a must.
  bool AnyPair(const ClusterSnapshot& cluster,
               const PlacementRequest& request) const {
    for (const WorkerSnapshot& p : cluster.workers) {
      if (!MayPrefill(p, request)) continue;
      for (WorkerId d : p.paired_with) {
        if (MayDecode(*Find(cluster, d), request)) return true;
      }
    }
    return false;
  }

  const std::unique_ptr<const PlacementPolicy> policy_;
};

TEST_P(AnyPolicyTest, KeepsTheRulesOnRandomClusters) {
  Dice dice(11);
  std::map<Kind, int> kinds;
  for (int round = 0; round < 1500; ++round) {
    const RandomOptions options = {
        .num_prefill = dice.OneIn(6) ? 0 : dice.Below(15),
        .num_decode = dice.Below(15),
        .unpaired_one_in = dice.Below(4),
        .paired_one_in = dice.OneIn(4) ? 8 : 1,
        .unfit_one_in = dice.OneIn(3) ? 2 : 8,
        .cached_one_in = dice.Below(4)};
    ClusterSnapshot cluster = RandomCluster(options, &dice);
    cluster.allow_local_prefill = !dice.OneIn(4);
    if (dice.OneIn(5)) {  // nobody has measured anything yet
      for (WorkerSnapshot& worker : cluster.workers) worker.step_cost = {};
    }
    PlacementRequest request = RandomRequest(&dice);
    const auto cached = RandomCached(options, cluster, request, &dice);
    request.cached = cached;
    std::vector<WorkerId> excluded;
    for (const WorkerSnapshot& worker : cluster.workers) {
      if (dice.OneIn(8)) excluded.push_back(worker.id);
    }
    request.excluded = excluded;
    request.allow_excluded_decode = dice.OneIn(3);
    const ClusterSnapshot same = cluster;
    const PlacementVerdict verdict = policy_->Place(cluster, request);
    CheckVerdict(cluster, request, verdict);
    EXPECT_TRUE(Same(policy_->Place(same, request), verdict)) << round;
    if (HasFailure()) FAIL() << "round " << round;
    ++kinds[verdict.kind];
  }
  EXPECT_GT(kinds[Kind::kNone], 50);
  EXPECT_GT(kinds[Kind::kDecodeOnly], 50);
  EXPECT_GT(kinds[Kind::kPrefillAndDecode], 50);
}

TEST_P(AnyPolicyTest, AnExcludedDecodeWorkerIsTheLastResort) {
  ClusterSnapshot cluster{
      .workers = {PrefillWorker(WorkerId{1}, {WorkerId{11}, WorkerId{12}}),
                  DecodeWorker(WorkerId{11}), DecodeWorker(WorkerId{12}, 60)}};
  const std::vector<WorkerId> excluded = {WorkerId{11}};
  PlacementRequest request = RequestOf(100, 50);
  request.excluded = excluded;
  request.allow_excluded_decode = true;
  for (cluster.round = 0; cluster.round < 20; ++cluster.round) {
    EXPECT_EQ(policy_->Place(cluster, request).decode, WorkerId{12});
  }
  cluster.workers[2].free_blocks = 0;
  EXPECT_EQ(policy_->Place(cluster, request).decode, WorkerId{11});
  request.allow_excluded_decode = false;
  EXPECT_EQ(policy_->Place(cluster, request).kind, Kind::kNone);
}

TEST_P(AnyPolicyTest, SaysWhatIsMissing) {
  ClusterSnapshot cluster;
  const PlacementRequest request = RequestOf(100, 50);
  const auto reason = [&] { return policy_->Place(cluster, request).reason; };
  EXPECT_EQ(reason(), PlacementReason::kNoDecodeWorker);
  cluster.workers = {DecodeWorker(WorkerId{11})};
  cluster.allow_local_prefill = false;
  EXPECT_EQ(reason(), PlacementReason::kPairingPending);
  cluster.workers[0].max_context = 149;
  EXPECT_EQ(reason(), PlacementReason::kTooLarge);
  cluster.workers[0].max_context = 150;
  cluster.allow_local_prefill = true;
  cluster.workers[0].free_blocks = 9;
  EXPECT_EQ(reason(), PlacementReason::kDecodeFull);
  cluster.workers[0].free_blocks = 10;
  EXPECT_EQ(policy_->Place(cluster, request).decode, WorkerId{11});
}

// Nothing of what was placed is ever reported: the worst that can be.
TEST_P(AnyPolicyTest, SpreadsLoadThatWorkersDoNotReport) {
  ClusterSnapshot cluster;
  std::vector<WorkerId> ids;
  for (uint64_t d = 0; d < 8; ++d) ids.push_back(WorkerId{100 + d});
  for (uint64_t p = 0; p < 4; ++p) {
    cluster.workers.push_back(PrefillWorker(WorkerId{1 + p}, ids));
  }
  for (WorkerId id : ids) cluster.workers.push_back(DecodeWorker(id));
  const std::vector<CachedPrompt> cached = {{WorkerId{1}, 90},
                                            {WorkerId{100}, 90}};
  PlacementRequest request = RequestOf(100, 50);
  request.cached = cached;
  const auto find = [&](WorkerId id) -> WorkerSnapshot& {
    return *std::find_if(cluster.workers.begin(), cluster.workers.end(),
                         [&](const auto& w) { return w.id == id; });
  };
  for (int i = 0; i < 160; ++i) {
    const PlacementVerdict verdict = policy_->Place(cluster, request);
    ASSERT_NE(verdict.kind, Kind::kNone);
    WorkerSnapshot& decode = find(verdict.decode);
    ++decode.placed_sequences;
    decode.placed_blocks += BlocksFor(request.total_tokens, 16);
    WorkerSnapshot& computes =
        find(verdict.prefill != kNoWorker ? verdict.prefill : verdict.decode);
    ++computes.placed_prompts;
    computes.placed_tokens += request.prefill_tokens - verdict.cached_tokens;
    ++cluster.round;
  }
  for (const WorkerSnapshot& worker : cluster.workers) {
    if (worker.role != WorkerRole::kDecode) continue;
    EXPECT_GE(worker.placed_sequences, 8);
    EXPECT_LE(worker.placed_sequences, 40);
  }
}

TEST_P(AnyPolicyTest, WeighsWhomItChose) {
  Dice dice(12);
  for (int round = 0; round < 200; ++round) {
    const RandomOptions options = {.num_prefill = dice.Below(8),
                                   .num_decode = 1 + dice.Below(8),
                                   .unfit_one_in = 6};
    const ClusterSnapshot cluster = RandomCluster(options, &dice);
    const PlacementRequest request = RandomRequest(&dice);
    const PlacementVerdict verdict = policy_->Place(cluster, request);
    int chosen = 0;
    for (const PlacementCandidate& candidate :
         policy_->Weigh(cluster, request, verdict, 4)) {
      const bool is_chosen =
          candidate.id == verdict.prefill || candidate.id == verdict.decode;
      EXPECT_EQ(candidate.standing == Standing::kChosen, is_chosen) << round;
      chosen += is_chosen;
    }
    EXPECT_EQ(chosen,
              (verdict.prefill != kNoWorker) + (verdict.decode != kNoWorker))
        << round;
  }
}

INSTANTIATE_TEST_SUITE_P(All, AnyPolicyTest,
                         testing::ValuesIn(PlacementPolicyNames()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace baton::scheduling::placement_policies_test
