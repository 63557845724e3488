// Drawing tokens on a device: the same tokens as engine/sampling.h.
#include "engine/cuda/sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/cuda/sample_plan.h"
#include "engine/sampling.h"
#include "tests/engine/cuda/device_fixture.h"

namespace baton::engine::cuda {
namespace {

using scheduling::PlannedSequence;
using scheduling::SampledToken;
using scheduling::SamplingParams;

class SampleTest : public DeviceTest {
 protected:
  struct Row {
    std::vector<float> logits;
    SamplingParams params;
    std::vector<TokenId> history;
    int32_t prompt_length = 1;
    std::vector<TokenId> forbidden;
    std::optional<scheduling::TokenMask> allowed;
    int32_t top = 0;
  };

  static PlannedSequence SequenceOf(const Row& row) {
    PlannedSequence s;
    s.sequence = SequenceId{7};
    s.sample = true;
    s.sampling = &row.params;
    s.history = row.history;
    s.prompt_length = row.prompt_length;
    s.forbidden = row.forbidden;
    if (row.allowed) s.allowed = &*row.allowed;
    s.top_logprobs = row.top;
    return s;
  }

  // Draws for all rows in one launch and compares with the host. Returns how
  // many the device left to it.
  int32_t ExpectSame(const std::vector<Row>& rows, const std::string& what) {
    const auto size = static_cast<int32_t>(rows[0].logits.size());
    const int64_t stride = size + 3;
    std::vector<float> logits(rows.size() * stride, NAN);
    std::vector<SampleRow> how;
    DrawLists lists;
    for (size_t r = 0; r < rows.size(); ++r) {
      std::copy(rows[r].logits.begin(), rows[r].logits.end(),
                logits.begin() + r * stride);
      how.push_back(PlanSample(SequenceOf(rows[r]), 0, size, &lists));
    }
    lists.edits.push_back({});  // never empty
    std::vector<uint32_t> masks = {0};
    for (SampleRow& row : how) {
      if (row.mask == kNoMask) continue;
      const absl::Span<const uint32_t> words =
          lists.masks[row.mask - 1]->words();
      row.mask = static_cast<int32_t>(masks.size());
      masks.insert(masks.end(), words.begin(), words.end());
    }
    SampleArgs args;
    args.logits = Put(logits);
    args.edited = Take<float>(static_cast<int64_t>(logits.size()));
    args.stride = stride;
    args.vocab_size = size;
    args.rows = static_cast<int32_t>(rows.size());
    args.how = Put(how);
    args.edits = Put(lists.edits);
    args.masks = Put(masks);
    args.outcomes = Take<SampleOutcome>(args.rows);
    args.tops = Take<TopLogit>(args.rows * kTopPlaces);
    RunSample(args, stream().handle());
    const std::vector<SampleOutcome> outcomes = Get(args.outcomes, args.rows);
    const std::vector<TopLogit> tops = Get(args.tops, args.rows * kTopPlaces);
    EXPECT_EQ(std::memcmp(
                  Get(args.logits, static_cast<int64_t>(logits.size())).data(),
                  logits.data(), logits.size() * sizeof(float)),
              0)
        << "changed the logits";
    int32_t undecided = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      std::vector<float> copy = rows[r].logits;
      const SampledToken expected =
          DrawOnHost(SequenceOf(rows[r]), 0, absl::MakeSpan(copy));
      if (HostDraws(how[r], outcomes[r])) {
        ++undecided;
        continue;
      }
      const SampledToken token =
          TokenOf(SequenceOf(rows[r]).sequence, outcomes[r],
                  tops.data() + r * kTopPlaces, rows[r].top);
      EXPECT_EQ(token.ok, expected.ok) << what << " row " << r;
      if (!token.ok || !expected.ok) continue;
      EXPECT_EQ(token.token, expected.token) << what << " row " << r;
      EXPECT_EQ(token.logprob, expected.logprob) << what << " row " << r;
      EXPECT_EQ(token.top, expected.top) << what << " row " << r;
      EXPECT_EQ(token.sequence, SequenceId{7});
    }
    return undecided;
  }

  // Rows of random logits with these parameters and seeds of their own.
  std::vector<Row> Rows(const SamplingParams& params, int32_t size,
                        float spread, int32_t count = 6) const {
    std::mt19937 bits(static_cast<uint32_t>(size) + 17);
    std::normal_distribution<float> normal(0.0f, spread);
    std::vector<Row> rows(count);
    for (int32_t r = 0; r < count; ++r) {
      rows[r].logits.resize(size);
      for (float& logit : rows[r].logits) logit = normal(bits);
      rows[r].params = params;
      rows[r].params.seed = 1000 + r;
      rows[r].history.assign(3 + r, 5);
      rows[r].prompt_length = 2;
      constexpr int32_t kTops[] = {0, 1, 5, 20};
      rows[r].top = kTops[r % 4];
    }
    return rows;
  }

  std::vector<int32_t> Sizes() const {
    if (emulated()) return {40, 1500};
    return {40, 1024, 1500, 32000, 128256, 151936};
  }
};

std::vector<std::pair<std::string, SamplingParams>> Ways() {
  std::vector<std::pair<std::string, SamplingParams>> ways;
  const auto add = [&](const char* name, auto change) {
    SamplingParams params;
    change(params);
    ways.emplace_back(name, params);
  };
  add("plain", [](auto&) {});
  add("greedy", [](auto& p) { p.temperature = 0; });
  add("hot", [](auto& p) { p.temperature = 1.7f; });
  add("top-k", [](auto& p) { p.top_k = 20; });
  add("top-p", [](auto& p) { p.top_p = 0.8f; });
  add("min-p", [](auto& p) { p.min_p = 0.05f; });
  add("all", [](auto& p) {
    p.temperature = 0.7f;
    p.top_k = 30;
    p.top_p = 0.9f;
    p.min_p = 0.02f;
  });
  add("top-p and min-p", [](auto& p) {
    p.top_p = 0.95f;
    p.min_p = 0.1f;
  });
  add("top-k of one", [](auto& p) { p.top_k = 1; });
  return ways;
}

TEST_F(SampleTest, EachWayOfSamplingDrawsTheSameTokens) {
  for (const int32_t size : Sizes()) {
    for (const auto& [name, params] : Ways()) {
      // So far apart that the candidates hold what is kept of any size.
      EXPECT_EQ(ExpectSame(Rows(params, size, 5.0f), name), 0)
          << name << " " << size;
    }
  }
}

TEST_F(SampleTest, BiasesPenaltiesAndMasks) {
  for (const int32_t size : Sizes()) {
    for (const float temperature : {0.0f, 0.8f}) {
      SamplingParams params;
      params.temperature = temperature;
      params.repetition_penalty = 1.3f;
      params.presence_penalty = 0.5f;
      params.frequency_penalty = -0.25f;
      params.logit_bias = {{3, 4.0f}, {7, -100.0f}, {9, 0.5f}};
      std::vector<Row> rows = Rows(params, size, 2.0f);
      for (size_t r = 0; r < rows.size(); ++r) {
        rows[r].history = {3, 9, 11, 11, 4, static_cast<TokenId>(r), 4, 11};
        rows[r].prompt_length = 3;
        rows[r].forbidden = {static_cast<TokenId>(r + 1), 3, 3};
      }
      rows[0].forbidden.clear();
      rows[1].params.repetition_penalty = 1.0f;
      rows[2].params.repetition_penalty = 1e-30f;  // makes huge logits
      EXPECT_EQ(ExpectSame(rows, "edits"), 0);
    }
  }
}

// Of all sizes: one token, a few, more than there are candidates, all but one.
// What is not allowed may be the likeliest by far.
TEST_F(SampleTest, OnlyWhatIsAllowedComesOut) {
  for (const int32_t size : Sizes()) {
    for (const auto& [name, params] : Ways()) {
      std::vector<Row> rows = Rows(params, size, 5.0f);
      for (size_t r = 0; r < rows.size(); ++r) {
        Row& row = rows[r];
        std::vector<TokenId> tokens;
        const auto at = static_cast<TokenId>(size / 3 + r);
        switch (r) {
          case 0:
            tokens = {at};
            break;
          case 1:
            tokens = {0, at, size - 1};
            break;
          case 2:
            for (TokenId t = 1; t < size; t += 2) tokens.push_back(t);
            break;
          case 3:
            tokens.resize(size - 1);
            std::iota(tokens.begin(), tokens.end(), 1);
            row.logits[0] = 60.0f;
            break;
          case 4:
            tokens = {at, 3, 7};
            row.forbidden = {3};
            row.params.logit_bias = {{5, 100.0f}, {7, 1.0f}};
            row.params.repetition_penalty = 1.2f;
            break;
          default:  // all
            continue;
        }
        row.allowed.emplace(size, tokens);
      }
      EXPECT_EQ(ExpectSame(rows, name), 0) << name << " " << size;
      for (const Row& row : rows) {
        std::vector<float> copy = row.logits;
        const TokenId token =
            DrawOnHost(SequenceOf(row), 0, absl::MakeSpan(copy)).token;
        EXPECT_TRUE(!row.allowed || row.allowed->Has(token)) << name;
      }
    }
  }
}

TEST_F(SampleTest, TiesAndSignsOfZero) {
  std::vector<Row> rows = Rows(SamplingParams(), 1500, 1.0f);
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < rows[r].logits.size(); ++i) {
      // Few different values, both zeros among them.
      const int kind = static_cast<int>((i * 7 + r) % 50);
      rows[r].logits[i] = kind == 0 ? 0.0f : kind == 1 ? -0.0f : -5.0f - kind;
    }
    rows[r].params.top_k = static_cast<int32_t>(10 + r);
    if (r % 3 == 1) rows[r].params.temperature = 0;
    if (r % 3 == 2) {
      rows[r].params.top_k = 0;
      rows[r].params.top_p = 0.5f;
    }
  }
  ExpectSame(rows, "ties");
}

TEST_F(SampleTest, NoMoreOfTheLikeliestThanThereAre) {
  std::vector<Row> rows = Rows(SamplingParams(), 7, 1.0f);
  rows[0].params.temperature = 0;
  rows[2].logits.assign(7, 0.25f);
  for (Row& row : rows) row.top = 20;
  EXPECT_EQ(ExpectSame(rows, "7 tokens"), 0);
  for (Row& row : rows) row.top = 7;
  EXPECT_EQ(ExpectSame(rows, "7 of 7"), 0);
}

// What is asked of a row that draws nothing.
TEST_F(SampleTest, TheLikeliestOfRowsThatOnlyHaveStatistics) {
  const std::vector<Row> rows = Rows(SamplingParams(), 1500, 3.0f);
  std::vector<float> logits;
  std::vector<SampleRow> how(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    logits.insert(logits.end(), rows[r].logits.begin(), rows[r].logits.end());
    how[r].statistics_only = 1;
    how[r].top = 1 + static_cast<int32_t>(r);
  }
  SampleArgs args;
  args.logits = Put(logits);
  args.stride = args.vocab_size = 1500;
  args.rows = static_cast<int32_t>(rows.size());
  args.how = Put(how);
  args.outcomes = Take<SampleOutcome>(args.rows);
  args.tops = Take<TopLogit>(args.rows * kTopPlaces);
  RunSample(args, stream().handle());
  const std::vector<SampleOutcome> outcomes = Get(args.outcomes, args.rows);
  const std::vector<TopLogit> tops = Get(args.tops, args.rows * kTopPlaces);
  for (size_t r = 0; r < rows.size(); ++r) {
    std::vector<scheduling::TokenLogprob> expected;
    LogProbability(rows[r].logits, 0, how[r].top, &expected);
    EXPECT_EQ(TopOf(outcomes[r], tops.data() + r * kTopPlaces, how[r].top),
              expected)
        << r;
    expected.pop_back();
    EXPECT_EQ(TopOf(outcomes[r], tops.data() + r * kTopPlaces, how[r].top - 1),
              expected)
        << r;
  }
}

TEST_F(SampleTest, WhatTheCandidatesDoNotHoldIsLeftToTheHost) {
  // Flat: a nucleus of 0.9 is more than the candidates.
  SamplingParams params;
  params.top_p = 0.9f;
  std::vector<Row> rows = Rows(params, 3000, 0.01f, 4);
  EXPECT_EQ(ExpectSame(rows, "flat"), 4);
  for (Row& row : rows) {
    row.params.top_p = 1.0f;
    row.params.top_k = 2000;
  }
  EXPECT_EQ(ExpectSame(rows, "top-k of many"), 4);
  for (Row& row : rows) {
    row.params.top_k = 0;
    row.params.min_p = 0.5f;
  }
  EXPECT_EQ(ExpectSame(rows, "min-p"), 4);
  // All alike: more ties than candidates.
  for (Row& row : rows) {
    row.logits.assign(3000, 1.5f);
    row.params.top_k = 5;
  }
  EXPECT_EQ(ExpectSame(rows, "ties"), 4);
  // Then the likeliest cannot be told, either.
  for (Row& row : rows) {
    row.params.top_k = 0;
    row.params.temperature = 0;
    row.top = 3;
  }
  EXPECT_EQ(ExpectSame(rows, "likeliest of ties"), 4);
}

TEST_F(SampleTest, LogitsThatAreNotFiniteEndTheirRowAlone) {
  std::vector<Row> rows = Rows(SamplingParams(), 700, 2.0f);
  rows[1].logits[699] = std::numeric_limits<float>::quiet_NaN();
  rows[4].logits[0] = std::numeric_limits<float>::infinity();
  rows[5].logits[511] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(ExpectSame(rows, "not finite"), 0);
}

TEST_F(SampleTest, DrawsFollowTheDistribution) {
  // Two tokens at 3 : 1, and many draws.
  SamplingParams params;
  const int32_t count = emulated() ? 60 : 4000;
  std::vector<Row> rows = Rows(params, 64, 1.0f, count);
  int32_t first = 0;
  for (int32_t r = 0; r < count; ++r) {
    rows[r].logits.assign(64, -80.0f);
    rows[r].logits[10] = std::log(3.0f);
    rows[r].logits[50] = 0.0f;
    std::vector<float> copy = rows[r].logits;
    first +=
        DrawOnHost(SequenceOf(rows[r]), 0, absl::MakeSpan(copy)).token == 10;
  }
  EXPECT_EQ(ExpectSame(rows, "3 : 1"), 0);
  EXPECT_NEAR(first / static_cast<double>(count), 0.75,
              4 * std::sqrt(0.75 * 0.25 / count));
}

}  // namespace
}  // namespace baton::engine::cuda
