// How many workers should compute prompts and how many should run streams, and
// which ones change for it, of workers that can do both.
//
// What a split carries is a fluid bound: nobody waits, and no time is lost but
// what steps cost at all. Per request (RequestMean), m_p prompt tokens are
// computed and m_o answer tokens come from decode steps, all but the first.
//
//   tau   a step of a decode worker at most: StepBudgetSeconds of the target;
//         at least one stream's step
//   f     fixed cost of such a step
//   s     what a stream adds to it: per_token + per_sequence
//         + per_context_token * its context
//   c     what a prompt token adds to it: per_token + per_prompt_context_token
//         * the positions that one reads on average; where two splits with
//         prefill workers are compared, kLeftOverCost times that
//   mu    prompt tokens per second of a prefill worker, in steps of its token
//         budget B: B / (f' + B c'), by its own costs
//   M     places for streams, of a decode worker: of the N places of all of
//         them, N - sqrt(N) are taken on average when there is mostly one to
//         be had (square-root staffing: Halfin and Whitt, 1981)
//   R     how long a place is held for a stream whose prompt a prefill worker
//         computes: m_p / mu
//
// With x requests per second, p prefill and d decode workers, decode workers
// compute what of the prompts is left, L = max(0, x m_p - p mu) tokens per
// second, in n steps per second each. Their time is enough when
//
//   n f + (x m_o s + L c) / d <= 1
//
// and n is at least 1 / tau, for the target, and x m_o / (d M - x R), since no
// more streams than there are places have a token in a step. It is the larger
// of the two: with few streams, steps are shorter, and the target is no limit.
// The capacity is the least x of both, each with L = 0 and with L > 0. With
// w = m_o s and e = 0, or w = m_o s + m_p c and e = p mu c:
//
//   n = 1 / tau:              x = (d (1 - f / tau) + e) / w
//   n = x m_o / (d M - x R):  the lesser root of
//       (w R / d) x^2 - (m_o f + w M + R (1 + e / d)) x + M (d + e) = 0
//
// With L = 0, x falls with p, and with L > 0 it mostly rises, as less is spent
// on fixed costs where prompts are computed without streams: the best split is
// where decode workers have hardly any prompts left. That is the balance of
// rates of DistServe (arXiv 2401.09670, section 4), with prompts on decode
// workers, too. tests/bench/planner_benchmark.cc has what it brings.
//
// Pure but for what RoleBalance remembers. One thread. Seconds, on any clock
// that never goes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "scheduling/placement.h"
#include "scheduling/request_mix.h"
#include "scheduling/step_cost.h"

namespace baton::scheduling {

// What is asked for, and what workers can do.
struct RoleLoad {
  RequestMean mix;
  // Means over the workers of a kind; of one that is not known the other stands
  // in.
  StepCost prefill_cost;
  StepCost decode_cost;
  // Of prefill workers' steps, >= 1.
  int32_t token_budget = 1;
  // Most streams of a decode worker, by memory and max_sequences; >= 1.
  int32_t most_streams = 1;
  // Whether a decode worker may compute prompts while there are prefill
  // workers.
  bool allow_local_prefill = true;
  // For a step when no request has an ITL target.
  double default_step_seconds = 0.1;
};

// Whether the load says anything: a mix with answers or prompts, and costs.
bool IsKnown(const RoleLoad& load);

// Requests per second that so many workers of each kind carry at most, when a
// prompt token costs a decode worker so many times what it is measured to; 0
// without decode workers, or when the load is not known. Never NaN or infinite.
// REQUIRES: num_prefill >= 0, num_decode >= 0, left_over_cost > 0.
double SplitCapacity(const RoleLoad& load, int32_t num_prefill,
                     int32_t num_decode, double left_over_cost = 1);

// What prefill workers leave comes to decode workers in bursts, when they are
// full themselves, and holds places and memory there for longer than it would
// on a prefill worker. With prompts that are most of the work the bound by
// itself prefers so few prefill workers that a tenth of the capacity is lost;
// from 2 to 4, no mix of tests/bench/planner_benchmark.cc cares.
inline constexpr double kLeftOverCost = 2;

// A split with prefill workers must be so much better than the one without, as
// the bound knows nothing of queues, and those before few prefill workers are
// the worst.
inline constexpr double kPrefillMargin = 0.05;
// The same for few workers, over the square root of how many there are: two
// pools lose to one by queues. Two CPU workers had down to 0.92 of one pool's
// goodput with one of each kind where the bound said 1.14 (tools/
// measure_goodput); where two pools are better by more than 3 % in the
// simulations of planner_benchmark with 2, 4 and 8 workers, it says more than
// 1.2.
inline constexpr double kFewWorkersMargin = 0.3;

// What `num_prefill` prefill workers of `workers` carry, to what `others` of
// them do, by what counts: none at all carry more by the margin. No finite
// number when the others carry nothing.
double SplitRatio(const RoleLoad& load, int32_t workers, int32_t num_prefill,
                  int32_t others, double prefill_margin = kPrefillMargin);

// Workers of a cluster by what they can be.
struct RoleCounts {
  // Only ever prefill, or decode, workers.
  int32_t only_prefill = 0;
  int32_t only_decode = 0;
  // Either.
  int32_t either = 0;
};

// Of all workers, how many should be prefill workers: of splits with some, the
// one that carries the most with kLeftOverCost, and of equal ones the one with
// fewer of them; none, unless that is better by the margin. At least one decode
// worker, where that can be. REQUIRES: some worker; IsKnown(load).
int32_t BestPrefillWorkers(const RoleLoad& load, const RoleCounts& counts,
                           double prefill_margin = kPrefillMargin);

// How long the prefill side of a worker that changed waits for the decode side,
// at most: longer than nearly all answers take.
inline constexpr double kMostWaitSeconds = 60;

// Whether a side of a dual worker should get new work: it is that of the
// worker's role (`has_role`), and, for the prefill side, the decode side has
// nothing left: no sequences in `streams` (those that run, and those to come).
// Beside streams with a target, a step of the prefill side has hardly more time
// than its fixed cost, and prompts that came would wait for the last of the
// streams. The decode side waits for nobody: without decode workers, nobody is
// served. `seconds` since the role changed.
bool TakesWork(WorkerRole side, bool has_role, int64_t streams, double seconds);

// A worker as the router knows it.
struct RoleWorker {
  // Never reused.
  WorkerId id = kNoWorker;
  bool can_change = false;
  // Of a dual one, the role that it has, whether it takes work yet or not.
  WorkerRole role = WorkerRole::kDecode;
  // Of its prefill side, whatever its role; of its decode side.
  int64_t queued_tokens = 0;
  int32_t streams = 0;
};

struct RoleInputs {
  double now = 0;
  // All usable ones of the cluster, those that cannot change, too.
  absl::Span<const RoleWorker> workers;
  RoleLoad load;
};

struct RoleChange {
  size_t worker = 0;  // its place in RoleInputs::workers
  WorkerRole role = WorkerRole::kDecode;

  bool operator==(const RoleChange&) const = default;
};

struct RoleBalanceOptions {
  // Requests that the mix must have seen: means of fewer are noise.
  double least_weight = 10;
  // Another split must carry so much more than the present one, and for so
  // long: less is not worth the time in which a worker's new side waits for the
  // old one. More by `noise` / sqrt(weight of the mix): what means of few
  // requests say is partly chance.
  double margin = 0.03;
  double noise = 0.5;
  double hold_seconds = 2;
  // Between two changes of the cluster: what the first one brought shows in
  // reports and queues after some steps.
  double dwell_seconds = 2;
  // Between two changes of one worker.
  double worker_dwell_seconds = 20;
  // Of the workers, one of so many changes at a time, and at least one worker.
  int32_t workers_per_change = 8;
  double prefill_margin = kPrefillMargin;
};

class RoleBalance final {
 public:
  explicit RoleBalance(const RoleBalanceOptions& options = {});

  // Who changes now; mostly nobody. The caller makes it so: it is not asked for
  // again soon. To be called about once a second.
  std::vector<RoleChange> Decide(const RoleInputs& inputs);

 private:
  // By how many more prefill workers the cluster would carry enough more to be
  // worth it; fewer, when below 0.
  std::optional<int32_t> Wants(const RoleInputs& inputs) const;
  // Up to `count` workers that are not `role` yet, those with the least to do
  // first; `at_once`: also those that changed just now.
  std::vector<RoleChange> Change(const RoleInputs& inputs, WorkerRole role,
                                 int32_t count, bool at_once);

  const RoleBalanceOptions options_;
  // Since when more workers should have this role than have it, and whether
  // some have changed for it.
  std::optional<WorkerRole> wanted_;
  double wanted_since_ = 0;
  bool going_on_ = false;
  std::optional<double> changed_at_;
  // Those that changed within worker_dwell_seconds, and when.
  std::map<WorkerId, double> worker_changed_at_;
};

}  // namespace baton::scheduling
