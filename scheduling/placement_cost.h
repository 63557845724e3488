// What a placement costs in time: to the request, and to those that run where
// it goes. In seconds, by the workers' own StepCost; all that is predicted for
// a request comes from here.
//
// For a decode worker D with n sequences, a prompt of which c_P and c_D tokens
// are cached on P and D, and m decode steps (the output but its first token,
// which prefill gives):
//
//   queue    what was queued there at the last report, less the time since, and
//            what was placed since; several prompts, not one long one
//   local    ttft  = half a decode step, where streams run and nothing is
//                    queued + queue_D + prefill_D(prompt - c_D), in chunks
//                    beside a decode step of those that are streams now
//            others = n * what the chunks add to those steps
//   P and D  ttft  = queue_P + prefill_P(prompt - c_P)
//            gap   = what of the transfer of (prompt - c_D) tokens prefill does
//                    not hide, and half a decode step where streams run
//            beside = by how much D's own queue, as far as it is still there
//                    then, makes the first decode steps longer
//   both     own   = m * step_D(n + 1)
//            others += n * m * (step_D(n + 1) - step_D(n))
//
// Of the n sequences, those that are computed there and those whose KV is on
// its way are no streams yet; while these become streams, others end. So how
// fast a queue is worked off follows from the streams of now.
//
//   delay = ttft + gap + beside + own + others
//   tpot  = (gap + beside + own) / m
//
// What P has cached and D lacks travels at once, the rest as prefill computes
// it, layer by layer: of the last chunk, the last layer cannot be hidden. A
// step under way when a sequence comes has on average half of its time to go.
//
// A delay is a sum of a part of P and one of D, but for the transfer and
// `beside`: so the best pair is found without trying all (cost_placement.cc).
//
// Pure; any thread.
#pragma once

#include <cstdint>

#include "scheduling/placement.h"
#include "scheduling/step_cost.h"

namespace baton::scheduling {

// What a placement is predicted to bring.
struct DelayEstimate {
  double ttft_seconds = 0;
  // Between tokens, once it runs; 0: there is only one token.
  double itl_seconds = 0;
  // From the first token on, before the first decode step.
  double gap_seconds = 0;
  // From the first token to the last, shared out among those after the first:
  // the gap, what is queued beside it, and the steps; 0: there is only one.
  double tpot_seconds = 0;
  // To all clients together, as above.
  double delay_seconds = 0;
  // By how much the targets are missed, each relative to itself; 0: met. That
  // for tokens is one for their mean, so it is tpot_seconds that is compared.
  double miss = 0;
};

// A worker as the formulas need it.
struct CostedWorker {
  const WorkerSnapshot* worker = nullptr;
  // Its own, or that of others like it.
  StepCost cost;
  // Of the request's prompt; in [0, prefill_tokens).
  int32_t cached = 0;
  // Since its last report; >= 0.
  double report_age_seconds = 0;
};

// A prefill worker's part of a placement.
struct PrefillPart {
  double compute_seconds = 0;
  double ttft_seconds = 0;
  double miss = 0;
  // Tokens of its last chunk.
  int64_t last_chunk = 0;
};

// A decode worker's part, wherever the prompt is computed.
struct DecodePart {
  double steps = 0;  // m
  double itl_seconds = 0;
  double miss = 0;
  // Own and others.
  double delay_seconds = 0;
  // Until the step under way is over.
  double wait_seconds = 0;
  // Of a step of the streams of now, and what a chunk adds to it while prompts
  // are queued, for so long from now.
  double step_seconds = 0;
  double chunk_seconds = 0;
  double queue_seconds = 0;
};

PrefillPart PrefillPartOf(const CostedWorker& prefill,
                          const PlacementRequest& request);
DecodePart DecodePartOf(const CostedWorker& decode,
                        const PlacementRequest& request);

// By how much longer a sequence's decode steps take for what is queued there,
// when it comes `after` seconds from now. Falls as `after` grows, by no more
// than it.
double BesideSeconds(const DecodePart& decode, double after);

// By how much a hand-off there misses the target for tokens at least, when it
// comes `after` seconds from now: without what its link costs.
double LeastPairMiss(const DecodePart& decode, const PlacementRequest& request,
                     double after);

// Of the prompt on the decode worker itself. Its delay is at least that of
// LeastLocalDelay, which is quicker to get.
double LeastLocalDelay(const CostedWorker& decode, const DecodePart& part,
                       const PlacementRequest& request);
DelayEstimate LocalEstimate(const CostedWorker& decode, const DecodePart& part,
                            const PlacementRequest& request);
// Of the prompt on the prefill worker, over a link of `bandwidth` bytes per
// second (0: not measured, taken as free).
DelayEstimate PairEstimate(const CostedWorker& prefill,
                           const PrefillPart& prefill_part,
                           const CostedWorker& decode,
                           const DecodePart& decode_part, double bandwidth,
                           const PlacementRequest& request);

// The same of two workers that know their costs, with what the request says is
// cached.
DelayEstimate EstimateLocal(const WorkerSnapshot& decode,
                            const PlacementRequest& request,
                            double report_age_seconds = 0);
DelayEstimate EstimatePair(const WorkerSnapshot& prefill,
                           const WorkerSnapshot& decode, double bandwidth,
                           const PlacementRequest& request,
                           double report_age_seconds = 0);

}  // namespace baton::scheduling
