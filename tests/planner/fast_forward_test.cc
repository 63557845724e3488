// Simulated workers against the real schedulers, which are driven step by step:
// every token must come at the same time.
#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "planner/decode_simulation.h"
#include "planner/prefill_simulation.h"
#include "scheduling/block_pool.h"
#include "scheduling/decode_scheduler.h"
#include "scheduling/placement.h"
#include "scheduling/prefill_scheduler.h"
#include "scheduling/sequence.h"
#include "tests/planner/dice.h"

namespace baton::planner {
namespace {

using scheduling::BlockPool;
using scheduling::PlannedSequence;
using scheduling::Sequence;
using scheduling::StepPlan;

constexpr int32_t kBlockSize = 4;

// A sequence that comes to a worker. With `first_at`, its prompt was computed
// elsewhere, and its first token came then.
struct Job {
  double at = 0;
  int32_t prompt = 1;
  int32_t output = 1;
  double target = 0;  // for the first token, from `at`; 0: none
  bool landed = false;
  double first_at = 0;
  // Landed: since then it is known that it is coming.
  double coming_at = 0;
};

// What became of it.
struct Fate {
  double started = -1;
  double first_at = -1;
  double finished_at = -1;
  double first_gap = 0;
  double longest_gap = 0;
};

using Fates = std::map<uint32_t, Fate>;

class Recorder final : public WorkerListener {
 public:
  void OnFirstToken(uint32_t request, double started, double now) override {
    fates[request].started = started;
    fates[request].first_at = now;
  }
  void OnFirstGap(uint32_t request, double seconds) override {
    fates[request].first_gap = seconds;
  }
  void OnFinished(uint32_t request, double longest_gap, double now) override {
    fates[request].longest_gap = longest_gap;
    fates[request].finished_at = now;
  }
  Fates fates;
};

std::unique_ptr<Sequence> MakeSequence(uint32_t request, const Job& job,
                                       double itl_target) {
  scheduling::StopParams stop;
  stop.max_output_tokens = job.output;
  scheduling::Urgency urgency;
  urgency.ttft_target_seconds = job.target;
  urgency.itl_target_seconds = itl_target;
  return std::make_unique<Sequence>(
      SequenceId{request}, std::vector<TokenId>(job.prompt, 1), job.prompt,
      scheduling::SamplingParams(), stop, 0, urgency);
}

// The real scheduler: joins what has come, plans, takes the time, commits.
Fates RunDecodeScheduler(const std::vector<Job>& jobs,
                         const DecodeSimulationOptions& options) {
  scheduling::DecodeScheduler scheduler({.token_budget = options.token_budget,
                                         .block_size = kBlockSize,
                                         .patience = options.patience});
  BlockPool pool(100'000);
  std::map<SequenceId, std::unique_ptr<Sequence>> sequences;
  Fates fates;
  std::map<uint32_t, double> last_at;
  double now = 0;
  size_t next = 0;
  while (next < jobs.size() || scheduler.num_running() > 0) {
    if (scheduler.num_running() == 0) now = std::max(now, jobs[next].at);
    for (; next < jobs.size() && jobs[next].at <= now; ++next) {
      const Job& job = jobs[next];
      const auto request = static_cast<uint32_t>(next);
      auto sequence = MakeSequence(request, job, options.itl_target_seconds);
      sequence->blocks() = *pool.Allocate(
          scheduling::BlocksFor(job.prompt + job.output, kBlockSize));
      if (job.landed) {
        sequence->AdoptComputed(job.prompt);
        sequence->AdoptSampled(1);
        last_at[request] = job.first_at;
      }
      scheduler.Add(sequence.get(), job.at);
      sequences[sequence->id()] = std::move(sequence);
    }
    std::vector<std::unique_ptr<Sequence>> coming;
    for (size_t i = next; i < jobs.size(); ++i) {
      if (!jobs[i].landed || jobs[i].coming_at > now) continue;
      coming.push_back(MakeSequence(static_cast<uint32_t>(i), jobs[i],
                                    options.itl_target_seconds));
    }
    std::vector<const Sequence*> pointers;
    for (const auto& sequence : coming) pointers.push_back(sequence.get());
    const StepPlan plan =
        scheduler.Plan({.now = now, .cost = options.cost, .coming = pointers});
    const double start = now;
    now += options.cost.Seconds(scheduling::ShapeOf(plan));
    for (const PlannedSequence& planned : plan.sequences) {
      const auto request = static_cast<uint32_t>(planned.sequence);
      Sequence& sequence = *sequences.at(planned.sequence);
      Fate& fate = fates[request];
      if (fate.started < 0) fate.started = start;
      sequence.CommitComputed(static_cast<int32_t>(planned.tokens.size()));
      if (!planned.sample) continue;
      sequence.CommitSampled(1);
      if (last_at.count(request) == 0) {
        fate.first_at = now;
      } else {
        const double gap = now - last_at[request];
        if (jobs[request].landed && fate.first_gap == 0) fate.first_gap = gap;
        fate.longest_gap = std::max(fate.longest_gap, gap);
      }
      last_at[request] = now;
      if (!sequence.finished().has_value()) continue;
      fate.finished_at = now;
      scheduler.Remove(sequence.id());
      sequences.erase(planned.sequence);
    }
  }
  return fates;
}

Fates RunDecodeSimulation(const std::vector<Job>& jobs,
                          const DecodeSimulationOptions& options,
                          int64_t* runs) {
  Recorder recorder;
  GapHistogram gaps;
  DecodeSimulation simulation(options, &recorder, &gaps);
  std::multimap<double, size_t> events;
  for (size_t i = 0; i < jobs.size(); ++i) {
    events.emplace(jobs[i].at, i);
    if (jobs[i].landed) events.emplace(jobs[i].coming_at, i);
  }
  for (const auto& [at, i] : events) {
    const Job& job = jobs[i];
    while (simulation.next_event() < at) {
      simulation.Advance();
      ++*runs;
    }
    if (at < job.at) {
      simulation.Coming(at);
      continue;
    }
    if (job.landed) simulation.NoLongerComing(at);
    const auto request = static_cast<uint32_t>(i);
    if (job.landed) {
      simulation.AddStream(request, job.prompt, job.output - 1, job.first_at,
                           job.at);
    } else {
      SimulatedPrompt prompt;
      prompt.request = request;
      prompt.left = job.prompt;
      prompt.output = job.output;
      prompt.due = job.target > 0 ? job.at + job.target : INFINITY;
      simulation.AddPrompt(prompt, job.at);
    }
  }
  while (std::isfinite(simulation.next_event())) {
    simulation.Advance();
    ++*runs;
  }
  int64_t tokens = 0;
  for (const Job& job : jobs) tokens += job.output - 1;
  EXPECT_EQ(gaps.count(), tokens);
  return recorder.fates;
}

void ExpectSame(const Fates& real, const Fates& simulated,
                const std::vector<Job>& jobs) {
  ASSERT_EQ(real.size(), jobs.size());
  ASSERT_EQ(simulated.size(), jobs.size());
  for (const auto& [request, fate] : real) {
    const Fate& other = simulated.at(request);
    const double slack = 1e-9 * (1 + fate.finished_at);
    EXPECT_NEAR(fate.finished_at, other.finished_at, slack) << request;
    if (jobs[request].landed) {
      EXPECT_NEAR(fate.first_gap, other.first_gap, slack) << request;
    } else {
      EXPECT_NEAR(fate.started, other.started, slack) << request;
      EXPECT_NEAR(fate.first_at, other.first_at, slack) << request;
    }
    EXPECT_NEAR(fate.longest_gap, std::max(other.longest_gap, other.first_gap),
                slack)
        << request;
  }
}

std::vector<Job> MakeJobs(Dice* dice, double landed, double target) {
  std::vector<Job> jobs;
  double at = 0;
  const int count = dice->Whole(1, 40);
  for (int i = 0; i < count; ++i) {
    at += dice->Chance(0.3) ? dice->Real(0, 1e-3) : dice->Real(0, 0.5);
    Job job;
    job.at = at;
    job.prompt = dice->Chance(0.1) ? 1 : dice->Whole(1, 300);
    job.output = dice->Chance(0.2) ? 1 : dice->Whole(1, 60);
    job.target = target > 0 ? dice->Real(0, 2 * target) + 1e-6 : 0;
    if (dice->Chance(landed)) {
      job.landed = true;
      job.output = std::max(job.output, 2);
      job.first_at = at - dice->Real(0, 0.1);
      job.coming_at = at - dice->Real(1e-6, 0.3);
    }
    jobs.push_back(job);
  }
  return jobs;
}

struct Mix {
  const char* name;
  double landed;       // share of sequences whose prompt was computed elsewhere
  double ttft_target;  // about; 0: none
  double itl_target;   // 0: none
};

class FastForwardTest : public testing::TestWithParam<Mix> {};

TEST_P(FastForwardTest, DecodeWorkersDoWhatTheirSchedulerPlans) {
  const Mix& mix = GetParam();
  int64_t runs = 0;
  int64_t steps = 0;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    DecodeSimulationOptions options;
    options.cost = DrawCost(&dice);
    options.token_budget = dice.Whole(56, 200);  // at most 40 sequences
    options.patience = dice.Whole(1, 4);
    options.itl_target_seconds = mix.itl_target * dice.Real(0.5, 2);
    const std::vector<Job> jobs = MakeJobs(&dice, mix.landed, mix.ttft_target);
    const Fates real = RunDecodeScheduler(jobs, options);
    const Fates fast = RunDecodeSimulation(jobs, options, &runs);
    ExpectSame(real, fast, jobs);
    options.fast_forward = false;
    ExpectSame(real, RunDecodeSimulation(jobs, options, &steps), jobs);
    if (HasFailure()) return;
  }
  EXPECT_LT(runs, steps);
}

INSTANTIATE_TEST_SUITE_P(
    Mixes, FastForwardTest,
    testing::Values(Mix{"streams", 1, 0, 0}, Mix{"prompts", 0, 0, 0},
                    Mix{"both", 0.5, 0, 0}, Mix{"due", 0.3, 0.5, 0},
                    Mix{"budget", 0.5, 0, 0.02},
                    Mix{"due_and_budget", 0.5, 0.5, 0.02}),
    [](const auto& info) { return std::string(info.param.name); });

// The real prefill scheduler; a prompt's blocks are free `held` seconds after
// its first token came.
Fates RunPrefillScheduler(const std::vector<Job>& jobs,
                          const PrefillSimulationOptions& options,
                          double held) {
  BlockPool pool(options.total_blocks);
  scheduling::PrefillScheduler scheduler({.token_budget = options.token_budget,
                                          .block_size = options.block_size,
                                          .patience = options.patience},
                                         &pool);
  std::map<SequenceId, std::unique_ptr<Sequence>> sequences;
  std::multimap<double, SequenceId> held_until;
  Fates fates;
  double now = 0;
  size_t next = 0;
  while (fates.size() < jobs.size() || scheduler.num_waiting() > 0) {
    for (; next < jobs.size() && jobs[next].at <= now; ++next) {
      auto sequence = MakeSequence(static_cast<uint32_t>(next), jobs[next], 0);
      scheduler.Add(sequence.get(), jobs[next].at);
      sequences[sequence->id()] = std::move(sequence);
    }
    while (!held_until.empty() && held_until.begin()->first <= now) {
      sequences.erase(held_until.begin()->second);
      held_until.erase(held_until.begin());
    }
    const StepPlan plan = scheduler.Plan({.now = now, .cost = options.cost});
    if (plan.sequences.empty()) {
      double wake = INFINITY;
      if (next < jobs.size()) wake = jobs[next].at;
      if (!held_until.empty()) {
        wake = std::min(wake, held_until.begin()->first);
      }
      now = wake;
      continue;
    }
    const double start = now;
    now += options.cost.Seconds(scheduling::ShapeOf(plan));
    for (const PlannedSequence& planned : plan.sequences) {
      Sequence& sequence = *sequences.at(planned.sequence);
      Fate& fate = fates[static_cast<uint32_t>(planned.sequence)];
      if (fate.started < 0) fate.started = start;
      sequence.CommitComputed(static_cast<int32_t>(planned.tokens.size()));
      if (!planned.sample) continue;
      fate.first_at = now;
      scheduler.Remove(sequence.id());
      held_until.emplace(now + held, sequence.id());
    }
  }
  return fates;
}

// Blocks of the simulated worker go back as those of the real one.
class Releasing final : public WorkerListener {
 public:
  Releasing(const std::vector<Job>* jobs, double held)
      : jobs_(*jobs), held_(held) {}
  void OnFirstToken(uint32_t request, double started, double now) override {
    fates[request].started = started;
    fates[request].first_at = now;
    due.emplace(now + held_, jobs_[request].prompt);
  }
  void OnFirstGap(uint32_t, double) override {}
  void OnFinished(uint32_t, double, double) override {}

  Fates fates;
  std::multimap<double, int32_t> due;

 private:
  const std::vector<Job>& jobs_;
  const double held_;
};

Fates RunPrefillSimulation(const std::vector<Job>& jobs,
                           const PrefillSimulationOptions& options,
                           double held) {
  Releasing listener(&jobs, held);
  PrefillSimulation simulation(options, &listener);
  size_t next = 0;
  while (true) {
    const double job = next < jobs.size() ? jobs[next].at : INFINITY;
    const double release =
        listener.due.empty() ? INFINITY : listener.due.begin()->first;
    const double event = simulation.next_event();
    if (std::isinf(std::min({job, release, event}))) break;
    if (job <= release && job <= event) {
      SimulatedPrompt prompt;
      prompt.request = static_cast<uint32_t>(next);
      prompt.left = jobs[next].prompt;
      prompt.output = jobs[next].output;
      prompt.due = jobs[next].target > 0 ? job + jobs[next].target : INFINITY;
      simulation.Add(prompt, job);
      ++next;
    } else if (release <= event) {
      const int32_t tokens = listener.due.begin()->second;
      listener.due.erase(listener.due.begin());
      simulation.Release(tokens, release);
    } else {
      simulation.Advance();
    }
  }
  EXPECT_EQ(simulation.free_blocks(), options.total_blocks);
  EXPECT_EQ(simulation.QueuedTokens(1e9), 0);
  return listener.fates;
}

TEST(PrefillFastForwardTest, PrefillWorkersDoWhatTheirSchedulerPlans) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    PrefillSimulationOptions options;
    options.cost = DrawCost(&dice);
    options.token_budget = dice.Whole(1, 200);
    options.block_size = kBlockSize;
    options.total_blocks = dice.Whole(75, 300);  // 300 tokens at least
    options.patience = dice.Whole(1, 4);
    const double held = dice.Real(0, 0.3);
    const std::vector<Job> jobs =
        MakeJobs(&dice, 0, dice.Chance(0.5) ? 0.5 : 0);
    const Fates real = RunPrefillScheduler(jobs, options, held);
    for (const bool fast : {true, false}) {
      options.fast_forward = fast;
      const Fates simulated = RunPrefillSimulation(jobs, options, held);
      ASSERT_EQ(simulated.size(), real.size());
      for (const auto& [request, fate] : real) {
        const double slack = 1e-9 * (1 + fate.first_at);
        EXPECT_NEAR(fate.first_at, simulated.at(request).first_at, slack);
        EXPECT_NEAR(fate.started, simulated.at(request).started, slack);
      }
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace baton::planner
