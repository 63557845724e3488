#include "router/request_flow.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "router/request_report.h"
#include "router/request_urgency.h"
#include "router/worker_messages.h"
#include "scheduling/placement_room.h"

namespace baton::router {
namespace {

using scheduling::AttemptId;
using scheduling::kNoWorker;
using scheduling::LifecycleActions;
using scheduling::PlacementReason;
using scheduling::PlacementRequest;
using scheduling::PlacementVerdict;
using scheduling::RequestLifecycle;
using scheduling::WorkerId;

// Two timers for one deadline run out nearly at once.
constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(20);

// Whether a cancel is a client's deadline: gRPC reports both alike, a little
// before our own timer, because it sends the time left rounded up by as much as
// a hundredth.
bool IsDeadline(const RequestRecord& record, absl::Time now) {
  const absl::Duration whole = record.deadline - record.trace.received_at;
  return record.deadline - now <= std::max(kDeadlineSlack, 0.01 * whole);
}

}  // namespace

RequestFlow::RequestFlow(const Options& options, const ServedModel& model,
                         const scheduling::PlacementPolicy& policy,
                         Cluster* cluster, RouterMetrics* metrics,
                         const Clock* clock, tracing::SpanSink* spans)
    : options_(options),
      model_(model),
      policy_(policy),
      cluster_(cluster),
      metrics_(metrics),
      clock_(clock),
      spans_(spans),
      line_(options.line),
      history_(options.history) {}

void RequestFlow::TakeClientGone(RequestKey key, absl::Time now) {
  const auto it = records_.find(key);
  if (it == records_.end()) return;
  RequestRecord& record = *it->second;
  const absl::Status status =
      IsDeadline(record, now)
          ? absl::DeadlineExceededError("the request's deadline passed")
          : absl::CancelledError("the client cancelled");
  Apply(record, record.lifecycle.Abort(status), now);
}

void RequestFlow::TakeNews(const Cluster::News& news, absl::Time now) {
  if (news.lost) {
    TakeLoss(news, now);
    return;
  }
  switch (news.message.kind_case()) {
    case v1::WorkerMessage::kGrant: {
      const v1::Grant& grant = news.message.grant();
      if (RequestRecord* record = OwnerOf(grant.attempt())) {
        record->grant = grant;
        Apply(
            *record,
            record->lifecycle.Granted(AttemptId{grant.attempt()}, news.worker),
            now);
      }
      return;
    }
    case v1::WorkerMessage::kRefusal:
      return TakeRefusal(news, now);
    case v1::WorkerMessage::kTokens:
      return TakeTokens(news, now);
    case v1::WorkerMessage::kOutcome:
      return TakeOutcome(news, now);
    case v1::WorkerMessage::kHello:
    case v1::WorkerMessage::kLoad:
    case v1::WorkerMessage::kPair:
    case v1::WorkerMessage::kPrefixes:
    case v1::WorkerMessage::kHeartbeat:
    case v1::WorkerMessage::kAdapters:
    case v1::WorkerMessage::KIND_NOT_SET:
      break;
  }
  LOG(FATAL) << "not about a request: " << news.message.kind_case();
}

RequestRecord* RequestFlow::OwnerOf(uint64_t attempt) {
  const auto it = attempts_.find(attempt);
  return it == attempts_.end() ? nullptr : records_.at(it->second).get();
}

void RequestFlow::TakeTokens(const Cluster::News& news, absl::Time now) {
  TakePromptLogprobs(news, now);
  for (const v1::Token& token : news.message.tokens().tokens()) {
    RequestRecord* record = OwnerOf(token.attempt());
    if (record == nullptr) continue;
    const AttemptId attempt{token.attempt()};
    const auto reported = FromWire(token, model_.vocab_size);
    if (record->WantsPromptLogprobs() && ComputesPrompt(*record, news.worker)) {
      FailLeg(*record, news,
              "gave a token before all log-probabilities of the prompt: is it "
              "of an earlier version?",
              now);
      continue;
    }
    if (reported.has_value()) {
      if (token.has_prompt()) {
        record->trace.AddPromptReport(token.index(), token.prompt());
      }
      Apply(
          *record,
          record->lifecycle.TokenReported(attempt, news.worker, *reported, now),
          now);
      continue;
    }
    FailLeg(
        *record, news,
        absl::StrCat("gave token ", token.id(), " at index ", token.index()),
        now);
  }
}

void RequestFlow::TakeRefusal(const Cluster::News& news, absl::Time now) {
  const v1::Refusal& refusal = news.message.refusal();
  if (refusal.reason() == v1::REFUSAL_REASON_DRAINING) {
    cluster_->Draining(news.worker, now);
  }
  RequestRecord* record = OwnerOf(refusal.attempt());
  if (record == nullptr) return;
  if (refusal.of_grammar()) record->format_at_fault = true;
  Apply(*record,
        record->lifecycle.Refused(
            AttemptId{refusal.attempt()}, news.worker, KindOf(refusal.reason()),
            absl::StrCat(news.worker_name, ": ", refusal.message()),
            absl::Milliseconds(refusal.retry_after_ms()), now),
        now);
}

void RequestFlow::TakeOutcome(const Cluster::News& news, absl::Time now) {
  const v1::Outcome& outcome = news.message.outcome();
  RequestRecord* record = OwnerOf(outcome.attempt());
  if (record == nullptr) return;
  const AttemptId attempt{outcome.attempt()};
  const bool by_decode = news.worker == record->lifecycle.decode_worker();
  if (!by_decode && news.worker != record->lifecycle.prefill_worker()) return;
  if (!outcome.ok() && now + kDeadlineSlack >= record->deadline) {
    // The worker's timer for the same deadline ran out a little before ours.
    Apply(*record,
          record->lifecycle.Abort(
              absl::DeadlineExceededError("the request's deadline passed")),
          now);
    return;
  }
  Judge(*record, news, now);
  if (outcome.failure() == v1::FAILURE_KIND_REQUEST) {
    record->format_at_fault = true;
  }
  if (outcome.ok()) record->trace.AddOutcome(by_decode, outcome);
  if (outcome.ok() && record->spans != nullptr) {
    record->spans->AddOutcome(attempt, by_decode, outcome);
  }
  Apply(*record,
        record->lifecycle.LegEnded(
            attempt, news.worker,
            {.ok = outcome.ok(),
             .error = absl::StrCat(news.worker_name, ": ", outcome.error()),
             .retryable = outcome.retryable(),
             .handed_back = outcome.failure() == v1::FAILURE_KIND_DRAINING,
             .preempted = outcome.failure() == v1::FAILURE_KIND_PREEMPTED,
             .of_request = outcome.failure() == v1::FAILURE_KIND_REQUEST},
            now),
        now);
}

void RequestFlow::Judge(const RequestRecord& record, const Cluster::News& news,
                        absl::Time now) {
  const v1::Outcome& outcome = news.message.outcome();
  const WorkerId prefill = record.lifecycle.prefill_worker();
  const WorkerId decode = record.lifecycle.decode_worker();
  WorkerRegistry& registry = cluster_->registry();
  if (outcome.ok()) {
    registry.LegSucceeded(news.worker, now);
    if (outcome.kv_transfer_bytes() > 0) {
      registry.TransferSucceeded(prefill, decode, now);
    }
    return;
  }
  // What is not retryable is the request's own fault.
  if (!outcome.retryable()) return;
  switch (outcome.failure()) {
    case v1::FAILURE_KIND_DRAINING:
      cluster_->Draining(news.worker, now);
      return;
    case v1::FAILURE_KIND_TRANSFER:
      registry.TransferFailed(prefill, decode, now);
      return;
    case v1::FAILURE_KIND_PREEMPTED:
      return;
    default:  // proto enums are open
      registry.LegFailed(news.worker, now);
      return;
  }
}

void RequestFlow::TakeLoss(const Cluster::News& news, absl::Time now) {
  // Losing a worker is rare; looking at each attempt is cheap enough.
  std::vector<RequestKey> keys;
  keys.reserve(attempts_.size());
  for (const auto& [attempt, key] : attempts_) keys.push_back(key);
  for (RequestKey key : keys) {
    RequestRecord& record = *records_.at(key);
    Apply(record,
          record.lifecycle.WorkerLost(news.worker, news.worker_name, now), now);
  }
}

void RequestFlow::RunTimers(absl::Time now) {
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const RequestKey key = timers_.begin()->second;
    timers_.erase(timers_.begin());
    const auto it = records_.find(key);
    if (it == records_.end()) continue;
    RequestRecord& record = *it->second;
    if (now >= record.deadline) {
      Apply(record,
            record.lifecycle.Abort(
                absl::DeadlineExceededError("the request's deadline passed")),
            now);
    } else if (now >= record.settle_at) {
      Apply(record, record.lifecycle.SettleTimedOut(), now);
    }
    // Else an excluded worker may be asked again, or a pause is over:
    // PlaceWaiting does.
  }
  AbortUnplaceable(now);
}

void RequestFlow::AbortUnplaceable(absl::Time now) {
  if (cluster_->registry().CouldPlace()) {
    unplaceable_since_.reset();
    return;
  }
  if (!unplaceable_since_.has_value()) unplaceable_since_ = now;
  line_.Pause();
  for (RequestKey key : line_.Keys()) {
    RequestRecord& record = *records_.at(key);
    const absl::Time since =
        std::max(*unplaceable_since_, record.trace.received_at);
    if (now < since + options_.worker_wait) continue;
    Apply(record,
          record.lifecycle.Abort(
              absl::UnavailableError(cluster_->registry().WhyNot())),
          now);
  }
}

absl::Time RequestFlow::NextDue() const {
  absl::Time next = absl::InfiniteFuture();
  if (!timers_.empty()) next = timers_.begin()->first;
  if (unplaceable_since_.has_value() && !line_.empty()) {
    // The oldest waits longest.
    const RequestRecord& oldest = *records_.at(line_.oldest());
    next =
        std::min(next, std::max(*unplaceable_since_, oldest.trace.received_at) +
                           options_.worker_wait);
  }
  return next;
}

void RequestFlow::PlaceWaiting(absl::Time now) {
  while (const std::optional<uint64_t> key = line_.Next(now)) {
    if (!TryPlace(*records_.at(*key), now)) break;
  }
  line_.EndTurn(now);
}

bool RequestFlow::TryPlace(RequestRecord& record, absl::Time now) {
  if (now < record.place_at) {
    line_.SetAside(record.key);
    return true;
  }
  const RequestLifecycle& life = record.lifecycle;
  const scheduling::Urgency urgency = UrgencyOf(record, now);
  const auto prefill_tokens =
      static_cast<int32_t>(record.spec.prompt.size() + life.output().size());
  const bool stands_by = line_.StandsBy(record.key);
  DecisionTime time;
  absl::Time start = clock_->Now();
  const absl::Span<const scheduling::CachedPrompt> cached =
      cluster_->prefixes().Look(
          &record.prefix,
          (record.WantsPromptLogprobs() ? record.next_prompt_logprob
                                        : prefill_tokens) -
              1,
          now);
  time.prefix = clock_->Now() - start;
  const PlacementRequest request{
      .prefill_tokens = prefill_tokens,
      .total_tokens =
          static_cast<int32_t>(record.spec.prompt.size()) +
          (record.answer.prompt_only ? 0 : record.spec.stop.max_output_tokens),
      .excluded = life.excluded(),
      .allow_excluded_decode = now >= record.retry_excluded_at,
      .cached = cached,
      .ttft_target_seconds = TtftToKeep(record, line_.IsLate(record.key), now),
      .itl_target_seconds = urgency.itl_target_seconds,
      .batch_itl_seconds = BatchItlOf(record, options_.targets, stands_by, now),
      .stands_by = stands_by,
      .little_seconds = scheduling::LittleSeconds(
          absl::ToDoubleSeconds(record.answer.ttft_target)),
      .adapter = scheduling::AdapterKey(record.spec.adapter)};
  start = clock_->Now();
  const PlacementVerdict verdict =
      policy_.Place(cluster_->registry().snapshot(), request);
  time.policy = clock_->Now() - start;
  if (verdict.kind != PlacementVerdict::Kind::kNone) {
    // Others still can be in time.
    if (scheduling::MissesTtftTarget(request, verdict) &&
        line_.StandBack(record.key)) {
      return true;
    }
    record.no_adapter_since = absl::InfiniteFuture();
    metrics_->Placed(verdict, time);
    metrics_->prefix()->Placed(request, verdict);
    StartAttempt(record, verdict, request, now);
    return true;
  }
  record.waits_for = verdict.reason;
  if (verdict.reason == PlacementReason::kTooLarge) {
    Apply(record,
          record.lifecycle.Abort(absl::InvalidArgumentError(absl::StrCat(
              "max_tokens: prompt and answer may take ", request.total_tokens,
              " tokens; the workers can hold ",
              cluster_->registry().MaxContext()))),
          now);
    return true;
  }
  if (verdict.reason == PlacementReason::kNoAdapter) {
    record.no_adapter_since = std::min(record.no_adapter_since, now);
    const absl::Time end = record.no_adapter_since + options_.worker_wait;
    if (now >= end) {
      Apply(record,
            record.lifecycle.Abort(absl::UnavailableError(
                absl::StrCat("no worker that could serve has the adapter \"",
                             record.answer.adapter, "\" that was asked for"))),
            now);
      return true;
    }
    SetTimer(end, record.key);
  } else {
    record.no_adapter_since = absl::InfiniteFuture();
  }
  // Its own bad luck is no reason for others to wait.
  if (verdict.reason == PlacementReason::kOnlyExcluded ||
      verdict.reason == PlacementReason::kNoAdapter ||
      line_.GivesWay(record.key)) {
    line_.SetAside(record.key);
    return true;
  }
  // Those that can be in time pass who is late.
  if (request.stands_by) {
    line_.SetLateAside();
    return true;
  }
  blocked_at_ = now;
  blocked_by_ = verdict.reason;
  return false;
}

void RequestFlow::StartAttempt(RequestRecord& record,
                               const PlacementVerdict& verdict,
                               const PlacementRequest& request,
                               absl::Time now) {
  LogPlacement(record, verdict, request, now);
  WorkerRegistry& registry = cluster_->registry();
  const scheduling::Lane lane = line_.Place(record.key, now);
  if (!record.lane.has_value()) record.lane = lane;
  registry.NextRound();
  const AttemptId attempt{++last_attempt_};
  attempts_[last_attempt_] = record.key;
  record.attempt = attempt;

  AttemptCharge charge;
  charge.decode = verdict.decode;
  charge.decode_blocks = registry.BlocksTaken(verdict.decode, request);
  registry.PlacedDecode(charge.decode, charge.decode_blocks);
  if (verdict.prefill != kNoWorker) {
    charge.prefill = charge.sent_to_prefill = verdict.prefill;
  } else {
    charge.prefill = verdict.decode;  // it prefills too
  }
  // As its reports count them: a prefill worker finds what is cached when the
  // prompt's turn comes.
  charge.prefill_tokens = verdict.prefill != kNoWorker
                              ? request.prefill_tokens
                              : request.prefill_tokens - verdict.cached_tokens;
  charge.prefill_report =
      registry.PlacedPrefill(charge.prefill, charge.prefill_tokens);
  record.charge = charge;

  registry.AttemptSent(verdict.prefill, verdict.decode, now);
  TellBegan(record, verdict.cached_tokens, now);

  record.trace.sent_at = now;
  record.trace.predicted_ttft = absl::Seconds(verdict.predicted_ttft_seconds);
  record.trace.predicted_tpot = absl::Seconds(verdict.predicted_tpot_seconds);
  record.trace.decode_worker = registry.NameOf(verdict.decode);
  record.trace.prefill_worker = registry.NameOf(verdict.prefill);
  TraceAttempt(record, verdict);
  Apply(record, record.lifecycle.Place(attempt, verdict), now);
}

void RequestFlow::Publish(absl::Time now) {
  // Aborting a slow client touches nobody else.
  std::vector<RequestKey> touched;
  touched.swap(touched_);
  for (RequestKey key : touched) {
    const auto it = records_.find(key);
    if (it == records_.end() || !it->second->touched) continue;
    RequestRecord& record = *it->second;
    if (Flush(record, now)) continue;
    Apply(record,
          record.lifecycle.Abort(
              absl::ResourceExhaustedError("the client reads too slowly")),
          now);
  }
  for (const scheduling::Lane lane :
       {scheduling::Lane::kResumed, scheduling::Lane::kOnTime,
        scheduling::Lane::kLate, scheduling::Lane::kBatch}) {
    metrics_->SetWaiting(lane, line_.size_of(lane));
  }
  metrics_->Late(line_.num_late() -
                 std::exchange(late_counted_, line_.num_late()));
  metrics_->SetRequests(static_cast<int64_t>(attempts_.size()),
                        static_cast<int64_t>(line_.size()));
}

void RequestFlow::Describe(v1::GetClusterResponse* response) const {
  response->set_running_requests(static_cast<uint32_t>(attempts_.size()));
  response->set_waiting_requests(static_cast<uint32_t>(line_.size()));
}

void RequestFlow::AbortAll(const absl::Status& status, absl::Time now) {
  std::vector<RequestKey> keys;
  for (const auto& [key, record] : records_) keys.push_back(key);
  for (RequestKey key : keys) {
    RequestRecord& record = *records_.at(key);
    Apply(record, record.lifecycle.Abort(status), now);
  }
}

}  // namespace baton::router
