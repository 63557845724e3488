// The search of the cost model, against all that is possible, one by one.
#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scheduling/cost_placement.h"
#include "scheduling/placement_room.h"
#include "tests/scheduling/placement_cluster.h"

namespace baton::scheduling::cost_placement_search_test {
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
using Rank = std::pair<double, double>;

constexpr Rank kNothing = {std::numeric_limits<double>::infinity(), 0};

Rank RankOf(const DelayEstimate& estimate) {
  return {estimate.miss, estimate.delay_seconds};
}

bool MayPrefill(const WorkerSnapshot& worker, const PlacementRequest& request) {
  return worker.role == WorkerRole::kPrefill && worker.usable &&
         CouldEverHold(worker, request.prefill_tokens) &&
         PrefillHasRoom(worker, request.prefill_tokens);
}

bool MayDecode(const WorkerSnapshot& worker, const PlacementRequest& request) {
  return worker.role == WorkerRole::kDecode && worker.usable &&
         CouldEverHold(worker, request.total_tokens) &&
         DecodeHasRoom(worker, request);
}

// All placements of one request.
struct Exhaustive {
  Rank best = kNothing;
  Rank best_pair = kNothing;
  // Of the verdict.
  Rank chosen = kNothing;
  // The most that the prefill worker with the least TTFT would leave anywhere.
  double gap = 0;
};

Exhaustive TryAll(const ClusterSnapshot& cluster,
                  const PlacementRequest& request,
                  const PlacementVerdict& verdict) {
  Exhaustive all;
  std::pair<double, double> least = kNothing;  // miss and TTFT of a prefill
  for (const WorkerSnapshot& d : cluster.workers) {
    if (!MayDecode(d, request)) continue;
    const Rank local = RankOf(EstimateLocal(d, request));
    all.best = std::min(all.best, local);
    if (verdict.decode == d.id && verdict.prefill == kNoWorker) {
      all.chosen = local;
    }
  }
  for (const WorkerSnapshot& p : cluster.workers) {
    if (!MayPrefill(p, request)) continue;
    for (const WorkerSnapshot& d : cluster.workers) {
      LinkFinder link(d.id);
      if (!MayDecode(d, request) || !link.Find(p)) continue;
      const DelayEstimate estimate =
          EstimatePair(p, d, link.bandwidth(), request);
      const Rank rank = RankOf(estimate);
      all.best_pair = std::min(all.best_pair, rank);
      if (verdict.prefill == p.id && verdict.decode == d.id) all.chosen = rank;
      const Rank ttft = {0, estimate.ttft_seconds};
      if (least < ttft) continue;
      all.gap = ttft < least ? estimate.gap_seconds
                             : std::max(all.gap, estimate.gap_seconds);
      least = ttft;
    }
  }
  all.best = std::min(all.best, all.best_pair);
  return all;
}

TEST(CostPlacementSearchTest, OfFewWorkersItTakesTheBestOfAll) {
  Dice dice(5);
  for (int round = 0; round < 500; ++round) {
    const RandomOptions options = {.num_prefill = dice.Below(9),
                                   .num_decode = 1 + dice.Below(8),
                                   .unpaired_one_in = 4,
                                   .unfit_one_in = 6,
                                   .cached_one_in = 2};
    const ClusterSnapshot cluster = RandomCluster(options, &dice);
    PlacementRequest request = RandomRequest(&dice);
    const auto cached = RandomCached(options, cluster, request, &dice);
    request.cached = cached;
    const PlacementVerdict verdict =
        CostModelPlacement().Place(cluster, request);
    const Exhaustive all = TryAll(cluster, request, verdict);
    EXPECT_EQ(all.chosen, all.best) << round;
    EXPECT_EQ(verdict.kind == Kind::kNone, all.best == kNothing) << round;
  }
}

// The bound that the header states.
TEST(CostPlacementSearchTest, OfManyItIsWorseByNoMoreThanOneGap) {
  Dice dice(6);
  int best = 0;
  int pairs = 0;
  constexpr int kRounds = 200;
  for (int round = 0; round < kRounds; ++round) {
    const RandomOptions options = {.num_prefill = 9 + dice.Below(30),
                                   .num_decode = 9 + dice.Below(50),
                                   .unfit_one_in = 8,
                                   .cached_one_in = dice.Below(4)};
    ClusterSnapshot cluster = RandomCluster(options, &dice);
    // Half of the time the decode workers are busy enough for pairs.
    cluster.allow_local_prefill = dice.OneIn(2);
    PlacementRequest request = RandomRequest(&dice);
    const auto cached = RandomCached(options, cluster, request, &dice);
    request.cached = cached;
    const PlacementVerdict verdict =
        CostModelPlacement().Place(cluster, request);
    const Exhaustive all = TryAll(cluster, request, verdict);
    const Rank wanted = cluster.allow_local_prefill ? all.best : all.best_pair;
    EXPECT_EQ(all.chosen.first, wanted.first) << round;
    EXPECT_LE(all.chosen.second, wanted.second + all.gap + 1e-9) << round;
    best += all.chosen == wanted;
    pairs += verdict.kind == Kind::kPrefillAndDecode;
  }
  EXPECT_GT(best, kRounds * 9 / 10);
  EXPECT_GT(pairs, kRounds / 3);
}

TEST(CostPlacementSearchTest, WhereLinksAreAlikeItTakesTheBestOfAll) {
  Dice dice(7);
  for (int round = 0; round < 100; ++round) {
    const RandomOptions options = {.num_prefill = 20, .num_decode = 30};
    ClusterSnapshot cluster = RandomCluster(options, &dice);
    for (WorkerSnapshot& worker : cluster.workers) {
      worker.link_bandwidth.assign(worker.paired_with.size(), 25e9);
    }
    cluster.allow_local_prefill = false;
    const PlacementRequest request = RandomRequest(&dice);
    const Exhaustive all =
        TryAll(cluster, request, CostModelPlacement().Place(cluster, request));
    EXPECT_EQ(all.chosen.first, all.best_pair.first) << round;
    EXPECT_NEAR(all.chosen.second, all.best_pair.second, 1e-3) << round;
  }
}

// Where few are paired, a pair is found all the same, and a good one.
TEST(CostPlacementSearchTest, FindsPairsWhereTheyAreRare) {
  Dice dice(8);
  int found = 0;
  for (int round = 0; round < 200; ++round) {
    const RandomOptions options = {.num_prefill = 20,
                                   .num_decode = 40,
                                   .paired_one_in = 10 << dice.Below(6),
                                   .unfit_one_in = 8};
    ClusterSnapshot cluster = RandomCluster(options, &dice);
    cluster.allow_local_prefill = false;
    PlacementRequest request = RandomRequest(&dice);
    request.ttft_target_seconds = 0;
    request.itl_target_seconds = 0;
    const PlacementVerdict verdict =
        CostModelPlacement().Place(cluster, request);
    const Exhaustive all = TryAll(cluster, request, verdict);
    ASSERT_EQ(verdict.kind == Kind::kPrefillAndDecode,
              all.best_pair != kNothing)
        << round;
    if (verdict.kind != Kind::kPrefillAndDecode) continue;
    ++found;
    EXPECT_LE(all.chosen.second, 2 * all.best_pair.second) << round;
  }
  EXPECT_GT(found, 100);
}

TEST(CostPlacementSearchTest, EqualWorkersOfALargeClusterTakeTurns) {
  ClusterSnapshot cluster;
  std::vector<WorkerId> ids;
  for (uint64_t d = 0; d < 40; ++d) ids.push_back(WorkerId{100 + d});
  for (uint64_t p = 0; p < 20; ++p) {
    cluster.workers.push_back(PrefillWorker(WorkerId{1 + p}, ids));
  }
  for (WorkerId id : ids) cluster.workers.push_back(DecodeWorker(id, 8));
  std::vector<int> placed(200);
  for (cluster.round = 0; cluster.round < 4000; ++cluster.round) {
    const PlacementVerdict verdict =
        CostModelPlacement().Place(cluster, RequestOf(100, 50));
    ASSERT_EQ(verdict.kind, Kind::kPrefillAndDecode);
    ++placed[static_cast<uint64_t>(verdict.prefill)];
    ++placed[static_cast<uint64_t>(verdict.decode)];
  }
  for (uint64_t p = 0; p < 20; ++p) EXPECT_GT(placed[1 + p], 40) << p;
  for (uint64_t d = 0; d < 40; ++d) EXPECT_GT(placed[100 + d], 20) << d;
}

TEST(CostPlacementSearchTest, TheOneWithThePrefixIsTriedWhereverItRanks) {
  // Over a slow link the transfer is all that counts; thirty decode workers are
  // a little less loaded than the one that has the prefix.
  ClusterSnapshot cluster;
  std::vector<WorkerId> ids;
  for (uint64_t d = 0; d < 31; ++d) ids.push_back(WorkerId{100 + d});
  cluster.workers.push_back(PrefillWorker(WorkerId{1}, ids, 1e7));
  for (WorkerId id : ids) cluster.workers.push_back(DecodeWorker(id, 8));
  cluster.workers[17].running = 9;
  PlacementRequest request = RequestOf(400, 50);
  const std::vector<CachedPrompt> cached = {{WorkerId{1}, 390},
                                            {cluster.workers[17].id, 390}};
  request.cached = cached;
  cluster.allow_local_prefill = false;
  const PlacementVerdict verdict = CostModelPlacement().Place(cluster, request);
  EXPECT_EQ(verdict.decode, cluster.workers[17].id);
  EXPECT_EQ(verdict.cached_tokens, 390);
}

}  // namespace
}  // namespace baton::scheduling::cost_placement_search_test
