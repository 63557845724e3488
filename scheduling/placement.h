// Placement: which workers a request goes to. A policy is a const function from
// a snapshot of the cluster to a verdict; it holds no state, reads no clock and
// sends nothing. Called by the router's loop thread, by the simulator and by
// tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "scheduling/step_cost.h"

namespace baton::scheduling {

// One connection of one worker. Given by the router's registry, never reused by
// it: a worker that went away and came back has another one.
enum class WorkerId : uint64_t {};
inline constexpr WorkerId kNoWorker{0};

enum class WorkerRole { kPrefill, kDecode };

// Stable lower-case name ("prefill"), for labels and logs.
const char* WorkerRoleName(WorkerRole role);

// One worker as the router knows it.
struct WorkerSnapshot {
  WorkerId id = kNoWorker;
  WorkerRole role = WorkerRole::kDecode;
  // Connected, fits the model, is not going away. Others are never placed.
  bool usable = false;

  // What it can hold. Tokens per KV block, >= 1 when usable.
  int32_t block_size = 0;
  int32_t total_blocks = 0;
  int32_t max_sequences = 0;
  // Most tokens of one sequence, prompt and output together.
  int32_t max_context = 0;
  // Decode workers: tokens of output ahead for which it sets blocks aside
  // (scheduling/admission.h); 0: all.
  int32_t output_reserve = 0;
  // Most prompt tokens queued (prefill workers); 0: no bound of its own.
  int64_t max_queued_tokens = 0;

  // Its last report.
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t free_blocks = 0;
  int64_t queued_tokens = 0;
  // Decode workers: of those that run, sequences with prompt tokens to be
  // computed there.
  int32_t queued_prompts = 0;
  // Decode workers: tokens of all sequences that run.
  int64_t context_tokens = 0;
  // As it measured them; not known() at first.
  StepCost step_cost;
  // When that report came, by the clock of ClusterSnapshot::now.
  absl::Time reported_at;

  // Most tokens in one of its steps; 0: not known.
  int32_t token_budget = 0;
  // Decode workers: what streams may wait there for a token, which bounds the
  // steps that compute prompts beside them (scheduling/step_budget.h); 0: any
  // time.
  double itl_target_seconds = 0;
  // Decode workers: of the cache that a hand-off brings.
  int64_t kv_bytes_per_token = 0;
  int32_t num_layers = 0;
  // The LoRA adapters that it has (AdapterKey), sorted.
  std::vector<uint64_t> adapters;

  // What this router changed there since that report: placed, less ended. May
  // be negative.
  int32_t placed_sequences = 0;
  int32_t placed_blocks = 0;
  // Prompts to be computed there, and their tokens.
  int32_t placed_prompts = 0;
  int64_t placed_tokens = 0;

  // Prefill workers: the decode workers that it has a data connection to, by
  // ascending id, and the bandwidth of each in bytes per second (0: not
  // measured; missing: none was).
  std::vector<WorkerId> paired_with;
  std::vector<double> link_bandwidth;
};

struct ClusterSnapshot {
  std::vector<WorkerSnapshot> workers;
  // Breaks ties in turn: the caller adds one after each placement.
  uint64_t round = 0;
  // What the workers work off between two reports is reckoned from it. Equal to
  // their reported_at: nothing yet.
  absl::Time now;
  // Whether a decode worker may prefill when no prefill worker is paired. False
  // while the prefill workers that the operator named have not had the time to
  // connect.
  bool allow_local_prefill = true;
};

// How much of a request's prompt a worker has in its prefix cache.
struct CachedPrompt {
  WorkerId worker = kNoWorker;
  int32_t tokens = 0;
};

// The shape of a request at the start of an attempt.
struct PlacementRequest {
  // Tokens to prefill: the prompt, and the output that an earlier attempt gave.
  int32_t prefill_tokens = 0;
  // Prompt and whole output.
  int32_t total_tokens = 0;
  // Workers that refused or failed earlier attempts.
  absl::Span<const WorkerId> excluded;
  // Whether an excluded decode worker may be taken when there is no other; also
  // an excluded prefill worker, where decode workers may not compute prompts.
  bool allow_excluded_decode = false;
  // By worker id, each once; the others have nothing of it. As far as is known:
  // a hint, less than prefill_tokens each.
  absl::Span<const CachedPrompt> cached;
  // Of the client; 0: none, or it is missed already: then nothing that others
  // would pay for makes it better.
  double ttft_target_seconds = 0;
  double itl_target_seconds = 0;
  // A step that would take longer is no room on a decode worker; 0: any will
  // do. See KeepsBatchBound (scheduling/placement_room.h).
  double batch_itl_seconds = 0;
  // It is late, and others shall find room for what still can be in time: only
  // where little is queued. See WaitingLine::StandsBy.
  bool stands_by = false;
  // What may be queued there then; see LittleSeconds
  // (scheduling/placement_room.h).
  double little_seconds = 0.2;
  // The adapter that it is computed with (AdapterKey); 0: none.
  uint64_t adapter = 0;
};

// Why a verdict is what it is.
enum class PlacementReason {
  kLeastLoad,
  kTwoChoices,  // the less loaded of two (scheduling/power_of_two_placement.h)
  kPrefixAndLoad,  // scheduling/prefix_affine_placement.h
  kLeastDelay,     // predicted (scheduling/cost_placement.h)
  // With kDecodeOnly: no prefill worker is paired with a decode worker.
  kNoPrefillWorker,
  // With kNone:
  kNoDecodeWorker,
  kPairingPending,  // prefill workers were named and have not connected yet
  // Each decode worker refused or failed just now; or each prefill worker,
  // where decode workers may not compute prompts.
  kOnlyExcluded,
  kDecodeFull,
  kPrefillFull,
  kTooLarge,   // no decode worker could ever hold the request
  kNoAdapter,  // no decode worker has its adapter; or no prefill worker, where
               // decode workers may not compute prompts
};

// Stable lower-case name ("least_load"), for labels and logs.
const char* PlacementReasonName(PlacementReason reason);

struct PlacementVerdict {
  enum class Kind {
    kPrefillAndDecode,
    kDecodeOnly,  // the decode worker prefills too
    kNone,        // not now, or (kTooLarge) never
  };
  Kind kind = Kind::kNone;
  PlacementReason reason = PlacementReason::kNoDecodeWorker;
  WorkerId prefill = kNoWorker;
  WorkerId decode = kNoWorker;
  // Of the prompt, as far as is known, in the cache of the worker that is to
  // compute it, which has the rest to do.
  int32_t cached_tokens = 0;
  // Of kLeastDelay: what the policy expects; else 0. From now to the first
  // token; from there to the last, for each of those after it (0: there is only
  // one).
  double predicted_ttft_seconds = 0;
  double predicted_tpot_seconds = 0;
};

// Whether the policy expects the first token of a request that it placed to
// come too late; from a prefill worker, or nearly so.
inline bool MissesTtftTarget(const PlacementRequest& request,
                             const PlacementVerdict& verdict) {
  constexpr double kNearly = 0.95;
  const double share =
      verdict.kind == PlacementVerdict::Kind::kDecodeOnly ? 1 : kNearly;
  return request.ttft_target_seconds > 0 &&
         verdict.predicted_ttft_seconds > share * request.ttft_target_seconds;
}

// How one worker stood when a verdict was given, for people who ask why.
struct PlacementCandidate {
  // In the order of how near it was.
  enum class Standing {
    kChosen,
    kPassedOver,  // could have taken it; the chosen one had no more to do
    kSlowLink,    // as kPassedOver, but for its link to the decode worker
    kNoRoom,      // not now
    kNotPaired,   // prefill: with the chosen decode worker; decode: with any
                  // prefill worker that has room
    kExcluded,    // refused or failed an earlier attempt of the request
    kTooSmall,    // could never hold the request
    kNoAdapter,   // does not have the request's
    kUnusable,
  };
  WorkerId id = kNoWorker;
  WorkerRole role = WorkerRole::kDecode;
  Standing standing = Standing::kUnusable;
  // What was compared; less is better. Decode workers: in [0, 2], share of
  // blocks in use plus share of sequence places in use. Prefill workers: tokens
  // queued.
  double load = 0;
  // What is there, and what was placed since the last report.
  int32_t sequences = 0;
  int32_t free_blocks = 0;
  int32_t total_blocks = 0;
  // Of the prompt, in its cache, as far as is known.
  int32_t cached_tokens = 0;
};

// "prefill-decode", "decode-only" or "none", for labels and reports.
const char* PlacementKindName(PlacementVerdict::Kind kind);
// Stable lower-case name ("passed_over").
const char* StandingName(PlacementCandidate::Standing standing);

// What an adapter is called here, by its identity (RequestSpec::adapter); 0 of
// none.
uint64_t AdapterKey(absl::string_view identity);

// Blocks of `block_size` tokens that `tokens` tokens need.
// REQUIRES: block_size >= 1, tokens >= 0.
int32_t BlocksFor(int32_t tokens, int32_t block_size);

// A seam: which policy is right depends on the load
// (scheduling/placement_policies.h has them by name). Each takes time in the
// number of workers, not of pairs.
class PlacementPolicy {
 public:
  virtual ~PlacementPolicy() = default;
  virtual PlacementVerdict Place(const ClusterSnapshot& cluster,
                                 const PlacementRequest& request) const = 0;
  // How the workers stood when Place gave `verdict` for the same snapshot and
  // request; of more than `most`, the chosen ones and those that came near, in
  // no order.
  virtual std::vector<PlacementCandidate> Weigh(const ClusterSnapshot& cluster,
                                                const PlacementRequest& request,
                                                const PlacementVerdict& verdict,
                                                size_t most) const = 0;
};

// The decode worker with the least relative load (share of blocks in use plus
// share of sequence places in use), then the prefill worker paired with it that
// has the fewest queued tokens; of several, one whose link is not much slower
// than the fastest. Equal ones take turns.
class LeastLoadPlacement final : public PlacementPolicy {
 public:
  PlacementVerdict Place(const ClusterSnapshot& cluster,
                         const PlacementRequest& request) const override;
  std::vector<PlacementCandidate> Weigh(const ClusterSnapshot& cluster,
                                        const PlacementRequest& request,
                                        const PlacementVerdict& verdict,
                                        size_t most) const override;
};

}  // namespace baton::scheduling
