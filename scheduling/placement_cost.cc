#include "scheduling/placement_cost.h"

#include <algorithm>

#include "scheduling/placement_room.h"
#include "scheduling/step_budget.h"

namespace baton::scheduling {
namespace {

// Of an answer that may become longer: what comes later is not known well
// enough to be paid for now.
constexpr int32_t kMostExpectedSteps = 256;

// Of a step's work, or of that of several; the fixed cost of steps is apart.
double Seconds(const StepCost& cost, const StepShape& shape) {
  return cost.per_token * static_cast<double>(shape.tokens) +
         cost.per_context_token * static_cast<double>(shape.context_tokens) +
         cost.per_prompt_context_token *
             static_cast<double>(shape.prompt_context_tokens) +
         cost.per_sequence * static_cast<double>(shape.sequences);
}

// Steps for so many tokens; one, when the chunk is not known.
int64_t Steps(int64_t tokens, int64_t chunk) {
  if (tokens <= 0) return 0;
  return chunk > 0 ? (tokens + chunk - 1) / chunk : 1;
}

// Sequences that are to be computed there. A decode worker of an earlier
// version does not say how many.
int64_t QueuedPrompts(const WorkerSnapshot& worker) {
  const int64_t reported =
      worker.role == WorkerRole::kPrefill
          ? worker.waiting
          : std::max(worker.queued_prompts, int32_t{worker.queued_tokens > 0});
  return std::max<int64_t>(1, reported + worker.placed_prompts);
}

// Sequences that decode there; one, where there are only some to come.
int64_t Streams(const WorkerSnapshot& decode) {
  const int64_t now = int64_t{decode.running} - decode.queued_prompts;
  const int64_t coming = int64_t{Sequences(decode)} - decode.running -
                         std::max(0, decode.placed_prompts);
  return std::max<int64_t>(now, coming > 0);
}

// The work that is queued there: prompts of equal lengths.
StepShape QueuedWork(const WorkerSnapshot& worker) {
  const int64_t tokens = QueuedTokens(worker);
  if (tokens == 0) return {};
  const int64_t prompts = QueuedPrompts(worker);
  return {.tokens = tokens,
          .sequences = prompts,
          .prompt_context_tokens = tokens * (tokens / prompts + 1) / 2};
}

StepShape OwnWork(const CostedWorker& worker, const PlacementRequest& request) {
  const int64_t tokens = request.prefill_tokens - worker.cached;
  StepShape work = ChunkShape(worker.cached, tokens);
  work.sequences = 1;
  return work;
}

// Of what takes `seconds`, the part that is left: what was reported is worked
// off since.
double StillQueued(const CostedWorker& worker, double seconds) {
  const auto queued = static_cast<double>(QueuedTokens(*worker.worker));
  if (queued <= 0) return 0;
  const auto reported = static_cast<double>(worker.worker->queued_tokens);
  const double known = seconds * std::min(1.0, reported / queued);
  return seconds - std::clamp(worker.report_age_seconds, 0.0, known);
}

double Miss(double seconds, double target) {
  return target > 0 ? std::max(0.0, seconds / target - 1) : 0;
}

// Tokens that all sequences of a decode worker hold; those that are not there
// yet are taken to be like the others, or like this one.
int64_t Context(const WorkerSnapshot& decode, const PlacementRequest& request) {
  const int64_t coming = int64_t{Sequences(decode)} - decode.running;
  if (coming <= 0) return decode.context_tokens;
  const double each =
      decode.running > 0
          ? static_cast<double>(decode.context_tokens) / decode.running
          : request.prefill_tokens;
  return decode.context_tokens +
         static_cast<int64_t>(static_cast<double>(coming) * each);
}

// Of two targets, of which 0 is none.
double Tighter(double a, double b) {
  return a > 0 && b > 0 ? std::min(a, b) : std::max(a, b);
}

// How much of prompts a decode worker's steps compute beside its streams, which
// take `streams_seconds`, when a prompt token reads `context` positions; 0: all
// that there is. What targets the streams have is not known here: they are
// taken to be like this request, or to have none, as the worker's own.
int64_t ChunkBeside(const CostedWorker& decode, const PlacementRequest& request,
                    double streams_seconds, int64_t context) {
  const WorkerSnapshot& worker = *decode.worker;
  const int64_t tokens =
      worker.token_budget > 0
          ? std::max<int64_t>(1, worker.token_budget - Streams(worker))
          : 0;
  const double target =
      Tighter(worker.itl_target_seconds, request.itl_target_seconds);
  if (target <= 0 || Streams(worker) == 0) return tokens;
  const StepCost& cost = decode.cost;
  const double each = cost.per_token + cost.per_prompt_context_token *
                                           static_cast<double>(context);
  if (each <= 0) return tokens;
  const double left =
      StepBudgetSeconds(target) - streams_seconds - cost.per_sequence;
  const auto in_time = static_cast<int64_t>(std::clamp(
      left / each, double{kLeastChunk}, static_cast<double>(int64_t{1} << 30)));
  return tokens > 0 ? std::min(tokens, in_time) : in_time;
}

}  // namespace

PrefillPart PrefillPartOf(const CostedWorker& prefill,
                          const PlacementRequest& request) {
  const StepCost& cost = prefill.cost;
  const StepShape queued = QueuedWork(*prefill.worker);
  const StepShape own = OwnWork(prefill, request);
  const int64_t chunk = prefill.worker->token_budget;
  const int64_t all_steps = Steps(queued.tokens + own.tokens, chunk);
  // The first chunk of the prompt is taken to share a step with the last one
  // before it.
  const int64_t queue_steps =
      chunk > 0 ? std::min(queued.tokens / chunk, all_steps) : 0;
  const double queue =
      cost.fixed * static_cast<double>(queue_steps) + Seconds(cost, queued);
  PrefillPart part;
  part.compute_seconds =
      cost.fixed * static_cast<double>(all_steps - queue_steps) +
      Seconds(cost, own);
  part.ttft_seconds = StillQueued(prefill, queue) + part.compute_seconds;
  part.miss = Miss(part.ttft_seconds, request.ttft_target_seconds);
  part.last_chunk = chunk > 0 ? (own.tokens - 1) % chunk + 1 : own.tokens;
  return part;
}

DecodePart DecodePartOf(const CostedWorker& decode,
                        const PlacementRequest& request) {
  const WorkerSnapshot& worker = *decode.worker;
  const StepCost& cost = decode.cost;
  const int64_t running = Sequences(worker);
  const int64_t context = Context(worker, request);
  const double without =
      cost.fixed + Seconds(cost, {running, context, running});
  const double with =
      cost.fixed + Seconds(cost, {running + 1, context + request.prefill_tokens,
                                  running + 1});
  const double added = static_cast<double>(running) * (with - without);

  DecodePart part;
  part.steps = std::clamp(request.total_tokens - request.prefill_tokens - 1, 0,
                          kMostExpectedSteps);
  part.itl_seconds = part.steps > 0 ? with : 0;
  part.miss = Miss(part.itl_seconds, request.itl_target_seconds);
  part.delay_seconds = part.steps * (with + added);
  part.wait_seconds = worker.running > 0 ? without / 2 : 0;
  const int64_t streams = Streams(worker);
  const int64_t of_streams =
      worker.running > 0 ? worker.context_tokens * streams / worker.running
                         : streams * request.prefill_tokens;
  part.step_seconds =
      cost.fixed + Seconds(cost, {streams, of_streams, streams});
  const StepShape queued = QueuedWork(worker);
  if (queued.tokens > 0) {
    const int64_t read = queued.prompt_context_tokens / queued.tokens;
    const auto steps = static_cast<double>(Steps(
        queued.tokens, ChunkBeside(decode, request, part.step_seconds, read)));
    const double work = Seconds(cost, queued);
    part.queue_seconds = StillQueued(decode, steps * part.step_seconds + work);
    part.chunk_seconds = work / steps;
  }
  return part;
}

double BesideSeconds(const DecodePart& decode, double after) {
  if (decode.queue_seconds <= after) return 0;
  const double steps = (decode.queue_seconds - after) /
                       (decode.step_seconds + decode.chunk_seconds);
  return std::min(steps, decode.steps) * decode.chunk_seconds;
}

double LeastPairMiss(const DecodePart& decode, const PlacementRequest& request,
                     double after) {
  if (decode.steps <= 0) return decode.miss;
  const double before_steps =
      decode.wait_seconds + BesideSeconds(decode, after);
  return Miss(before_steps / decode.steps + decode.itl_seconds,
              request.itl_target_seconds);
}

double LeastLocalDelay(const CostedWorker& decode, const DecodePart& part,
                       const PlacementRequest& request) {
  const double work = Seconds(decode.cost, OwnWork(decode, request));
  // A little less, so that rounding does not make it more.
  constexpr double kRounded = 1 - 1e-12;
  return kRounded * (part.delay_seconds + part.queue_seconds +
                     work * (1 + Sequences(*decode.worker)));
}

DelayEstimate LocalEstimate(const CostedWorker& decode, const DecodePart& part,
                            const PlacementRequest& request) {
  const WorkerSnapshot& worker = *decode.worker;
  const StepShape queued = QueuedWork(worker);
  const StepShape own = OwnWork(decode, request);
  const int64_t chunk = ChunkBeside(decode, request, part.step_seconds,
                                    own.prompt_context_tokens / own.tokens);
  // The streams' part of each of the prompt's own steps, and what a step costs
  // once.
  const auto own_steps = static_cast<double>(
      Steps(queued.tokens + own.tokens, chunk) - Steps(queued.tokens, chunk));
  const double work = Seconds(decode.cost, own);
  DelayEstimate estimate;
  estimate.ttft_seconds =
      (queued.tokens > 0 ? part.queue_seconds : part.wait_seconds) +
      own_steps * part.step_seconds + work;
  estimate.itl_seconds = part.itl_seconds;
  estimate.tpot_seconds = part.itl_seconds;
  estimate.delay_seconds = estimate.ttft_seconds + part.delay_seconds +
                           static_cast<double>(Sequences(worker)) * work;
  estimate.miss =
      Miss(estimate.ttft_seconds, request.ttft_target_seconds) + part.miss;
  return estimate;
}

DelayEstimate PairEstimate(const CostedWorker& prefill,
                           const PrefillPart& prefill_part,
                           const CostedWorker& decode,
                           const DecodePart& decode_part, double bandwidth,
                           const PlacementRequest& request) {
  DelayEstimate estimate;
  estimate.ttft_seconds = prefill_part.ttft_seconds;
  estimate.itl_seconds = decode_part.itl_seconds;
  estimate.miss = prefill_part.miss + decode_part.miss;
  estimate.delay_seconds = estimate.ttft_seconds + decode_part.delay_seconds;
  if (decode_part.steps <= 0) return estimate;  // nothing to hand off

  const double per_token =
      bandwidth > 0
          ? static_cast<double>(decode.worker->kv_bytes_per_token) / bandwidth
          : 0;
  const int32_t lacks = request.prefill_tokens - decode.cached;
  const int32_t late =
      request.prefill_tokens - std::max(prefill.cached, decode.cached);
  const double early_seconds = per_token * (lacks - late);
  const double compute_from =
      estimate.ttft_seconds - prefill_part.compute_seconds;
  const double end = std::max(early_seconds, compute_from) + per_token * late;
  const double last_layer =
      per_token *
      static_cast<double>(std::min<int64_t>(late, prefill_part.last_chunk)) /
      std::max(1, decode.worker->num_layers);
  estimate.gap_seconds = std::max(end - estimate.ttft_seconds, last_layer) +
                         decode_part.wait_seconds;
  const double after = estimate.ttft_seconds + estimate.gap_seconds;
  const double before_steps =
      estimate.gap_seconds + BesideSeconds(decode_part, after);
  estimate.tpot_seconds =
      before_steps / decode_part.steps + estimate.itl_seconds;
  estimate.delay_seconds += before_steps;
  estimate.miss = prefill_part.miss +
                  Miss(estimate.tpot_seconds, request.itl_target_seconds);
  return estimate;
}

DelayEstimate EstimateLocal(const WorkerSnapshot& decode,
                            const PlacementRequest& request,
                            double report_age_seconds) {
  const CostedWorker worker = {&decode, decode.step_cost,
                               CachedPrompts(request).Tokens(decode.id),
                               report_age_seconds};
  return LocalEstimate(worker, DecodePartOf(worker, request), request);
}

DelayEstimate EstimatePair(const WorkerSnapshot& prefill,
                           const WorkerSnapshot& decode, double bandwidth,
                           const PlacementRequest& request,
                           double report_age_seconds) {
  const CachedPrompts cached(request);
  const CostedWorker p = {&prefill, prefill.step_cost,
                          cached.Tokens(prefill.id), report_age_seconds};
  const CostedWorker d = {&decode, decode.step_cost, cached.Tokens(decode.id),
                          report_age_seconds};
  return PairEstimate(p, PrefillPartOf(p, request), d, DecodePartOf(d, request),
                      bandwidth, request);
}

}  // namespace baton::scheduling
