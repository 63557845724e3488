// The life of one request at the router, from arrival to its last token,
// through as many attempts as it takes.
//
//   kQueued --Place--> kRunning --last token--> kSettling --outcomes--> kDone
//      ^                  |                    any state --Abort--> kDone
//      +--refused/failed--+    kQueued, kRunning --StoppedByText--> kDone
//
// 1. kQueued: no worker knows the request. Place starts an attempt: Reserve to
//    the decode worker and Prefill to the prefill worker at the same time (or
//    Reserve alone, with local prefill).
// 2. kRunning: the decode worker grants, and the grant is forwarded to the
//    prefill worker. Tokens come from both workers, on two streams and so in
//    any order; they are delivered by index, once each. A token that is ahead
//    is held back, one that was delivered is dropped.
// 3. A refusal, a failed leg or a lost worker ends the attempt: the other leg
//    is cancelled at once, and the request goes back to kQueued (or fails).
//    The next attempt starts with the prompt and all output so far, so that
//    its first token is the next one of the stream.
// 4. kSettling: the last token was delivered. The outcomes of the legs, which
//    carry the timing, are about to come; the caller bounds the wait with
//    SettleTimedOut.
// 5. kDone: the request holds nothing anywhere.
//
// The text of the output may end the request before its tokens do: the caller
// finds a stop string in what was delivered and says StoppedByText. The open
// legs are cancelled, and since a leg that was cancelled reports no outcome,
// nothing is waited for. Tokens that are held back, or still come, are dropped.
//
// What the workers say is not trusted: messages of another attempt, or of a
// worker that has no part in the current one, are ignored. Calls that only a
// bug of ours can make (Place while running) CHECK-fail.
//
// Pure: one thread (the router's loop), no IO, no clock; what is to be done
// comes back as actions, in the order in which they are to be done.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "scheduling/placement.h"
#include "scheduling/request.h"

namespace baton::scheduling {

// One placement of one request. Never reused by a router.
enum class AttemptId : uint64_t {};

// What the caller is to do.
struct SendReserve {
  AttemptId attempt{};
  WorkerId decode = kNoWorker;
  // Who computes the prompt; kNoWorker: the decode worker itself.
  WorkerId prefill = kNoWorker;

  bool local_prefill() const { return prefill == kNoWorker; }
};
struct SendPrefill {
  AttemptId attempt{};
  WorkerId prefill = kNoWorker;
};
struct ForwardGrant {
  AttemptId attempt{};
  WorkerId prefill = kNoWorker;
};
struct CancelLeg {
  AttemptId attempt{};
  WorkerId worker = kNoWorker;
  std::string reason;
  // The client gave the request up, or its deadline passed.
  bool abandoned = false;
};
struct DeliverToken {
  int32_t index = 0;
  TokenId token = 0;
  float logprob = 0;
  std::vector<TokenLogprob> top;
};
// The request waits for a placement again, and is to get none before
// `place_at`. The workers in excluded() may be taken again, when there is no
// other, from `retry_excluded_at` on.
struct Requeue {
  enum class Cause {
    kRefused,
    kFailed,
    kWorkerLost,
    kPreempted,
    kDrained,  // its worker goes away, and gave it back
  };
  Cause cause = Cause::kFailed;
  absl::Time retry_excluded_at;
  std::string why;
  absl::Time place_at = absl::InfinitePast();
};
// Call SettleTimedOut when the outcomes do not come within a short while.
struct AwaitOutcomes {};
// The last action of a request. `status` is OK for kStop and kLength.
struct Finish {
  FinishReason reason = FinishReason::kError;
  absl::Status status;
};

using LifecycleAction =
    std::variant<SendReserve, SendPrefill, ForwardGrant, CancelLeg,
                 DeliverToken, Requeue, AwaitOutcomes, Finish>;
using LifecycleActions = absl::InlinedVector<LifecycleAction, 2>;

// Why a decode worker said no.
enum class RefusalKind {
  kBusy,      // not now
  kDraining,  // going away
  kNever,     // too large, or malformed: no other worker would take it
};

// One token as a worker reported it.
struct ReportedToken {
  int32_t index = 0;  // in the request's output, from 0
  TokenId token = 0;
  float logprob = 0;
  // kStop or kLength with the last token of the sequence.
  std::optional<FinishReason> finish;
  // The likeliest tokens, when asked for.
  std::vector<TokenLogprob> top;
};

// The end of an attempt on one worker, as that worker reported it.
struct LegOutcome {
  bool ok = true;
  std::string error;
  bool retryable = false;
  // The worker is gone: not its own word.
  bool lost = false;
  // The worker is going away and gives the attempt back: nobody's failure.
  bool handed_back = false;
  // Others needed its blocks: nobody's failure either, and the worker may be
  // asked again at once.
  bool preempted = false;
  // What the request asks for cannot be done, here or elsewhere. REQUIRES: not
  // retryable.
  bool of_request = false;
};

class RequestLifecycle final {
 public:
  enum class State { kQueued, kRunning, kSettling, kDone };

  // `stop` is the request's own; `max_attempts` >= 1 counts the attempts that
  // failed. Refusals and preemptions do not count, nor (within a bound) do
  // attempts that were handed back, or moved the stream on by a few tokens: a
  // long answer may outlive many workers.
  //
  // Two requests that need the same two workers may each get one of them and
  // be refused by the other one, again and again, where they come from routers
  // that do not know of each other. So who is refused often pauses before the
  // next attempt: some time out of a window that grows (as in "full jitter" of
  // exponential back-off), drawn from `seed`, which should be another one for
  // each request of all routers.
  RequestLifecycle(const StopParams& stop, int32_t max_attempts, uint64_t seed);

  // Starts an attempt. REQUIRES: kQueued; a verdict that names workers.
  LifecycleActions Place(AttemptId attempt, const PlacementVerdict& verdict);

  // What workers say.
  LifecycleActions Granted(AttemptId attempt, WorkerId from);
  LifecycleActions Refused(AttemptId attempt, WorkerId from, RefusalKind kind,
                           absl::string_view message,
                           absl::Duration retry_after, absl::Time now);
  LifecycleActions TokenReported(AttemptId attempt, WorkerId from,
                                 const ReportedToken& token, absl::Time now);
  LifecycleActions LegEnded(AttemptId attempt, WorkerId from,
                            const LegOutcome& outcome, absl::Time now);
  LifecycleActions WorkerLost(WorkerId worker, absl::string_view name,
                              absl::Time now);

  // The outcomes did not come in time. Ignored unless kSettling.
  LifecycleActions SettleTimedOut();

  // A stop string is in the text of what was delivered: the request ends with
  // kStop, whatever ends it otherwise. While kSettling only that changes: the
  // outcomes are still to come. Ignored when kDone.
  //
  // Call it after all actions of the last call were applied, never from within;
  // those may have delivered tokens behind the stop string, and may have ended
  // the request (Finish): what its end says is then the caller's to correct.
  LifecycleActions StoppedByText();

  // Ends the request from our side: the client went away (kCancelled), the
  // deadline passed, no worker can serve, the router shuts down (kError).
  // Ignored when kDone.
  LifecycleActions Abort(const absl::Status& status);

  State state() const { return state_; }
  // The output delivered so far.
  const std::vector<TokenId>& output() const { return output_; }
  // Workers that refused or failed earlier attempts, each once.
  const std::vector<WorkerId>& excluded() const { return excluded_; }
  // Attempts that were refused or preempted, or failed.
  int32_t retries() const {
    return num_refused_ + num_preempted_ + num_failed_ + num_forgiven_;
  }
  // The attempt under way. REQUIRES: kRunning or kSettling.
  AttemptId attempt() const;
  WorkerId prefill_worker() const;  // kNoWorker: local prefill
  WorkerId decode_worker() const;

  // 1. There is an attempt exactly in kRunning and kSettling.
  // 2. Held tokens are ahead of the next index, bounded, and only in kRunning.
  // 3. At most max_output_tokens were delivered; that many only when the
  //    request is settling or done.
  // 4. Fewer than max_attempts attempts failed, unless kDone.
  // 5. No worker is excluded twice.
  // 6. While it settles, a leg is still open, and the end is kStop or kLength.
  void CheckInvariants() const;

 private:
  struct Attempt {
    AttemptId id{};
    WorkerId prefill = kNoWorker;
    WorkerId decode = kNoWorker;
    // Output tokens when it started: the index of its first token.
    int32_t first_index = 0;
    bool granted = false;
    // A leg that is over owes no message and holds nothing.
    bool prefill_over = false;
    bool decode_over = false;
    // The decode worker gave a token: the hand-off is complete.
    bool decode_spoke = false;
  };

  bool IsCurrent(AttemptId attempt, WorkerId from) const;
  void Hold(const ReportedToken& token);
  void DeliverReady(LifecycleActions* actions);
  void Settle(FinishReason reason, LifecycleActions* actions);
  void FinishIfSettled(LifecycleActions* actions);
  void PrefillEnded(const LegOutcome& outcome, absl::Time now,
                    LifecycleActions* actions);
  void DecodeEnded(const LegOutcome& outcome, absl::Time now,
                   LifecycleActions* actions);
  // Ends the attempt because of `culprit`; queues the request again or fails
  // it.
  void FailAttempt(WorkerId culprit, const LegOutcome& outcome, absl::Time now,
                   LifecycleActions* actions);
  // Queues the request again. REQUIRES: no attempt.
  void Preempted(const LegOutcome& outcome, absl::Time now,
                 LifecycleActions* actions);
  void CancelOpenLegs(absl::string_view reason, LifecycleActions* actions,
                      bool abandoned = false);
  void EndAttempt();
  // From the last refusal to the next attempt.
  absl::Duration DrawPause() const;
  void Exclude(WorkerId worker);
  void FinishNow(FinishReason reason, absl::Status status,
                 LifecycleActions* actions);

  const StopParams stop_;
  const int32_t max_attempts_;
  const uint64_t seed_;

  State state_ = State::kQueued;
  std::optional<Attempt> attempt_;
  std::vector<TokenId> output_;
  std::map<int32_t, ReportedToken> held_;              // by index
  FinishReason finish_reason_ = FinishReason::kError;  // set by Settle
  std::vector<WorkerId> excluded_;
  int32_t num_refused_ = 0;
  int32_t refused_in_a_row_ = 0;  // since a token came
  int32_t num_preempted_ = 0;
  int32_t num_failed_ = 0;
  int32_t num_forgiven_ = 0;
};

}  // namespace baton::scheduling
