// Workers with two sides, and clusters of them.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/cluster_simulation.h"
#include "planner/decode_simulation.h"
#include "planner/prefill_simulation.h"
#include "tests/planner/dice.h"
#include "workload/workload.h"

namespace baton::planner::dual_workers_test {
namespace {

using workload::PlannedRequest;

struct Fate {
  double first_at = -1;
  double finished_at = -1;
  double longest_gap = 0;
};

class Recorder final : public WorkerListener {
 public:
  void OnFirstToken(uint32_t request, double, double now) override {
    fates[request].first_at = now;
  }
  void OnFirstGap(uint32_t request, double seconds) override {
    fates[request].longest_gap = seconds;
  }
  void OnFinished(uint32_t request, double longest_gap, double now) override {
    double& gap = fates[request].longest_gap;
    gap = std::max(gap, longest_gap);
    fates[request].finished_at = now;
  }
  std::map<uint32_t, Fate> fates;
};

// One worker; what the sides tell is in `prefilled` and `decoded`.
class DualWorker final {
 public:
  DualWorker(const PrefillSimulationOptions& prefill,
             const DecodeSimulationOptions& decode)
      : free_blocks_(prefill.total_blocks),
        prefill_(prefill, &prefilled),
        decode_(decode, &decoded, &gaps_) {
    prefill_.ShareWith(&decode_, &free_blocks_);
    decode_.ShareWith(&prefill_);
  }

  PrefillSimulation& prefill() { return prefill_; }
  DecodeSimulation& decode() { return decode_; }

  // All events before `until`.
  void Run(double until) {
    while (true) {
      const double now = std::min(prefill_.next_event(), decode_.next_event());
      if (!(now < until)) return;
      ++runs;
      if (decode_.next_event() <= now) {
        decode_.Advance();
      } else {
        prefill_.Advance();
      }
    }
  }
  void RunAll() { Run(1e9); }

  Recorder prefilled;
  Recorder decoded;
  int64_t runs = 0;

 private:
  int32_t free_blocks_;
  GapHistogram gaps_;
  PrefillSimulation prefill_;
  DecodeSimulation decode_;
};

PrefillSimulationOptions PrefillSide() {
  PrefillSimulationOptions options;
  options.cost.fixed = 0.02;
  options.token_budget = 50;
  options.block_size = 4;
  options.total_blocks = 10'000;
  return options;
}

DecodeSimulationOptions DecodeSide() {
  DecodeSimulationOptions options;
  options.cost.fixed = 0.01;
  options.token_budget = 200;
  return options;
}

SimulatedPrompt Prompt(uint32_t request, int32_t tokens) {
  SimulatedPrompt prompt;
  prompt.request = request;
  prompt.left = tokens;
  prompt.output = 1;
  prompt.due = INFINITY;
  return prompt;
}

TEST(DualWorkerTest, StepsTakeTurns) {
  DualWorker worker(PrefillSide(), DecodeSide());
  worker.decode().AddStream(0, 10, 10, 0, 0);
  worker.Run(0.005);
  worker.prefill().Add(Prompt(1, 100), 0.005);
  worker.RunAll();
  // Two chunks of 20 ms, each with a step of the stream: 5 to 35 and 65 ms. Of
  // the stream's steps, those that begin at 10 and 40 ms take 30, the others
  // ten.
  EXPECT_NEAR(worker.prefilled.fates[1].first_at, 0.065, 1e-9);
  EXPECT_NEAR(worker.decoded.fates[0].finished_at, 0.140, 1e-9);
  EXPECT_NEAR(worker.decoded.fates[0].longest_gap, 0.03, 1e-9);
  // Each has the device for its own steps.
  EXPECT_NEAR(worker.prefill().usage().busy_seconds, 0.04, 1e-9);
  EXPECT_NEAR(worker.decode().usage().busy_seconds, 0.1, 1e-9);
}

TEST(DualWorkerTest, PromptsLeaveStreamsTheirTime) {
  PrefillSimulationOptions prefill = PrefillSide();
  prefill.cost = {.fixed = 0.005, .per_token = 0.001};
  prefill.token_budget = 500;
  DecodeSimulationOptions decode = DecodeSide();
  decode.itl_target_seconds = 0.05;
  const auto first_token = [&] {
    DualWorker worker(prefill, decode);
    worker.decode().AddStream(0, 10, 100, 0, 0);
    worker.prefill().Add(Prompt(1, 90), 0);
    worker.RunAll();
    return worker.prefilled.fates[1].first_at;
  };
  // 45 ms: ten of them for the stream, five for a chunk, and 30 tokens.
  EXPECT_NEAR(first_token(), 3 * 0.045, 1e-9);
  // Eight for a chunk: the least has 16 tokens, the last of six ten.
  decode.itl_target_seconds = 0.02;
  EXPECT_NEAR(first_token(), 6 * 0.015 + 0.09, 1e-9);
  decode.itl_target_seconds = 0;
  EXPECT_NEAR(first_token(), 0.01 + 0.095, 1e-9);
}

TEST(DualWorkerTest, PromptsLeaveTimeForStreamsThatCome) {
  PrefillSimulationOptions prefill = PrefillSide();
  prefill.cost = {.fixed = 0.005, .per_token = 0.001};
  prefill.token_budget = 500;
  DecodeSimulationOptions decode = DecodeSide();
  decode.itl_target_seconds = 0.05;
  DualWorker worker(prefill, decode);
  worker.decode().Coming(0);
  worker.prefill().Add(Prompt(1, 90), 0);
  worker.RunAll();
  // 40, 40 and ten tokens.
  EXPECT_NEAR(worker.prefilled.fates[1].first_at, 0.09 + 3 * 0.005, 1e-9);
}

TEST(DualWorkerTest, BothSidesTakeTheSameBlocks) {
  int32_t free_blocks = 30;  // of 100, 70 of which are the decode side's
  PrefillSimulationOptions options = PrefillSide();
  options.total_blocks = 100;
  Recorder recorder;
  Recorder others;
  GapHistogram gaps;
  DecodeSimulation decode(DecodeSide(), &others, &gaps);
  PrefillSimulation prefill(options, &recorder);
  prefill.ShareWith(&decode, &free_blocks);
  prefill.Add(Prompt(1, 200), 0);
  EXPECT_TRUE(std::isinf(prefill.next_event()));
  free_blocks += 20;
  prefill.BlocksCame(1);
  EXPECT_EQ(free_blocks, 0);
  EXPECT_LT(prefill.next_event(), 2);
  while (std::isfinite(prefill.next_event())) prefill.Advance();
  prefill.Release(200, 3);
  EXPECT_EQ(free_blocks, 50);
}

// Prompts for the prefill side; streams, and prompts, for the decode side.
void RandomWork(Dice dice, DualWorker* worker) {
  double at = 0;
  for (uint32_t i = 0; i < 40; ++i) {
    at += dice.Chance(0.2) ? dice.Real(0, 2) : dice.Real(0, 0.1);
    worker->Run(at);
    const int32_t length = dice.Whole(1, 300);
    if (dice.Chance(0.4)) {
      worker->prefill().Add(Prompt(i, length), at);
    } else if (dice.Chance(0.2)) {
      SimulatedPrompt prompt = Prompt(i, length);
      prompt.output = dice.Whole(1, 60);
      worker->decode().AddPrompt(prompt, at);
    } else {
      const double landing = at + dice.Real(0, 0.1);
      worker->decode().Coming(at);
      worker->Run(landing);
      worker->decode().NoLongerComing(landing);
      worker->decode().AddStream(i, length, dice.Whole(1, 60), at, landing);
      at = landing;
    }
  }
  worker->RunAll();
}

TEST(DualWorkerTest, FastForwardChangesNothing) {
  int64_t runs = 0;
  int64_t steps = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    PrefillSimulationOptions prefill = PrefillSide();
    prefill.cost = DrawCost(&dice);
    prefill.token_budget = dice.Whole(20, 200);
    DecodeSimulationOptions decode = DecodeSide();
    decode.cost = DrawCost(&dice);
    decode.itl_target_seconds = dice.Chance(0.5) ? dice.Real(0.01, 0.05) : 0;
    DualWorker fast(prefill, decode);
    prefill.fast_forward = decode.fast_forward = false;
    DualWorker slow(prefill, decode);
    RandomWork(dice, &fast);
    RandomWork(dice, &slow);
    runs += fast.runs;
    steps += slow.runs;
    for (const auto& [of_fast, of_slow] :
         {std::make_pair(&fast.prefilled, &slow.prefilled),
          std::make_pair(&fast.decoded, &slow.decoded)}) {
      ASSERT_EQ(of_fast->fates.size(), of_slow->fates.size());
      for (const auto& [request, fate] : of_slow->fates) {
        const Fate& other = of_fast->fates.at(request);
        EXPECT_NEAR(other.first_at, fate.first_at, 1e-7) << request;
        EXPECT_NEAR(other.finished_at, fate.finished_at, 1e-7) << request;
        EXPECT_NEAR(other.longest_gap, fate.longest_gap, 1e-7) << request;
      }
    }
    if (HasFailure()) return;
  }
  EXPECT_LT(runs, steps);
}

// Twenty milliseconds for a step, 0.1 for each token, and 0.4 for one of a
// stream.
SimulationOptions Cluster(int32_t prefill, int32_t decode) {
  WorkerProfile worker;
  worker.cost = {.fixed = 0.02,
                 .per_token = 1e-4,
                 .per_context_token = 1e-8,
                 .per_sequence = 4e-4,
                 .per_prompt_context_token = 1e-8};
  worker.total_blocks = 4000;
  worker.max_sequences = 200;
  worker.token_budget = 512;
  SimulationOptions options;
  options.profile.prefill = options.profile.decode = worker;
  options.profile.prefill.token_budget = 2048;
  options.profile.kv_bytes_per_token = 1000;
  options.profile.num_layers = 10;
  options.profile.link_bytes_per_second = 1e9;
  options.num_prefill = prefill;
  options.num_decode = decode;
  options.targets = {absl::Seconds(2), absl::Milliseconds(40)};
  options.dual_workers = true;
  options.timeout_seconds = 60;
  return options;
}

std::vector<PlannedRequest> Poisson(double rate, double seconds,
                                    workload::LengthRange prompt,
                                    workload::LengthRange output,
                                    uint64_t seed = 1) {
  workload::SyntheticOptions options;
  options.arrivals.rate = rate;
  options.arrivals.seed = seed;
  options.prompt = prompt;
  options.output = output;
  options.duration = absl::Seconds(seconds);
  options.seed = seed;
  return workload::MakeSynthetic(options);
}

TEST(DualClusterTest, ComesToAsMuchAsTheSplitThatFits) {
  // Prompts of 2000 tokens take 0.2 s and a bit: 30 a second, nearly seven
  // workers.
  const auto requests = Poisson(30, 300, {1500, 2500}, {10, 30});
  const auto run = [&](int32_t prefill, bool dual) {
    SimulationOptions options = Cluster(prefill, 8 - prefill);
    options.dual_workers = dual;
    return Simulate(options, requests, absl::Seconds(300));
  };
  const SimulationResult halves = run(4, false);
  const SimulationResult fits = run(7, false);
  EXPECT_EQ(halves.role_changes, 0);
  ASSERT_GT(fits.goodput, 1.15 * halves.goodput);
  for (const int32_t prefill : {0, 2, 4, 7}) {
    const SimulationResult dual = run(prefill, true);
    // Half a minute of another split at first.
    EXPECT_GT(dual.goodput, 0.92 * fits.goodput) << prefill;
    EXPECT_LE(dual.role_changes, 12) << prefill;
    EXPECT_EQ(dual.finished + dual.rejected + dual.unfinished, dual.offered);
  }
}

TEST(DualClusterTest, WhereNobodyChangesItIsAsOthers) {
  const auto requests = Poisson(20, 200, {1500, 2500}, {10, 30});
  SimulationOptions options = Cluster(7, 1);
  const SimulationResult dual = Simulate(options, requests, absl::Seconds(200));
  options.dual_workers = false;
  const SimulationResult fixed =
      Simulate(options, requests, absl::Seconds(200));
  EXPECT_EQ(dual.role_changes, 0);
  EXPECT_NEAR(dual.ttft.mean, fixed.ttft.mean, 0.02 * fixed.ttft.mean);
  EXPECT_NEAR(dual.tpot.mean, fixed.tpot.mean, 0.02 * fixed.tpot.mean);
  EXPECT_NEAR(dual.prefill.busy * 8, fixed.prefill.busy * 7, 0.05);
  EXPECT_NEAR(dual.decode.busy * 8, fixed.decode.busy, 0.05);
}

// What is asked for becomes another thing: roles follow, and all ends well.
std::vector<PlannedRequest> InTurn(double phase_seconds, uint64_t seed) {
  std::vector<PlannedRequest> requests;
  for (int phase = 0; phase < 4; ++phase) {
    const bool code = phase % 2 == 0;
    for (PlannedRequest request :
         Poisson(25, phase_seconds,
                 code ? workload::LengthRange{1000, 3000}
                      : workload::LengthRange{20, 100},
                 code ? workload::LengthRange{5, 20}
                      : workload::LengthRange{200, 400},
                 seed + phase)) {
      request.at += absl::Seconds(phase * phase_seconds);
      requests.push_back(request);
    }
  }
  return requests;
}

TEST(DualClusterTest, FollowsWhatIsAskedFor) {
  const auto requests = InTurn(90, 1);
  const auto run = [&](int32_t prefill, bool dual) {
    SimulationOptions options = Cluster(prefill, 8 - prefill);
    options.dual_workers = dual;
    return Simulate(options, requests, absl::Seconds(360));
  };
  double best = 0;
  for (int32_t prefill = 0; prefill < 8; ++prefill) {
    best = std::max(best, run(prefill, false).goodput);
  }
  const SimulationResult dual = run(4, true);
  EXPECT_GT(dual.goodput, best);
  EXPECT_GE(dual.role_changes, 4);
}

TEST(DualClusterTest, FastForwardChangesNothing) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    const auto requests = InTurn(30, seed);
    SimulationOptions options = Cluster(2, 2);
    const SimulationResult fast =
        Simulate(options, requests, absl::Seconds(120));
    options.fast_forward = false;
    const SimulationResult slow =
        Simulate(options, requests, absl::Seconds(120));
    EXPECT_GT(fast.role_changes, 0);
    EXPECT_EQ(fast.role_changes, slow.role_changes);
    EXPECT_EQ(fast.finished, slow.finished);
    EXPECT_EQ(fast.local_prefills, slow.local_prefills);
    EXPECT_EQ(fast.decode.steps, slow.decode.steps);
    EXPECT_NEAR(fast.ttft.mean, slow.ttft.mean, 1e-6 * slow.ttft.mean);
    EXPECT_NEAR(fast.tpot.p99, slow.tpot.p99, 1e-6 * slow.tpot.p99);
  }
}

TEST(DualClusterTest, NamesWhatIsWrongWithItsOptions) {
  const auto message = [](const SimulationOptions& options) {
    return std::string(Validate(options).message());
  };
  EXPECT_EQ(message(Cluster(0, 4)), "");
  SimulationOptions options = Cluster(2, 2);
  options.profile.prefill.block_size *= 2;
  EXPECT_THAT(message(options), testing::HasSubstr("dual_workers"));
  options = Cluster(2, 2);
  options.prefix_cache_tokens = 0;
  options.split_share = 0.1;
  EXPECT_THAT(message(options), testing::HasSubstr("dual_workers"));
}

}  // namespace
}  // namespace baton::planner::dual_workers_test
