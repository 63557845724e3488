// RequestFlow: what the life cycle of a request says is to be done.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "router/answer_logprobs.h"
#include "router/invalid_field.h"
#include "router/request_explanation.h"
#include "router/request_flow.h"
#include "router/request_report.h"
#include "router/request_urgency.h"
#include "router/worker_messages.h"

namespace baton::router {
namespace {

using scheduling::kNoWorker;
using scheduling::LifecycleActions;
using scheduling::RequestLifecycle;

const char* CauseName(scheduling::Requeue::Cause cause) {
  switch (cause) {
    case scheduling::Requeue::Cause::kRefused:
      return "refused";
    case scheduling::Requeue::Cause::kFailed:
      return "failed";
    case scheduling::Requeue::Cause::kWorkerLost:
      return "worker_lost";
    case scheduling::Requeue::Cause::kPreempted:
      return "preempted";
    case scheduling::Requeue::Cause::kDrained:
      return "drained";
  }
  return "unknown";
}

// The request as it goes to a worker.
v1::SequenceSpec SpecOf(const RequestRecord& record, bool computes_prompt,
                        absl::Time now) {
  v1::SequenceSpec spec =
      MakeSequenceSpec(record.spec, record.lifecycle.output(),
                       record.deadline - now, UrgencyOf(record, now));
  spec.set_cache_salt(record.prefix.salt);
  if (computes_prompt && record.WantsPromptLogprobs()) {
    v1::WantedPromptLogprobs* wanted = spec.mutable_prompt_logprobs();
    wanted->set_first(static_cast<uint32_t>(record.next_prompt_logprob));
    wanted->set_top(static_cast<uint32_t>(*record.spec.prompt_logprobs));
  }
  return spec;
}

}  // namespace

void RequestFlow::EndAttempt(RequestRecord& record) {
  if (!record.attempt.has_value()) return;
  attempts_.erase(static_cast<uint64_t>(*record.attempt));
  record.attempt.reset();
  WorkerRegistry& registry = cluster_->registry();
  const AttemptCharge& charge = *record.charge;
  registry.EndedDecode(charge.decode, charge.decode_blocks);
  registry.EndedPrefill(charge.prefill, charge.prefill_tokens,
                        charge.prefill_report);
  registry.AttemptEnded(charge.sent_to_prefill, charge.decode);
  record.charge.reset();
}

void RequestFlow::Apply(RequestRecord& record, const LifecycleActions& actions,
                        absl::Time now) {
  for (const scheduling::LifecycleAction& action : actions) {
    std::visit([&](const auto& a) { Do(record, a, now); }, action);
  }
  if (record.lifecycle.state() == RequestLifecycle::State::kDone) {
    if (!actions.empty()) Remove(record, now);
  } else if (record.stop_matcher.stopped() && !record.stop_reported) {
    record.stop_reported = true;
    Apply(record, record.lifecycle.StoppedByText(), now);
  }
}

void RequestFlow::Do(RequestRecord& record,
                     const scheduling::SendReserve& action, absl::Time now) {
  const int prefill = cluster_->registry().IndexOf(action.prefill);
  const uint64_t incarnation =
      prefill < 0 ? 0
                  : cluster_->registry().workers()[prefill].hello.incarnation();
  cluster_->Send(
      action.decode,
      MakeReserve(action, SpecOf(record, action.local_prefill(), now),
                  incarnation));
}

void RequestFlow::Do(RequestRecord& record,
                     const scheduling::SendPrefill& action, absl::Time now) {
  cluster_->Send(action.prefill,
                 MakePrefill(action, SpecOf(record, true, now)));
}

void RequestFlow::Do(RequestRecord& record,
                     const scheduling::ForwardGrant& action, absl::Time now) {
  v1::RouterMessage message;
  *message.mutable_grant() = record.grant;
  cluster_->Send(action.prefill, std::move(message));
}

void RequestFlow::Do(RequestRecord& record, const scheduling::CancelLeg& action,
                     absl::Time now) {
  cluster_->Send(action.worker, MakeCancel(action));
}

void RequestFlow::Do(RequestRecord& record,
                     const scheduling::DeliverToken& action, absl::Time now) {
  if (action.index == 0) {
    record.trace.first_token_sent_at = record.trace.sent_at;
  }
  if (record.spans != nullptr) record.spans->TokenCame(action.index, now);
  if (record.charge->prefill != kNoWorker) {
    cluster_->registry().EndedPrefill(record.charge->prefill,
                                      record.charge->prefill_tokens,
                                      record.charge->prefill_report);
    record.charge->prefill = kNoWorker;
  }
  // What a frame holds beyond the end of the answer is not part of it.
  if (record.stop_matcher.stopped()) return;
  if (record.answer.prompt_only) {
    StampEvent(record, now);
    return;
  }
  ++record.output_tokens;
  TellProduced(record, now);
  record.pending.add_token_ids(static_cast<uint32_t>(action.token));
  if (record.answer.logprobs) {
    SetLogprobs(action.token, action.logprob, action.top, *model_.tokenizer,
                record.pending.add_logprobs());
  }
  std::string text = record.detokenizer.Push(action.token);
  // Before min_tokens nothing ends an answer.
  if (action.index + 1 >= record.spec.stop.min_output_tokens) {
    text = record.stop_matcher.Push(text);
  }
  record.pending.mutable_text()->append(text);
  if (!record.touched) touched_.push_back(record.key);
  record.touched = true;
}

void RequestFlow::Do(RequestRecord& record, const scheduling::Requeue& action,
                     absl::Time now) {
  // Its blocks are others' now, until the worker says what is free.
  if (action.cause == scheduling::Requeue::Cause::kPreempted) {
    record.charge->decode_blocks = 0;
  }
  EndAttempt(record);
  metrics_->Retried(CauseName(action.cause));
  if (action.cause != scheduling::Requeue::Cause::kRefused) {
    ReportRetry(record, CauseName(action.cause), action.why);
  }
  record.placements.Ended(
      absl::StrCat(CauseName(action.cause), ": ", action.why));
  if (record.spans != nullptr) {
    record.spans->Failed(CauseName(action.cause), action.why, now);
  }
  record.waiting_since = now;
  record.retry_excluded_at = action.retry_excluded_at;
  record.place_at = action.place_at;
  SetTimer(action.retry_excluded_at, record.key);
  if (action.place_at > now) SetTimer(action.place_at, record.key);
  line_.Resume(InLine(record), now);
}

void RequestFlow::Do(RequestRecord& record,
                     const scheduling::AwaitOutcomes& action, absl::Time now) {
  record.settle_at = now + options_.settle_wait;
  SetTimer(record.settle_at, record.key);
}

void RequestFlow::Do(RequestRecord& record, const scheduling::Finish& action,
                     absl::Time now) {
  const bool sent = Flush(record, now);
  const v1::Timing timing =
      MakeTiming(record.trace, now, record.lifecycle.retries());
  absl::Status status = action.status;
  if (absl::IsInvalidArgument(status) && record.format_at_fault &&
      !record.answer.format.empty()) {
    status =
        InvalidField(record.answer.format,
                     absl::StrCat("cannot be kept to: ", status.message()));
  }
  scheduling::FinishReason reason = action.reason;
  if (status.ok()) {
    v1::GenerateResponse last;
    last.set_request_id(record.spec.id);
    // One after the other: the operands of + come in any order.
    std::string rest = record.stop_matcher.Push(record.detokenizer.Finish());
    rest += record.stop_matcher.Finish();
    last.set_text(std::move(rest));
    if (record.stop_matcher.stopped()) {
      reason = scheduling::FinishReason::kStop;
      last.set_stop(record.stop_matcher.stop());
    }
    if (record.answer.prompt_only) reason = scheduling::FinishReason::kLength;
    last.set_finish_reason(ToWire(reason));
    *last.mutable_usage() = MakeUsage(record);
    *last.mutable_timing() = timing;
    if (!sent || !record.stream->Send(std::move(last))) {
      status = absl::ResourceExhaustedError("the client reads too slowly");
    }
  }
  if (!status.ok() && action.status.ok()) {
    reason = scheduling::FinishReason::kError;
  }
  ReportEnd(record, AskedModel(record.answer.adapter), reason, status, timing,
            metrics_);
  if (status.ok()) TellEnded(record, now);
  Trace(record, {.reason = reason, .status = status}, timing, now);
  history_.Add(MakeEnded(record, reason, status, timing));
  if (record.admission != nullptr) {
    record.admission->CountTokens(
        static_cast<int64_t>(record.spec.prompt.size()) + record.output_tokens);
  }
  // Last, so that whoever sees the end finds it counted.
  record.stream->Finish(status, record.retry_after);
}

void RequestFlow::StampEvent(RequestRecord& record, absl::Time now) {
  RequestTrace& trace = record.trace;
  if (!trace.has_first_event()) {
    trace.first_event_at = now;
    metrics_->FirstEvent(now - trace.received_at);
    metrics_->PredictedTtft(trace.predicted_ttft, now - trace.sent_at);
  } else {
    const absl::Duration gap = now - trace.last_event_at;
    metrics_->LaterEvent(gap);
    trace.longest_gap = std::max(trace.longest_gap, gap);
  }
  trace.last_event_at = now;
  metrics_->OutputTokens(record.pending.token_ids_size());
}

bool RequestFlow::Flush(RequestRecord& record, absl::Time now) {
  record.touched = false;
  if (record.pending.token_ids().empty()) return true;
  StampEvent(record, now);
  record.pending.set_request_id(record.spec.id);
  v1::GenerateResponse response;
  response.Swap(&record.pending);
  return record.stream->Send(std::move(response));
}

void RequestFlow::SetTimer(absl::Time at, RequestKey key) {
  timers_.insert({at, key});
}

void RequestFlow::Remove(RequestRecord& record, absl::Time now) {
  record.lifecycle.CheckInvariants();
  EndAttempt(record);
  line_.Remove(record.key);
  for (absl::Time at : {record.deadline, record.settle_at,
                        record.retry_excluded_at, record.place_at}) {
    timers_.erase({at, record.key});
  }
  if (record.lane.has_value()) {
    line_.GiveBack(*record.lane,
                   record.admission == nullptr ? "" : record.admission->name(),
                   record.spec.stop.max_output_tokens - record.output_tokens);
  }
  records_.erase(record.key);
}

}  // namespace baton::router
