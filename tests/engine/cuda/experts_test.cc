// The kernels of layers with experts but for their products, on a device:
// against what the host makes of the same numbers.
#include "engine/cuda/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/cuda/expert_matmul.h"
#include "engine/cuda/matmul_group.h"
#include "tests/engine/cuda/device_fixture.h"

namespace baton::engine::cuda {
namespace {

// What a mixture has, and how its rows are cut.
struct Sizes {
  int32_t rows, experts, per_token;
  MatmulKernel kernel = MatmulKernel::kStream8;
  bool normalized = true;
  // As GLM's mixtures have it.
  bool sigmoid = false;
  int32_t shared = 0;
  float scale = 1.0f;
  // As DeepSeek's have it.
  int32_t groups = 1;
  int32_t chosen_groups = 1;

  int32_t passed() const { return per_token + shared; }
  ExpertTiling tiling() const {
    return TilingOf(rows * passed(), experts + shared, kernel, kGroupFewRows);
  }
};

class ExpertsTest : public DeviceTest {
 protected:
  struct Routed {
    std::vector<ExpertChoice> choices;
    std::vector<int32_t> place_rows;
    std::vector<RowTile> tiles;
    uint32_t reads = 0;
  };

  // Rows that are not there have no position.
  Routed Route(const Sizes& s, const std::vector<float>& logits,
               const std::vector<RowPlace>& places, bool first = true,
               uint32_t reads = 77) {
    const int32_t turns = s.rows * s.passed();
    RouteArgs args;
    args.logits = Put(logits);
    args.stride = s.experts + 3;
    args.rows = s.rows;
    args.experts = s.experts;
    args.per_token = s.per_token;
    args.normalized = s.normalized;
    args.shared = s.shared;
    args.sigmoid = s.sigmoid;
    if (s.sigmoid) args.choice_bias = Put(Bias(s));
    args.scale = s.scale;
    args.groups = s.groups;
    args.chosen_groups = s.chosen_groups;
    if (!places.empty()) args.row_places = Put(places);
    args.choices = Take<ExpertChoice>(turns);
    args.tiling = s.tiling();
    args.place_rows = Take<int32_t>(args.tiling.places);
    args.tiles = Take<RowTile>(args.tiling.num_tiles);
    args.reads = Put<uint32_t>({reads});
    args.first = first;
    RunRoute(args, stream().handle());
    Routed routed;
    routed.choices = Get(args.choices, turns);
    routed.place_rows = Get(args.place_rows, args.tiling.places);
    routed.tiles = Get(args.tiles, args.tiling.num_tiles);
    routed.reads = Get(args.reads, 1)[0];
    return routed;
  }

  // Of some experts none.
  static std::vector<float> Bias(const Sizes& s) {
    std::vector<float> bias(s.experts);
    for (int32_t e = 0; e < s.experts; ++e) {
      bias[e] =
          e % 3 == 0 ? 0.0f : 0.0625f * static_cast<float>(e * 7 % 13 - 6);
    }
    return bias;
  }

  // The logits of a row, at its stride.
  static std::vector<float> Logits(const Sizes& s, uint32_t seed) {
    std::mt19937 bits(seed);
    // Few values: some are equal.
    std::uniform_int_distribution<int32_t> value(-40, 40);
    const int64_t stride = s.experts + 3;
    std::vector<float> logits(s.rows * stride,
                              std::numeric_limits<float>::infinity());
    for (int32_t r = 0; r < s.rows; ++r) {
      for (int32_t e = 0; e < s.experts; ++e) {
        const int32_t drawn = value(bits);
        logits[r * stride + e] =
            drawn == 0 && e % 2 == 0 ? -0.0f : 0.125f * drawn;
      }
    }
    return logits;
  }

  // Each place is one row's turn with one expert, an expert's lie together, and
  // so do its tiles, which cover them.
  static void ExpectSorted(const Sizes& s, const Routed& routed) {
    const ExpertTiling tiling = s.tiling();
    std::vector<int32_t> expert_of(tiling.places, -1);
    int32_t there = 0;
    std::set<int32_t> read;
    for (size_t i = 0; i < routed.choices.size(); ++i) {
      const ExpertChoice& choice = routed.choices[i];
      if (choice.expert < 0) {
        EXPECT_EQ(choice.place, -1);
        continue;
      }
      ASSERT_LT(choice.expert, s.experts + s.shared);
      ASSERT_GE(choice.place, 0);
      ASSERT_LT(choice.place, static_cast<int32_t>(expert_of.size()));
      ASSERT_EQ(expert_of[choice.place], -1) << "two at a place";
      expert_of[choice.place] = choice.expert;
      EXPECT_EQ(routed.place_rows[choice.place],
                static_cast<int32_t>(i) / s.passed());
      read.insert(choice.expert);
      ++there;
    }
    EXPECT_EQ(routed.reads, read.size());
    int32_t next = 0;  // place, where they follow each other
    int32_t covered = 0;
    int32_t last_expert = -1;
    bool last_was_full = true;
    bool ended = false;
    for (size_t t = 0; t < routed.tiles.size(); ++t) {
      const RowTile& tile = routed.tiles[t];
      if (tile.rows == 0) {
        ended = true;
        continue;
      }
      ASSERT_FALSE(ended) << "a tile behind one that is not there";
      ASSERT_EQ(tile.first, tiling.staged
                                ? static_cast<int32_t>(t) * tiling.tile_rows
                                : next);
      ASSERT_LE(tile.rows, tiling.tile_rows);
      for (int32_t i = 0; i < tile.rows; ++i) {
        ASSERT_EQ(expert_of[tile.first + i], tile.expert);
      }
      // Only the last one of an expert is not full.
      ASSERT_TRUE(tile.expert > last_expert ||
                  (tile.expert == last_expert && last_was_full));
      last_expert = tile.expert;
      last_was_full = tile.rows == tiling.tile_rows;
      next += tile.rows;
      covered += tile.rows;
    }
    EXPECT_EQ(covered, there);
  }
};

// What the host makes of a row: experts by falling logits, of equal ones the
// first, and their shares.
std::vector<ExpertChoice> ChooseOnHost(const Sizes& s, const float* logits) {
  std::vector<int32_t> order(s.experts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  double sum = 0;
  for (int32_t i = 0; i < (s.normalized ? s.per_token : s.experts); ++i) {
    sum += std::exp(double{logits[order[i]]} - logits[order[0]]);
  }
  std::vector<ExpertChoice> choices(s.per_token);
  for (int32_t i = 0; i < s.per_token; ++i) {
    choices[i].expert = order[i];
    choices[i].share = static_cast<float>(
        std::exp(double{logits[order[i]]} - logits[order[0]]) / sum);
  }
  return choices;
}

TEST_F(ExpertsTest, RowsGoToTheExpertsWithTheLargestLogits) {
  constexpr MatmulKernel kEight = MatmulKernel::kStream8;
  constexpr MatmulKernel kSixtyFour = MatmulKernel::kTile64;
  constexpr MatmulKernel kStaged = MatmulKernel::kGroup;
  std::vector<Sizes> cases = {{1, 8, 2},
                              {1, 128, 8},
                              {5, 1, 1},
                              {7, 5, 5, MatmulKernel::kStream16, false},
                              {64, 60, 4},
                              {65, 128, 8, kSixtyFour, false},
                              {33, 1024, 32, kEight},
                              {300, 9, 3, kSixtyFour},
                              {130, 33, 2, MatmulKernel::kTile128},
                              {290, 4, 2, kStaged},
                              {17, 40, 3, kStaged}};
  if (large()) cases.push_back({4096, 128, 8, kStaged});
  for (const Sizes& s : cases) {
    SCOPED_TRACE(testing::Message() << s.rows << " rows, " << s.experts);
    const std::vector<float> logits = Logits(s, 5 + s.rows);
    const Routed routed = Route(s, logits, /*places=*/{});
    ExpectSorted(s, routed);
    for (int32_t r = 0; r < s.rows; ++r) {
      const std::vector<ExpertChoice> expected =
          ChooseOnHost(s, logits.data() + int64_t{r} * (s.experts + 3));
      for (int32_t i = 0; i < s.per_token; ++i) {
        const ExpertChoice& choice = routed.choices[r * s.per_token + i];
        ASSERT_EQ(choice.expert, expected[i].expert) << r << " " << i;
        ASSERT_NEAR(choice.share, expected[i].share, 1e-5f * expected[i].share)
            << r << " " << i;
      }
    }
  }
}

float SigmoidOnHost(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Logits are far enough apart that how a sigmoid is rounded changes no choice,
// and equal ones have equal scores.
TEST_F(ExpertsTest, SharedExpertsComeAfterThoseThatScoreBest) {
  std::vector<Sizes> cases = {{1, 8, 2},
                              {5, 160, 8},
                              {64, 60, 4},
                              {130, 33, 2},
                              {290, 5, 3},
                              {17, 40, 3, MatmulKernel::kGroup},
                              {66, 300, 31, MatmulKernel::kTile64}};
  for (Sizes& s : cases) {
    SCOPED_TRACE(testing::Message() << s.rows << " rows, " << s.experts);
    s.sigmoid = true;
    s.shared = 1 + s.rows % 2 * (s.per_token < 31 ? 1 : 0);
    s.normalized = s.rows != 64;
    s.scale = 2.5f;
    const std::vector<float> logits = Logits(s, 6 + s.rows);
    const std::vector<float> bias = Bias(s);
    const Routed routed = Route(s, logits, /*places=*/{});
    ExpectSorted(s, routed);
    for (int32_t r = 0; r < s.rows; ++r) {
      const float* const of_row = logits.data() + int64_t{r} * (s.experts + 3);
      const ExpertChoice* const choices =
          routed.choices.data() + int64_t{r} * s.passed();
      std::vector<int32_t> order(s.experts);
      std::iota(order.begin(), order.end(), 0);
      const auto score = [&](int32_t e) {
        return SigmoidOnHost(of_row[e]) + bias[e];
      };
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return score(a) > score(b);
      });
      double sum = 0;
      std::set<int32_t> chosen;
      for (int32_t i = 0; i < s.per_token; ++i) {
        ASSERT_LT(choices[i].expert, s.experts);
        ASSERT_TRUE(chosen.insert(choices[i].expert).second) << r << " " << i;
        // Of nearly equal scores any may come first.
        ASSERT_NEAR(score(choices[i].expert), score(order[i]), 1e-6) << r;
        sum += SigmoidOnHost(of_row[choices[i].expert]);
      }
      for (int32_t i = 0; i < s.per_token; ++i) {
        const double share = SigmoidOnHost(of_row[choices[i].expert]) *
                             s.scale / (s.normalized ? sum : 1.0);
        ASSERT_NEAR(choices[i].share, share, 1e-5 * share) << r << " " << i;
      }
      for (int32_t i = 0; i < s.shared; ++i) {
        EXPECT_EQ(choices[s.per_token + i].expert, s.experts + i);
        EXPECT_EQ(choices[s.per_token + i].share, 1.0f);
      }
    }
  }
}

// The largest `count` of the scores, of equal ones the first; `gap` becomes how
// far the next one is, if that is less.
std::vector<int32_t> LargestOf(const std::vector<float>& scores, int32_t count,
                               float* gap) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  if (count < static_cast<int32_t>(order.size())) {
    const float next = scores[order[count - 1]] - scores[order[count]];
    if (next != 0.0f) *gap = std::min(*gap, next);
  }
  order.resize(count);
  return order;
}

// Of groups the best by their best expert, or by the sum of their best two.
TEST_F(ExpertsTest, ExpertsAreOfTheBestGroups) {
  std::vector<Sizes> cases = {{1, 8, 3},
                              {5, 160, 6},
                              {66, 256, 8, MatmulKernel::kTile64},
                              {130, 33, 2},
                              {40, 512, 9}};
  const std::pair<int32_t, int32_t> groups[] = {
      {4, 2}, {8, 3}, {8, 4}, {11, 1}, {32, 2}};
  for (size_t c = 0; c < cases.size(); ++c) {
    for (const bool sigmoid : {false, true}) {
      Sizes s = cases[c];
      std::tie(s.groups, s.chosen_groups) = groups[c];
      s.sigmoid = sigmoid;
      s.shared = 2;
      SCOPED_TRACE(testing::Message()
                   << s.rows << " rows, " << s.experts << " " << sigmoid);
      const std::vector<float> logits = Logits(s, 8 + s.rows);
      const std::vector<float> bias = Bias(s);
      const Routed routed = Route(s, logits, /*places=*/{});
      ExpectSorted(s, routed);
      const int32_t size = s.experts / s.groups;
      int32_t looked_at = 0;
      for (int32_t r = 0; r < s.rows; ++r) {
        const float* const of_row = logits.data() + r * (s.experts + 3);
        std::vector<float> scores(of_row, of_row + s.experts);
        if (sigmoid) {
          for (int32_t e = 0; e < s.experts; ++e) {
            scores[e] = SigmoidOnHost(of_row[e]) + bias[e];
          }
        }
        std::vector<float> of_groups;
        for (int32_t g = 0; g < s.groups; ++g) {
          std::vector<float> own(scores.begin() + g * size,
                                 scores.begin() + (g + 1) * size);
          std::sort(own.rbegin(), own.rend());
          of_groups.push_back(sigmoid ? own[0] + own[1] : own[0]);
        }
        float gap = 1.0f;
        const std::vector<int32_t> best =
            LargestOf(of_groups, s.chosen_groups, &gap);
        for (int32_t e = 0; e < s.experts; ++e) {
          if (std::count(best.begin(), best.end(), e / size) == 0) {
            scores[e] = -std::numeric_limits<float>::infinity();
          }
        }
        const std::vector<int32_t> expected =
            LargestOf(scores, s.per_token, &gap);
        // Nearly equal ones may be rounded the other way.
        if (gap < 1e-5f) continue;
        ++looked_at;
        std::set<int32_t> chosen;
        for (int32_t i = 0; i < s.per_token; ++i) {
          chosen.insert(routed.choices[r * s.passed() + i].expert);
        }
        EXPECT_EQ(chosen, std::set<int32_t>(expected.begin(), expected.end()))
            << r;
      }
      EXPECT_GE(looked_at, (s.rows + 1) / 2);
    }
  }
}

// As in graphs with room for more rows than a step has.
TEST_F(ExpertsTest, RowsThatAreNotThereReadNoExpert) {
  for (const int32_t rows : {16, 96}) {
    Sizes s = {rows, 40, 4};
    s.shared = 1;
    std::vector<RowPlace> places(s.rows);
    for (int32_t r = 0; r < s.rows; ++r) {
      if (r % 3 == 1) places[r].position = r;
    }
    const Routed routed = Route(s, Logits(s, 3), places);
    ExpectSorted(s, routed);
    for (int32_t r = 0; r < s.rows; ++r) {
      const ExpertChoice& first = routed.choices[r * s.passed()];
      EXPECT_EQ(first.expert >= 0, r % 3 == 1) << r;
      if (r % 3 != 1) {
        EXPECT_EQ(first.share, 0.0f);
      }
    }
  }
  const Sizes s = {4, 10, 2};
  const Routed none = Route(s, Logits(s, 3), std::vector<RowPlace>(4));
  ExpectSorted(s, none);
  EXPECT_EQ(none.reads, 0u);
}

TEST_F(ExpertsTest, ReadsAddUpOverLayers) {
  const Sizes s = {1, 10, 3};
  EXPECT_EQ(Route(s, Logits(s, 4), {}, /*first=*/false, 7).reads, 10u);
  EXPECT_EQ(Route(s, Logits(s, 4), {}, /*first=*/true, 7).reads, 3u);
}

// Where a row's numbers are none, it still goes to as many experts, and others
// go where they went.
TEST_F(ExpertsTest, RowsThatAreNoNumbersLeaveOthersAlone) {
  const Sizes s = {6, 40, 4};
  std::vector<float> logits = Logits(s, 9);
  const Routed before = Route(s, logits, {});
  const int64_t stride = s.experts + 3;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int32_t e = 0; e < s.experts; ++e) {
    logits[1 * stride + e] = std::nanf("");
    logits[3 * stride + e] = e == 20 ? -std::nanf("") : -kInfinity;
    logits[4 * stride + e] = e % 2 == 0 ? kInfinity : -1.0f;
  }
  const Routed routed = Route(s, logits, {});
  ExpectSorted(s, routed);
  for (int32_t r = 0; r < s.rows; ++r) {
    std::set<int32_t> experts;
    for (int32_t i = 0; i < s.per_token; ++i) {
      const ExpertChoice& choice = routed.choices[r * s.per_token + i];
      experts.insert(choice.expert);
      if (r == 1 || r == 3 || r == 4) {
        EXPECT_TRUE(std::isnan(choice.share)) << r;
        continue;
      }
      EXPECT_EQ(choice.expert, before.choices[r * s.per_token + i].expert);
      EXPECT_EQ(choice.share, before.choices[r * s.per_token + i].share);
    }
    EXPECT_EQ(experts.size(), 4u) << r;
  }
}

TEST_F(ExpertsTest, OutputsAreAddedInTheOrderOfTheirShares) {
  constexpr int32_t kRows = 3;
  // More than are asked for at once, and fewer.
  for (const auto& [size, per_token] : {std::pair(5, 11), std::pair(2052, 4)}) {
    std::vector<ExpertChoice> choices(kRows * per_token);
    for (int32_t i = 0; i < kRows * per_token; ++i) {
      choices[i] = {i % 7, (5 * i) % 36, 0.3f / (1 + i % per_token)};
    }
    // A row that is not there.
    std::fill_n(choices.begin() + per_token, per_token, ExpertChoice());
    const std::vector<float> said = Floats(RandomBf16(int64_t{36} * size, 21));
    const std::vector<float> before =
        Floats(RandomBf16(int64_t{kRows} * size, 22));
    MixArgs args;
    args.choices = Put(choices);
    args.rows = kRows;
    args.per_token = per_token;
    args.said = Put(said);
    args.size = size;
    for (const bool add : {false, true}) {
      args.add = add;
      args.out = Put(before);
      RunMix(args, stream().handle());
      const std::vector<float> out = Get(args.out, int64_t{kRows} * size);
      for (int32_t r = 0; r < kRows; ++r) {
        for (int32_t i = 0; i < size; ++i) {
          float sum = 0;
          for (int32_t k = 0; k < per_token; ++k) {
            const ExpertChoice& choice = choices[r * per_token + k];
            if (choice.expert < 0) continue;
            const volatile float term =
                choice.share * said[int64_t{choice.place} * size + i];
            sum += term;
          }
          const int64_t at = int64_t{r} * size + i;
          ASSERT_EQ(out[at], add ? before[at] + sum : sum) << r << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton::engine::cuda
