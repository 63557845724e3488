#include "scheduling/power_of_two_placement.h"

#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "tests/scheduling/placement_cluster.h"

namespace baton::scheduling::power_of_two_placement_test {
namespace {

using test::DecodeWorker;
using test::PrefillWorker;
using test::RequestOf;
using Kind = PlacementVerdict::Kind;

WorkerId DecodeId(int i) { return WorkerId{static_cast<uint64_t>(100 + i)}; }
WorkerId PrefillId(int i) { return WorkerId{static_cast<uint64_t>(1 + i)}; }

// The first ones have the least to do.
ClusterSnapshot Stairs(int num_prefill, int num_decode) {
  ClusterSnapshot cluster;
  std::vector<WorkerId> ids;
  for (int d = 0; d < num_decode; ++d) ids.push_back(DecodeId(d));
  for (int p = 0; p < num_prefill; ++p) {
    cluster.workers.push_back(PrefillWorker(PrefillId(p), ids));
    cluster.workers.back().queued_tokens = 10 * p;
  }
  for (int d = 0; d < num_decode; ++d) {
    cluster.workers.push_back(DecodeWorker(DecodeId(d), d));
  }
  return cluster;
}

PlacementVerdict Place(const ClusterSnapshot& cluster) {
  return PowerOfTwoPlacement().Place(cluster, RequestOf(100, 50));
}

TEST(PowerOfTwoPlacementTest, OfTwoTheLessLoadedOne) {
  ClusterSnapshot cluster = Stairs(2, 2);
  for (cluster.round = 0; cluster.round < 50; ++cluster.round) {
    const PlacementVerdict verdict = Place(cluster);
    EXPECT_EQ(verdict.decode, DecodeId(0));
    EXPECT_EQ(verdict.prefill, PrefillId(0));
    EXPECT_EQ(verdict.reason, PlacementReason::kTwoChoices);
  }
}

TEST(PowerOfTwoPlacementTest, AllButTheMostLoadedHaveTheirChance) {
  ClusterSnapshot cluster = Stairs(6, 10);
  std::map<WorkerId, int> placed;
  constexpr int kRounds = 4500;
  for (cluster.round = 0; cluster.round < kRounds; ++cluster.round) {
    const PlacementVerdict verdict = Place(cluster);
    ++placed[verdict.decode];
    ++placed[verdict.prefill];
  }
  // Of the 45 pairs of ten, the first is in nine and wins all, the next wins
  // eight of its nine, and so on.
  for (int d = 0; d < 10; ++d) {
    EXPECT_NEAR(placed[DecodeId(d)], kRounds * (9 - d) / 45, 120) << d;
  }
  for (int p = 0; p < 6; ++p) {
    EXPECT_NEAR(placed[PrefillId(p)], kRounds * (5 - p) / 15, 150) << p;
  }
}

TEST(PowerOfTwoPlacementTest, OneThatLooksBestIsNotOverrun) {
  // The same old report for a hundred placements.
  ClusterSnapshot cluster = Stairs(1, 20);
  int first = 0;
  for (cluster.round = 0; cluster.round < 100; ++cluster.round) {
    first += Place(cluster).decode == DecodeId(0);
  }
  EXPECT_LT(first, 25);
}

TEST(PowerOfTwoPlacementTest, OneThatIsPairedIsFoundAmongMany) {
  ClusterSnapshot cluster = Stairs(3, 50);
  for (int p = 0; p < 3; ++p) {
    cluster.workers[p].paired_with = {DecodeId(37)};
    cluster.workers[p].link_bandwidth = {1e9};
  }
  for (cluster.round = 0; cluster.round < 50; ++cluster.round) {
    const PlacementVerdict verdict = Place(cluster);
    EXPECT_EQ(verdict.kind, Kind::kPrefillAndDecode);
    EXPECT_EQ(verdict.decode, DecodeId(37));
  }
}

TEST(PowerOfTwoPlacementTest, AlsoWithoutPrefillWorkers) {
  ClusterSnapshot cluster = Stairs(0, 10);
  std::map<WorkerId, int> placed;
  for (cluster.round = 0; cluster.round < 450; ++cluster.round) {
    const PlacementVerdict verdict = Place(cluster);
    EXPECT_EQ(verdict.kind, Kind::kDecodeOnly);
    ++placed[verdict.decode];
  }
  EXPECT_GT(placed[DecodeId(0)], placed[DecodeId(5)]);
  EXPECT_GT(placed[DecodeId(5)], 0);
  EXPECT_EQ(placed.count(DecodeId(9)), 0u);
}

}  // namespace
}  // namespace baton::scheduling::power_of_two_placement_test
