#include "scheduling/request_lifecycle.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/stable_hash.h"

namespace baton::scheduling {
namespace {

// Most tokens ahead of the next one that are kept while it is missing.
constexpr size_t kMaxHeldTokens = 1024;

// An attempt that gave so many tokens before it failed is forgiven, so often.
constexpr int32_t kForgivenTokens = 4;
constexpr int32_t kMaxForgiven = 64;

// When workers that refused or failed may be asked again.
constexpr absl::Duration kMinRetryDelay = absl::Milliseconds(20);
constexpr absl::Duration kMaxRetryDelay = absl::Seconds(2);

// So many refusals in a row are what a busy cluster has; each one more doubles
// the window that the pause is drawn from. An attempt takes well under the
// widest one, so that two that are in each other's way soon miss each other.
constexpr int32_t kRefusalsWithoutPause = 2;
constexpr absl::Duration kFirstPauseWindow = absl::Milliseconds(50);
constexpr absl::Duration kWidestPauseWindow = absl::Milliseconds(800);

bool IsAbandoned(const absl::Status& why) {
  return absl::IsCancelled(why) || absl::IsDeadlineExceeded(why);
}

absl::Duration BoundedDelay(absl::Duration delay) {
  return std::clamp(delay, kMinRetryDelay, kMaxRetryDelay);
}

}  // namespace

RequestLifecycle::RequestLifecycle(const StopParams& stop, int32_t max_attempts,
                                   uint64_t seed)
    : stop_(stop), max_attempts_(max_attempts), seed_(seed) {
  CHECK_GE(stop_.max_output_tokens, 1);
  CHECK_GE(max_attempts_, 1);
}

LifecycleActions RequestLifecycle::Place(AttemptId attempt,
                                         const PlacementVerdict& verdict) {
  CHECK(state_ == State::kQueued)
      << "placed in state " << static_cast<int>(state_);
  CHECK(verdict.kind != PlacementVerdict::Kind::kNone);
  CHECK(verdict.decode != kNoWorker);
  const bool local = verdict.kind == PlacementVerdict::Kind::kDecodeOnly;
  CHECK_EQ(local, verdict.prefill == kNoWorker);
  state_ = State::kRunning;
  attempt_ = Attempt{.id = attempt,
                     .prefill = verdict.prefill,
                     .decode = verdict.decode,
                     .first_index = static_cast<int32_t>(output_.size()),
                     .prefill_over = local};
  LifecycleActions actions;
  actions.push_back(SendReserve{attempt, verdict.decode, verdict.prefill});
  if (!local) actions.push_back(SendPrefill{attempt, verdict.prefill});
  return actions;
}

LifecycleActions RequestLifecycle::Granted(AttemptId attempt, WorkerId from) {
  LifecycleActions actions;
  if (state_ != State::kRunning || !IsCurrent(attempt, from) ||
      from != attempt_->decode || attempt_->granted) {
    return actions;
  }
  attempt_->granted = true;
  if (!attempt_->prefill_over) {
    actions.push_back(ForwardGrant{attempt, attempt_->prefill});
  }
  return actions;
}

LifecycleActions RequestLifecycle::Refused(AttemptId attempt, WorkerId from,
                                           RefusalKind kind,
                                           absl::string_view message,
                                           absl::Duration retry_after,
                                           absl::Time now) {
  LifecycleActions actions;
  if (state_ != State::kRunning || !IsCurrent(attempt, from)) return actions;
  const bool by_decode = from == attempt_->decode;
  (by_decode ? attempt_->decode_over : attempt_->prefill_over) = true;
  CancelOpenLegs(absl::StrCat(by_decode ? "decode" : "prefill",
                              " worker refused: ", message),
                 &actions);
  EndAttempt();
  ++num_refused_;
  ++refused_in_a_row_;
  switch (kind) {
    case RefusalKind::kNever:
      FinishNow(FinishReason::kError,
                absl::InvalidArgumentError(
                    absl::StrCat("no worker can hold the request: ", message)),
                &actions);
      return actions;
    case RefusalKind::kBusy:
    case RefusalKind::kDraining:
      break;
  }
  // A prefill worker that is busy is still better than prefilling on the decode
  // worker, which an exclusion could lead to.
  if (by_decode || kind == RefusalKind::kDraining) Exclude(from);
  actions.push_back(Requeue{Requeue::Cause::kRefused,
                            now + BoundedDelay(retry_after),
                            std::string(message), now + DrawPause()});
  return actions;
}

LifecycleActions RequestLifecycle::TokenReported(AttemptId attempt,
                                                 WorkerId from,
                                                 const ReportedToken& token,
                                                 absl::Time now) {
  LifecycleActions actions;
  if (state_ != State::kRunning || !IsCurrent(attempt, from)) return actions;
  if (from == attempt_->decode) attempt_->decode_spoke = true;
  Hold(token);
  DeliverReady(&actions);
  if (held_.size() > kMaxHeldTokens) {
    FailAttempt(kNoWorker,
                {.ok = false,
                 .error = absl::StrCat("output token ", output_.size(),
                                       " did not come"),
                 .retryable = true},
                now, &actions);
  }
  return actions;
}

LifecycleActions RequestLifecycle::LegEnded(AttemptId attempt, WorkerId from,
                                            const LegOutcome& outcome,
                                            absl::Time now) {
  LifecycleActions actions;
  if (!IsCurrent(attempt, from)) return actions;
  const bool by_decode = from == attempt_->decode;
  if (state_ == State::kSettling) {
    (by_decode ? attempt_->decode_over : attempt_->prefill_over) = true;
    FinishIfSettled(&actions);
  } else if (by_decode) {
    DecodeEnded(outcome, now, &actions);
  } else {
    PrefillEnded(outcome, now, &actions);
  }
  return actions;
}

LifecycleActions RequestLifecycle::WorkerLost(WorkerId worker,
                                              absl::string_view name,
                                              absl::Time now) {
  if (!attempt_.has_value()) return {};
  return LegEnded(attempt_->id, worker,
                  {.ok = false,
                   .error = absl::StrCat("lost worker ", name),
                   .retryable = true,
                   .lost = true},
                  now);
}

LifecycleActions RequestLifecycle::SettleTimedOut() {
  LifecycleActions actions;
  if (state_ != State::kSettling) return actions;
  CancelOpenLegs("the request is finished", &actions);
  FinishIfSettled(&actions);
  return actions;
}

LifecycleActions RequestLifecycle::StoppedByText() {
  LifecycleActions actions;
  switch (state_) {
    case State::kDone:
      return actions;
    case State::kSettling:
      finish_reason_ = FinishReason::kStop;
      return actions;
    case State::kRunning:
      CancelOpenLegs("stop string", &actions);
      break;
    case State::kQueued:
      break;
  }
  FinishNow(FinishReason::kStop, absl::OkStatus(), &actions);
  return actions;
}

LifecycleActions RequestLifecycle::Abort(const absl::Status& status) {
  CHECK(!status.ok());
  LifecycleActions actions;
  if (state_ == State::kDone) return actions;
  if (attempt_.has_value()) {
    CancelOpenLegs(status.message(), &actions,
                   state_ == State::kRunning && IsAbandoned(status));
  }
  if (state_ == State::kSettling) {
    // All output is delivered; only its timing is missing.
    FinishIfSettled(&actions);
    return actions;
  }
  FinishNow(absl::IsCancelled(status) ? FinishReason::kCancelled
                                      : FinishReason::kError,
            status, &actions);
  return actions;
}

AttemptId RequestLifecycle::attempt() const {
  CHECK(attempt_.has_value());
  return attempt_->id;
}

WorkerId RequestLifecycle::prefill_worker() const {
  CHECK(attempt_.has_value());
  return attempt_->prefill;
}

WorkerId RequestLifecycle::decode_worker() const {
  CHECK(attempt_.has_value());
  return attempt_->decode;
}

bool RequestLifecycle::IsCurrent(AttemptId attempt, WorkerId from) const {
  if (!attempt_.has_value() || attempt_->id != attempt) return false;
  // A leg that is over has said its last word.
  if (from == attempt_->decode) return !attempt_->decode_over;
  return from != kNoWorker && from == attempt_->prefill &&
         !attempt_->prefill_over;
}

void RequestLifecycle::Hold(const ReportedToken& token) {
  if (token.index < static_cast<int32_t>(output_.size())) return;
  held_.emplace(token.index, token);
}

void RequestLifecycle::DeliverReady(LifecycleActions* actions) {
  while (!held_.empty() &&
         held_.begin()->first == static_cast<int32_t>(output_.size())) {
    ReportedToken token = std::move(held_.begin()->second);
    held_.erase(held_.begin());
    refused_in_a_row_ = 0;
    output_.push_back(token.token);
    actions->push_back(DeliverToken{token.index, token.token, token.logprob,
                                    std::move(token.top)});
    // The request's own limits hold whatever a worker says.
    std::optional<FinishReason> finish = token.finish;
    if (!finish.has_value()) {
      finish = CheckFinished(stop_, static_cast<int32_t>(output_.size()),
                             token.token);
    }
    if (finish.has_value()) {
      Settle(*finish, actions);
      return;
    }
  }
}

void RequestLifecycle::Settle(FinishReason reason, LifecycleActions* actions) {
  state_ = State::kSettling;
  finish_reason_ = reason;
  held_.clear();
  if (!attempt_->decode_spoke && !attempt_->decode_over) {
    // The first token was the last one: nothing is to be handed over.
    attempt_->decode_over = true;
    actions->push_back(CancelLeg{attempt_->id, attempt_->decode,
                                 "the first token finished the request"});
  }
  if (attempt_->prefill_over && attempt_->decode_over) {
    FinishIfSettled(actions);
  } else {
    actions->push_back(AwaitOutcomes{});
  }
}

void RequestLifecycle::FinishIfSettled(LifecycleActions* actions) {
  if (!attempt_->prefill_over || !attempt_->decode_over) return;
  FinishNow(finish_reason_, absl::OkStatus(), actions);
}

void RequestLifecycle::PrefillEnded(const LegOutcome& outcome, absl::Time now,
                                    LifecycleActions* actions) {
  attempt_->prefill_over = true;
  const bool first_token_here =
      static_cast<int32_t>(output_.size()) > attempt_->first_index;
  if (first_token_here && !attempt_->decode_over &&
      (outcome.ok || attempt_->decode_spoke)) {
    return;
  }
  LegOutcome failure = outcome;
  if (outcome.ok) {
    failure = {.ok = false,
               .error = "the prefill worker ended without a first token",
               .retryable = true};
  }
  FailAttempt(attempt_->prefill, failure, now, actions);
}

void RequestLifecycle::DecodeEnded(const LegOutcome& outcome, absl::Time now,
                                   LifecycleActions* actions) {
  attempt_->decode_over = true;
  // The first token may still be on its way from the prefill worker.
  if (outcome.ok && !held_.empty() && !attempt_->prefill_over) return;
  LegOutcome failure = outcome;
  if (outcome.ok) {
    failure = {.ok = false,
               .error = "the decode worker ended without a last token",
               .retryable = true};
  }
  FailAttempt(attempt_->decode, failure, now, actions);
}

void RequestLifecycle::FailAttempt(WorkerId culprit, const LegOutcome& outcome,
                                   absl::Time now, LifecycleActions* actions) {
  CancelOpenLegs(outcome.error, actions);
  const int32_t tokens =
      static_cast<int32_t>(output_.size()) - attempt_->first_index;
  EndAttempt();
  if (outcome.preempted && outcome.retryable) {
    Preempted(outcome, now, actions);
    return;
  }
  const bool forgiven = outcome.retryable && num_forgiven_ < kMaxForgiven &&
                        (outcome.handed_back || tokens >= kForgivenTokens);
  ++(forgiven ? num_forgiven_ : num_failed_);
  if (!outcome.retryable) {
    FinishNow(FinishReason::kError,
              outcome.of_request ? absl::InvalidArgumentError(outcome.error)
                                 : absl::InternalError(outcome.error),
              actions);
    return;
  }
  if (num_failed_ >= max_attempts_) {
    FinishNow(FinishReason::kError,
              absl::UnavailableError(absl::StrCat(
                  "gave up after ", num_failed_,
                  " failed attempts; the last one: ", outcome.error)),
              actions);
    return;
  }
  if (culprit != kNoWorker) Exclude(culprit);
  const absl::Duration delay =
      absl::Milliseconds(50) * (1 << std::clamp(num_failed_ - 1, 0, 10));
  const Requeue::Cause cause = outcome.lost ? Requeue::Cause::kWorkerLost
                               : outcome.handed_back ? Requeue::Cause::kDrained
                                                     : Requeue::Cause::kFailed;
  actions->push_back(Requeue{cause, now + BoundedDelay(delay), outcome.error});
}

void RequestLifecycle::Preempted(const LegOutcome& outcome, absl::Time now,
                                 LifecycleActions* actions) {
  ++num_preempted_;
  actions->push_back(
      Requeue{Requeue::Cause::kPreempted, now + kMinRetryDelay, outcome.error});
}

void RequestLifecycle::CancelOpenLegs(absl::string_view reason,
                                      LifecycleActions* actions,
                                      bool abandoned) {
  if (!attempt_->prefill_over) {
    attempt_->prefill_over = true;
    actions->push_back(CancelLeg{attempt_->id, attempt_->prefill,
                                 std::string(reason), abandoned});
  }
  if (!attempt_->decode_over) {
    attempt_->decode_over = true;
    actions->push_back(CancelLeg{attempt_->id, attempt_->decode,
                                 std::string(reason), abandoned});
  }
}

void RequestLifecycle::EndAttempt() {
  attempt_.reset();
  held_.clear();
  state_ = State::kQueued;
}

absl::Duration RequestLifecycle::DrawPause() const {
  const int32_t doublings = refused_in_a_row_ - kRefusalsWithoutPause - 1;
  if (doublings < 0) return absl::ZeroDuration();
  const absl::Duration window = std::min(
      kWidestPauseWindow, kFirstPauseWindow * (1 << std::min(doublings, 10)));
  const uint64_t drawn[] = {seed_, static_cast<uint64_t>(num_refused_)};
  const uint64_t hash = StableHash(std::as_bytes(std::span(drawn))).low;
  return window * std::ldexp(static_cast<double>(hash), -64);
}

void RequestLifecycle::Exclude(WorkerId worker) {
  if (std::find(excluded_.begin(), excluded_.end(), worker) ==
      excluded_.end()) {
    excluded_.push_back(worker);
  }
}

void RequestLifecycle::FinishNow(FinishReason reason, absl::Status status,
                                 LifecycleActions* actions) {
  EndAttempt();
  state_ = State::kDone;
  actions->push_back(Finish{reason, std::move(status)});
}

void RequestLifecycle::CheckInvariants() const {
  const bool active = state_ == State::kRunning || state_ == State::kSettling;
  CHECK_EQ(attempt_.has_value(), active);
  const int32_t num_output = static_cast<int32_t>(output_.size());
  if (!held_.empty()) {
    CHECK(state_ == State::kRunning);
    CHECK_GT(held_.begin()->first, num_output);
    CHECK_LE(held_.size(), kMaxHeldTokens);
  }
  CHECK_LE(num_output, stop_.max_output_tokens);
  if (num_output == stop_.max_output_tokens) {
    CHECK(state_ == State::kSettling || state_ == State::kDone);
  }
  CHECK_GE(num_failed_, 0);
  if (state_ != State::kDone) CHECK_LT(num_failed_, max_attempts_);
  const std::set<WorkerId> distinct(excluded_.begin(), excluded_.end());
  CHECK_EQ(distinct.size(), excluded_.size());
  if (state_ == State::kRunning) {
    // Somebody still owes us something.
    CHECK(!attempt_->prefill_over || !attempt_->decode_over);
    CHECK_LE(attempt_->first_index, num_output);
  }
  if (state_ == State::kSettling) {
    CHECK(!attempt_->prefill_over || !attempt_->decode_over);
    CHECK(finish_reason_ == FinishReason::kStop ||
          finish_reason_ == FinishReason::kLength);
  }
}

}  // namespace baton::scheduling
