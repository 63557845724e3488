#include "router/request_spans.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/request_record.h"
#include "router/request_report.h"

namespace baton::router {
namespace {

using scheduling::FinishReason;
using tracing::Attribute;
using tracing::Span;
using Attempt = AttemptSpans::Attempt;

// What OpenTelemetry's conventions call the software that answers.
constexpr char kProvider[] = "baton";

// Longer errors are cut; whole characters are the encoder's affair.
constexpr size_t kMaxSpanErrorBytes = 512;

int64_t Whole(uint64_t value) { return static_cast<int64_t>(value); }

void AddText(const char* key, absl::string_view value, Span* span) {
  if (!value.empty()) span->attributes.push_back({key, std::string(value)});
}
void AddNumber(const char* key, int64_t value, Span* span) {
  span->attributes.push_back({key, value});
}
void AddReal(const char* key, double value, Span* span) {
  span->attributes.push_back({key, value});
}

absl::Duration Seconds(double seconds) {
  // Also takes NaN for nothing.
  return seconds > 0 ? absl::Seconds(seconds) : absl::ZeroDuration();
}

// What the client asked for.
void DescribeAsked(const scheduling::RequestSpec& spec,
                   const AnswerOptions& answer, const std::string& model,
                   Span* span) {
  AddText("gen_ai.operation.name", answer.chat ? "chat" : "text_completion",
          span);
  AddText("gen_ai.provider.name", kProvider, span);
  AddText("gen_ai.request.model", model, span);
  AddNumber("gen_ai.request.max_tokens", spec.stop.max_output_tokens, span);
  const scheduling::SamplingParams& sampling = spec.sampling;
  AddReal("gen_ai.request.temperature", sampling.temperature, span);
  AddReal("gen_ai.request.top_p", sampling.top_p, span);
  if (sampling.top_k > 0) AddReal("gen_ai.request.top_k", sampling.top_k, span);
  if (sampling.frequency_penalty != 0) {
    AddReal("gen_ai.request.frequency_penalty", sampling.frequency_penalty,
            span);
  }
  if (sampling.presence_penalty != 0) {
    AddReal("gen_ai.request.presence_penalty", sampling.presence_penalty, span);
  }
  AddNumber("gen_ai.usage.input_tokens", Whole(spec.prompt.size()), span);
  AddText("gen_ai.response.id", spec.id, span);
  AddText("baton.request.class", RequestClassName(answer.request_class), span);
  if (answer.priority != 0) {
    AddNumber("baton.request.priority", answer.priority, span);
  }
  if (answer.ttft_target > absl::ZeroDuration()) {
    AddReal("baton.target.ttft", absl::ToDoubleSeconds(answer.ttft_target),
            span);
  }
  if (answer.itl_target > absl::ZeroDuration()) {
    AddReal("baton.target.itl", absl::ToDoubleSeconds(answer.itl_target), span);
  }
}

// A client that leaves is no failure.
void DescribeStatus(const absl::Status& status, Span* span) {
  if (status.ok()) return;
  AddText("error.type", absl::StatusCodeToString(status.code()), span);
  if (absl::IsCancelled(status)) return;
  span->failed = true;
  span->error = std::string(status.message().substr(0, kMaxSpanErrorBytes));
}

// Puts together the spans of one request.
class Builder final {
 public:
  Builder(const TraceContext& request, const RequestEnd& end)
      : request_(request), offset_(end.wall_now - end.now) {}

  // A part of the request, monotonic times. `part` and `number` give it its id.
  Span* Add(const char* name, absl::string_view part, uint64_t number,
            absl::Time start, absl::Time end) {
    Span span;
    span.context = PartSpan(request_, part, number);
    span.parent = request_.span;
    span.name = name;
    span.start = Wall(start);
    span.end = Wall(std::max(start, end));
    spans_.push_back(std::move(span));
    return &spans_.back();
  }

  // The request itself.
  Span* AddRequest(const std::string& name, uint64_t parent, absl::Time start,
                   absl::Time end) {
    Span span;
    span.context = request_;
    span.parent = parent;
    span.name = name;
    span.kind = Span::Kind::kServer;
    span.start = Wall(start);
    span.end = Wall(end);
    spans_.push_back(std::move(span));
    return &spans_.back();
  }

  absl::Time Wall(absl::Time monotonic) const { return monotonic + offset_; }
  std::vector<Span> Take() { return std::move(spans_); }

 private:
  const TraceContext request_;
  const absl::Duration offset_;
  std::vector<Span> spans_;
};

void AddRouteQueue(const Attempt& attempt, Builder* builder) {
  const auto number = static_cast<uint64_t>(attempt.id);
  Span* const span = builder->Add("route queue", "route", number,
                                  attempt.waiting_since, attempt.sent_at);
  AddNumber("baton.attempt", Whole(number), span);
  AddText("baton.placement.decision", attempt.decision, span);
  AddText("baton.placement.reason", attempt.reason, span);
  AddText("baton.placement.waited_for", attempt.waited_for, span);
}

void AddFailed(const Attempt& attempt, absl::Time failed_at, Builder* builder) {
  const auto number = static_cast<uint64_t>(attempt.id);
  Span* const span = builder->Add("failed attempt", "attempt", number,
                                  attempt.sent_at, failed_at);
  AddNumber("baton.attempt", Whole(number), span);
  AddText("baton.prefill.worker", attempt.prefill_worker, span);
  AddText("baton.decode.worker", attempt.decode_worker, span);
  AddText("error.type", attempt.cause, span);
  span->failed = true;
  span->error = attempt.why;
}

// The stages from the dispatch to the attempt's first token. Returns when the
// prompt was computed. The workers measure with their own clocks: what they
// report is cut to what there was, as in MakeTiming.
absl::Time AddPrefill(const Attempt& attempt, absl::Time until,
                      Builder* builder) {
  const bool local = attempt.prefill_worker.empty();
  const std::string& worker =
      local ? attempt.decode_worker : attempt.prefill_worker;
  const std::optional<v1::Outcome>& outcome =
      local ? attempt.decode : attempt.prefill;
  absl::Time at = attempt.sent_at;
  if (outcome.has_value()) {
    const auto number = static_cast<uint64_t>(attempt.id);
    const auto stage = [&](const char* name, const char* part, double seconds) {
      const absl::Time end = std::min(until, at + Seconds(seconds));
      Span* const span = builder->Add(name, part, number, at, end);
      AddNumber("baton.attempt", Whole(number), span);
      AddText("baton.prefill.worker", worker, span);
      at = end;
      return span;
    };
    stage("prefill queue", "prefill queue", outcome->queue_seconds());
    // Where the decode worker computes it, the worker's own span is the decode.
    Span* const span = stage("prefill", local ? "local prefill" : "prefill",
                             outcome->prefill_seconds());
    AddNumber("baton.prefill.cached_tokens", outcome->cached_tokens(), span);
  }
  return at;
}

// The hand-off. Returns when the KV was there.
absl::Time AddTransfer(const Attempt& attempt, absl::Time prefilled_at,
                       absl::Time until, Builder* builder) {
  if (!attempt.prefill.has_value() ||
      attempt.prefill->kv_transfer_bytes() == 0) {
    return prefilled_at;
  }
  const v1::Outcome& outcome = *attempt.prefill;
  const absl::Time end = std::min(
      until, prefilled_at + Seconds(outcome.kv_transfer_exposed_seconds()));
  const absl::Time start =
      std::max(attempt.sent_at, end - Seconds(outcome.kv_transfer_seconds()));
  const auto number = static_cast<uint64_t>(attempt.id);
  Span* const span =
      builder->Add("kv transfer", "transfer", number, start, end);
  AddNumber("baton.attempt", Whole(number), span);
  AddText("baton.prefill.worker", attempt.prefill_worker, span);
  AddText("baton.decode.worker", attempt.decode_worker, span);
  AddNumber("baton.kv_transfer.bytes", Whole(outcome.kv_transfer_bytes()),
            span);
  AddReal("baton.kv_transfer.exposed", outcome.kv_transfer_exposed_seconds(),
          span);
  return end;
}

void AddDecode(const Attempt& attempt, absl::Time start, absl::Time end,
               Builder* builder) {
  const auto number = static_cast<uint64_t>(attempt.id);
  Span* const span = builder->Add("decode", "decode", number, start, end);
  AddNumber("baton.attempt", Whole(number), span);
  AddText("baton.decode.worker", attempt.decode_worker, span);
  if (!attempt.decode.has_value()) return;
  AddReal("baton.decode.queue", attempt.decode->decode_queue_seconds(), span);
  AddReal("baton.decode.first_step", attempt.decode->first_step_seconds(),
          span);
}

// An attempt that gave the rest of the answer, or was under way at the end.
void AddAttempt(const Attempt& attempt, const RequestRecord& record,
                const RequestEnd& end, Builder* builder) {
  const RequestTrace& trace = record.trace;
  const std::optional<absl::Time> first =
      attempt.gave_first_token && trace.has_first_event()
          ? std::optional(trace.first_event_at)
          : attempt.first_token_at;
  const absl::Time prefilled_at =
      AddPrefill(attempt, first.value_or(end.now), builder);
  if (first.has_value()) {
    const auto number = static_cast<uint64_t>(attempt.id);
    Span* const span = builder->Add("first token return", "return", number,
                                    prefilled_at, *first);
    AddNumber("baton.attempt", Whole(number), span);
  }
  const absl::Time landed_at =
      AddTransfer(attempt, prefilled_at, end.now, builder);
  // A prefill worker's token alone may have been the whole answer.
  const bool decoded = attempt.decode.has_value() || record.output_tokens > 1;
  if (!first.has_value() || !decoded) return;
  AddDecode(attempt, std::min(landed_at, trace.last_event_at),
            trace.last_event_at, builder);
}

void AddRetryEvent(const Attempt& attempt, const Builder& builder,
                   Span* request) {
  request->events.push_back(
      {.name = "retry",
       .at = builder.Wall(*attempt.failed_at),
       .attributes = {
           {"baton.attempt", Whole(static_cast<uint64_t>(attempt.id))},
           {"baton.retry.cause", attempt.cause},
           {"baton.retry.why", attempt.why}}});
}

// How it went.
void DescribeOutcome(const RequestRecord& record, const RequestEnd& end,
                     const Builder& builder, Span* span) {
  const v1::Usage usage = MakeUsage(record);
  AddText("gen_ai.response.model", end.model, span);
  AddNumber("gen_ai.usage.output_tokens", usage.output_tokens(), span);
  AddNumber("gen_ai.usage.cache_read.input_tokens",
            usage.cached_prompt_tokens(), span);
  span->attributes.push_back(
      {"gen_ai.response.finish_reasons",
       std::vector<std::string>{FinishReasonName(end.reason)}});
  AddNumber("baton.retries", end.timing.retries(), span);
  AddText("baton.prefill.worker", record.trace.prefill_worker, span);
  AddText("baton.decode.worker", record.trace.decode_worker, span);
  if (record.admission != nullptr) {
    AddText("baton.tenant", record.admission->name(), span);
  }
  if (record.trace.has_first_event()) {
    AddReal("gen_ai.response.time_to_first_chunk", end.timing.ttft_seconds(),
            span);
    span->events.push_back({.name = "first token",
                            .at = builder.Wall(record.trace.first_event_at)});
  }
  DescribeStatus(end.status, span);
}

std::string NameOf(const AnswerOptions& answer, const std::string& model) {
  return absl::StrCat(answer.chat ? "chat " : "text_completion ", model);
}

}  // namespace

void AttemptSpans::Begin(Attempt attempt) {
  if (attempts_.size() == kMaxAttempts) attempts_.pop_back();
  attempts_.push_back(std::move(attempt));
}

void AttemptSpans::TokenCame(int index, absl::Time now) {
  if (attempts_.empty()) return;
  Attempt& attempt = attempts_.back();
  if (attempt.first_token_at.has_value()) return;
  attempt.first_token_at = now;
  attempt.gave_first_token = index == 0;
}

void AttemptSpans::AddOutcome(scheduling::AttemptId id, bool by_decode,
                              const v1::Outcome& outcome) {
  if (attempts_.empty() || attempts_.back().id != id) return;
  (by_decode ? attempts_.back().decode : attempts_.back().prefill) = outcome;
}

void AttemptSpans::Failed(absl::string_view cause, absl::string_view why,
                          absl::Time now) {
  if (attempts_.empty()) return;
  Attempt& attempt = attempts_.back();
  attempt.failed_at = now;
  attempt.cause = std::string(cause);
  attempt.why = std::string(why.substr(0, kMaxSpanErrorBytes));
}

std::optional<TraceContext> RecordedTrace(const scheduling::RequestSpec& spec) {
  const auto context = ParseTraceparent(spec.traceparent);
  if (!context.has_value() || !context->sampled) return std::nullopt;
  return context;
}

std::vector<tracing::Span> MakeSpans(const RequestRecord& record,
                                     const RequestEnd& end) {
  const std::optional<TraceContext> trace = RecordedTrace(record.spec);
  if (!trace.has_value()) return {};
  Builder builder(*trace, end);
  Span request = *builder.AddRequest(NameOf(record.answer, end.model),
                                     record.answer.parent_span,
                                     record.trace.received_at, end.now);
  DescribeAsked(record.spec, record.answer, end.model, &request);
  DescribeOutcome(record, end, builder, &request);
  for (const Attempt& attempt : record.spans->attempts()) {
    AddRouteQueue(attempt, &builder);
    if (attempt.failed_at.has_value()) {
      AddFailed(attempt, *attempt.failed_at, &builder);
      AddRetryEvent(attempt, builder, &request);
    } else {
      AddAttempt(attempt, record, end, &builder);
    }
  }
  if (!record.attempt.has_value()) {  // it ended in the queue
    builder.Add("route queue", "route", 0, record.waiting_since, end.now);
  }
  std::vector<Span> spans = builder.Take();
  spans.front() = std::move(request);
  return spans;
}

std::vector<tracing::Span> MakeRejectionSpans(const IncomingRequest& incoming,
                                              absl::string_view why,
                                              const RequestEnd& end) {
  const std::optional<TraceContext> trace = RecordedTrace(incoming.spec);
  if (!trace.has_value()) return {};
  Builder builder(*trace, end);
  Span* const span = builder.AddRequest(NameOf(incoming.answer, end.model),
                                        incoming.answer.parent_span,
                                        incoming.received_at, end.now);
  DescribeAsked(incoming.spec, incoming.answer, end.model, span);
  AddText("baton.rejected", why, span);
  DescribeStatus(end.status, span);
  return builder.Take();
}

}  // namespace baton::router
