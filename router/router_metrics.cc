#include "router/router_metrics.h"

#include <algorithm>
#include <initializer_list>

namespace baton::router {
namespace {

using scheduling::FinishReason;
using scheduling::Lane;
using scheduling::PlacementVerdict;

// The first four add up to TTFT; the others are what the hand-off adds before
// the second token.
constexpr const char* kStages[] = {
    "route_queue",         "prefill_queue", "prefill",   "first_token_return",
    "kv_transfer_exposed", "decode_queue",  "first_step"};

// Why requests are rejected, and why attempts are made anew.
constexpr const char* kRejections[] = {
    "invalid", "unauthenticated", "key_limit",  "queue_full",
    "late",    "intake_full",     "inbox_full", "draining"};
constexpr const char* kRecomputations[] = {"refused", "failed", "worker_lost",
                                           "preempted", "drained"};

constexpr char kConnectedHelp[] =
    "Whether the control stream to the worker is up.";
constexpr char kUsableHelp[] =
    "Whether the worker gets requests: it is connected, fits, makes progress, "
    "does not fail again and again, is not draining, does not stand by.";
constexpr char kStandbyHelp[] =
    "Whether it is the side of a dual worker that stands by, while the worker "
    "has the other role.";

constexpr RequestClass kClasses[] = {RequestClass::kInteractive,
                                     RequestClass::kBatch};

// With the targets as edges.
metrics::Buckets WithEdges(metrics::Buckets edges,
                           std::initializer_list<absl::Duration> targets) {
  for (const absl::Duration target : targets) {
    if (target > absl::ZeroDuration()) {
      edges.push_back(absl::ToDoubleSeconds(target));
    }
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

metrics::Buckets TtftEdges(const ClassTargets& targets) {
  return WithEdges(metrics::TtftBuckets(),
                   {targets.interactive.ttft, targets.batch.ttft});
}

metrics::Buckets InterTokenEdges(const ClassTargets& targets) {
  return WithEdges(metrics::InterTokenBuckets(),
                   {targets.interactive.itl, targets.batch.itl});
}

metrics::Labels WorkerLabels(scheduling::WorkerRole role,
                             const std::string& address) {
  return {{"peer", address}, {"peer_role", WorkerRoleName(role)}};
}

prometheus::Histogram* DecisionHistogram(metrics::Metrics* metrics,
                                         const char* phase) {
  return metrics->Histogram(
      "baton_router_decision_seconds",
      "Time of one placement decision: who has the prefix, what the policy "
      "says, and both together.",
      {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2},
      {{"phase", phase}});
}

// How far what was measured is from what placement expected.
prometheus::Histogram* ErrorHistogram(metrics::Metrics* metrics,
                                      const char* name, const char* help) {
  return metrics->Histogram(name, help,
                            {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10});
}

// Both or none: a policy may expect nothing.
void ObservePrediction(absl::Duration expected, absl::Duration measured,
                       prometheus::Histogram* prediction,
                       prometheus::Histogram* error) {
  if (expected <= absl::ZeroDuration() || measured <= absl::ZeroDuration()) {
    return;
  }
  prediction->Observe(absl::ToDoubleSeconds(expected));
  error->Observe(
      absl::FDivDuration(absl::AbsDuration(measured - expected), measured));
}

}  // namespace

RouterMetrics::RouterMetrics(metrics::Metrics* metrics,
                             const ClassTargets& targets)
    : metrics_(metrics),
      ttft_(metrics->Histogram(
          "baton_time_to_first_token_seconds",
          "Request read -> first token handed to the client's stream.",
          TtftEdges(targets))),
      predicted_ttft_(metrics->Histogram(
          "baton_router_predicted_ttft_seconds",
          "What placement expected of the time from there to the first token.",
          TtftEdges(targets))),
      predicted_tpot_(metrics->Histogram(
          "baton_router_predicted_tpot_seconds",
          "What placement expected of the time per output token after the "
          "first.",
          InterTokenEdges(targets))),
      ttft_error_(ErrorHistogram(
          metrics, "baton_placement_ttft_error_ratio",
          "How far the time to the first token was from what placement "
          "expected: |measured - expected| / measured.")),
      tpot_error_(ErrorHistogram(
          metrics, "baton_placement_tpot_error_ratio",
          "How far the time per output token was from what placement "
          "expected: |measured - expected| / measured.")),
      inter_token_(metrics->Histogram(
          "baton_inter_token_latency_seconds",
          "Time between two consecutive token events of one request.",
          InterTokenEdges(targets))),
      time_per_output_token_(metrics->Histogram(
          "baton_request_time_per_output_token_seconds",
          "Per request: (last - first token event) / (output tokens - 1).",
          InterTokenEdges(targets))),
      e2e_(metrics->Histogram("baton_e2e_request_latency_seconds",
                              "Request read -> last response.",
                              metrics::RequestBuckets())),
      queue_time_(metrics->Histogram(
          "baton_request_queue_time_seconds",
          "Per request: waiting at the router and at the prefill worker.",
          metrics::RequestBuckets())),
      prefill_time_(metrics->Histogram("baton_request_prefill_time_seconds",
                                       "Per request: computing its prompt.",
                                       metrics::RequestBuckets())),
      decode_time_(metrics->Histogram("baton_request_decode_time_seconds",
                                      "Per request: first to last token event.",
                                      metrics::RequestBuckets())),
      inference_time_(metrics->Histogram(
          "baton_request_inference_time_seconds",
          "Per request: from where it no longer waits to the last token event.",
          metrics::RequestBuckets())),
      request_prompt_tokens_(metrics->Histogram(
          "baton_request_prompt_tokens",
          "Prompt tokens of one admitted request.", metrics::TokenBuckets())),
      request_generation_tokens_(metrics->Histogram(
          "baton_request_generation_tokens",
          "Output tokens of one request that ended.", metrics::TokenBuckets())),
      kv_transfer_exposed_(metrics->Histogram(
          "baton_kv_transfer_exposed_seconds",
          "Transfer time that was left when prefill was done.",
          metrics::TransferBuckets())),
      decision_prefix_(DecisionHistogram(metrics, "prefix")),
      decision_policy_(DecisionHistogram(metrics, "policy")),
      decision_all_(DecisionHistogram(metrics, "all")),
      running_(metrics->Gauge("baton_num_requests_running",
                              "Requests placed on workers.")),
      waiting_(metrics->Gauge("baton_num_requests_waiting",
                              "Requests waiting for a placement.")),
      evicted_(metrics->Counter(
          "baton_requests_evicted_total",
          "Waiting requests that were refused after all, to make room for one "
          "that goes before them.")),
      late_(metrics->Counter(
          "baton_requests_late_total",
          "Interactive requests whose first token could not come in time any "
          "more before they had a worker.")),
      pairs_(metrics->Gauge("baton_worker_pairs",
                            "Pairs of a prefill and a decode worker that can "
                            "hand over KV.")),
      backends_(metrics->Gauge(
          "baton_worker_backends",
          "Backends of the workers that are there: with more than one, answers "
          "are not the same to the bit wherever they are given.")),
      prompt_tokens_(metrics->Counter("baton_prompt_tokens_total",
                                      "Prompt tokens of admitted requests.")),
      generation_tokens_(metrics->Counter("baton_generation_tokens_total",
                                          "Output tokens handed to clients.")),
      reasoning_tokens_(metrics->Counter(
          "baton_reasoning_tokens_total",
          "Output tokens with which models thought before they answered, "
          "where the API told that from the answer.")),
      prefix_(metrics) {
  for (const char* stage : kStages) stages_[stage] = Stage(stage);
  for (const Lane lane :
       {Lane::kResumed, Lane::kOnTime, Lane::kLate, Lane::kBatch}) {
    waiting_in_[static_cast<size_t>(lane)] =
        metrics_->Gauge("baton_requests_waiting_by_lane",
                        "Requests waiting for a placement, by lane (resumed, "
                        "on_time, late, batch)",
                        {{"lane", LaneName(lane)}});
  }
  MakeCounters();
  MakeTargets(targets);
}

void RouterMetrics::MakeCounters() {
  for (FinishReason reason : {FinishReason::kStop, FinishReason::kLength,
                              FinishReason::kCancelled, FinishReason::kError}) {
    metrics_->Counter("baton_request_success_total", "Requests that ended.",
                      {{"finished_reason", FinishReasonName(reason)}});
  }
  AdmissionCounter("accepted", "ok");
  for (const char* reason : kRejections) AdmissionCounter("rejected", reason);
  for (const char* reason : kRecomputations) RecomputeCounter(reason);
  for (const char* format :
       {"json_object", "json_schema", "regex", "choice", "tool_choice"}) {
    FormatCounter(format);
  }
  for (const char* result : {"found", "none", "failed"}) LookedUp(result, 0);
  for (const auto role :
       {scheduling::WorkerRole::kPrefill, scheduling::WorkerRole::kDecode}) {
    FalseLossCounter(role);
    RoleAskedCounter(role);
  }
  for (const RequestClass request_class : kClasses) {
    for (const bool met : {true, false}) {
      TargetsCounter(request_class, met);
      TargetCounter(request_class, "ttft", met);
      TargetCounter(request_class, "itl", met);
    }
  }
}

void RouterMetrics::MakeTargets(const ClassTargets& targets) {
  const auto set = [this](RequestClass request_class, const char* target,
                          absl::Duration value) {
    metrics_
        ->Gauge(
            "baton_latency_target_seconds",
            "The operator's targets, for requests that name none; 0: none.",
            {{"class", RequestClassName(request_class)}, {"target", target}})
        ->Set(absl::ToDoubleSeconds(value));
  };
  set(RequestClass::kInteractive, "ttft", targets.interactive.ttft);
  set(RequestClass::kInteractive, "itl", targets.interactive.itl);
  set(RequestClass::kBatch, "ttft", targets.batch.ttft);
  set(RequestClass::kBatch, "itl", targets.batch.itl);
}

prometheus::Counter* RouterMetrics::AdmissionCounter(
    const std::string& outcome, const std::string& reason) {
  return metrics_->Counter("baton_admission_total",
                           "Requests, by what became of them.",
                           {{"outcome", outcome}, {"reason", reason}});
}

prometheus::Counter* RouterMetrics::RecomputeCounter(
    const std::string& reason) {
  return metrics_->Counter("baton_prefill_recompute_total",
                           "Attempts that were given up and placed again.",
                           {{"reason", reason}});
}

prometheus::Counter* RouterMetrics::TargetsCounter(RequestClass request_class,
                                                   bool met) {
  return metrics_->Counter(
      "baton_request_targets_total",
      "Requests with latency targets that ended, by whether they finished and "
      "met them all.",
      {{"class", RequestClassName(request_class)},
       {"met", met ? "yes" : "no"}});
}

prometheus::Counter* RouterMetrics::TargetCounter(RequestClass request_class,
                                                  const char* target,
                                                  bool met) {
  return metrics_->Counter(
      "baton_request_latency_target_total",
      "Requests with this latency target that ended, by whether they finished "
      "and met it.",
      {{"class", RequestClassName(request_class)},
       {"target", target},
       {"met", met ? "yes" : "no"}});
}

prometheus::Histogram* RouterMetrics::Stage(const char* stage) {
  return metrics_->Histogram(
      "baton_ttft_stage_seconds",
      "Where the time to the first token went (route_queue, prefill_queue, "
      "prefill and first_token_return add up to it), and what the hand-off "
      "added before the second token.",
      metrics::TtftBuckets(), {{"stage", stage}});
}

void RouterMetrics::Admitted(int64_t prompt_tokens) {
  AdmissionCounter("accepted", "ok")->Increment();
  prompt_tokens_->Increment(static_cast<double>(prompt_tokens));
  request_prompt_tokens_->Observe(static_cast<double>(prompt_tokens));
}

void RouterMetrics::Rejected(const std::string& reason) {
  AdmissionCounter("rejected", reason)->Increment();
}

void RouterMetrics::Formatted(const char* format) {
  FormatCounter(format)->Increment();
}

void RouterMetrics::Adapted(const std::string& adapter) {
  metrics_
      ->Counter("baton_adapter_requests_total",
                "Requests for a LoRA adapter of the model, by its name.",
                {{"adapter", adapter}})
      ->Increment();
}

void RouterMetrics::Called(const char* api) {
  metrics_->Counter("baton_api_calls_total", "Calls, by API.", {{"api", api}})
      ->Increment();
}

void RouterMetrics::Thought(int64_t tokens) {
  reasoning_tokens_->Increment(static_cast<double>(tokens));
}

prometheus::Counter* RouterMetrics::FormatCounter(const char* format) {
  return metrics_->Counter(
      "baton_response_format_requests_total",
      "Requests that say what their answers are to be, by how.",
      {{"format", format}});
}

void RouterMetrics::Placed(const PlacementVerdict& verdict,
                           const DecisionTime& time) {
  decision_prefix_->Observe(absl::ToDoubleSeconds(time.prefix));
  decision_policy_->Observe(absl::ToDoubleSeconds(time.policy));
  decision_all_->Observe(absl::ToDoubleSeconds(time.prefix + time.policy));
  metrics_
      ->Counter("baton_disagg_decision_total", "Placements, by kind.",
                {{"decision", scheduling::PlacementKindName(verdict.kind)},
                 {"reason", PlacementReasonName(verdict.reason)}})
      ->Increment();
}

void RouterMetrics::Retried(const std::string& reason) {
  RecomputeCounter(reason)->Increment();
}

void RouterMetrics::FirstEvent(absl::Duration ttft) {
  ttft_->Observe(absl::ToDoubleSeconds(ttft));
}

void RouterMetrics::PredictedTtft(absl::Duration expected,
                                  absl::Duration measured) {
  ObservePrediction(expected, measured, predicted_ttft_, ttft_error_);
}

void RouterMetrics::PredictedTpot(absl::Duration expected,
                                  absl::Duration measured) {
  ObservePrediction(expected, measured, predicted_tpot_, tpot_error_);
}

void RouterMetrics::LaterEvent(absl::Duration gap) {
  inter_token_->Observe(absl::ToDoubleSeconds(gap));
}

void RouterMetrics::OutputTokens(int64_t count) {
  generation_tokens_->Increment(static_cast<double>(count));
}

void RouterMetrics::Finished(FinishReason reason, const v1::Timing& timing,
                             int64_t output_tokens,
                             absl::Duration first_to_last_event) {
  metrics_
      ->Counter("baton_request_success_total", "Requests that ended.",
                {{"finished_reason", FinishReasonName(reason)}})
      ->Increment();
  e2e_->Observe(timing.e2e_seconds());
  if (output_tokens > 1) {
    time_per_output_token_->Observe(absl::ToDoubleSeconds(first_to_last_event) /
                                    static_cast<double>(output_tokens - 1));
  }
  request_generation_tokens_->Observe(static_cast<double>(output_tokens));
  if (output_tokens == 0) return;
  const double queued =
      timing.route_queue_seconds() + timing.prefill_queue_seconds();
  const double decoding = absl::ToDoubleSeconds(first_to_last_event);
  queue_time_->Observe(queued);
  prefill_time_->Observe(timing.prefill_seconds());
  decode_time_->Observe(decoding);
  inference_time_->Observe(timing.ttft_seconds() - queued + decoding);
  stages_["route_queue"]->Observe(timing.route_queue_seconds());
  stages_["prefill_queue"]->Observe(timing.prefill_queue_seconds());
  stages_["prefill"]->Observe(timing.prefill_seconds());
  stages_["first_token_return"]->Observe(timing.first_token_return_seconds());
  if (timing.kv_transfer_bytes() == 0) return;
  stages_["kv_transfer_exposed"]->Observe(timing.kv_transfer_exposed_seconds());
  stages_["decode_queue"]->Observe(timing.decode_queue_seconds());
  stages_["first_step"]->Observe(timing.first_step_seconds());
  kv_transfer_exposed_->Observe(timing.kv_transfer_exposed_seconds());
}

void RouterMetrics::TargetsJudged(RequestClass request_class,
                                  const TargetVerdict& verdict) {
  TargetsCounter(request_class,
                 verdict.ttft.value_or(true) && verdict.itl.value_or(true))
      ->Increment();
  if (verdict.ttft.has_value()) {
    TargetCounter(request_class, "ttft", *verdict.ttft)->Increment();
  }
  if (verdict.itl.has_value()) {
    TargetCounter(request_class, "itl", *verdict.itl)->Increment();
  }
}

void RouterMetrics::SetMaxWaiting(int64_t requests) {
  metrics_
      ->Gauge("baton_max_requests_waiting",
              "How many requests may wait for a placement.")
      ->Set(static_cast<double>(requests));
}

void RouterMetrics::SetRequests(int64_t running, int64_t waiting) {
  running_->Set(static_cast<double>(running));
  waiting_->Set(static_cast<double>(waiting));
}

void RouterMetrics::SetWaiting(Lane lane, int64_t requests) {
  waiting_in_[static_cast<size_t>(lane)]->Set(static_cast<double>(requests));
}

void RouterMetrics::Evicted() { evicted_->Increment(); }

void RouterMetrics::Late(int64_t requests) {
  late_->Increment(static_cast<double>(requests));
}

void RouterMetrics::SetPairs(int pairs) { pairs_->Set(pairs); }

void RouterMetrics::SetBackends(int backends) { backends_->Set(backends); }

void RouterMetrics::SetWorker(scheduling::WorkerRole role,
                              const std::string& address,
                              const WorkerStanding& standing) {
  const metrics::Labels labels = WorkerLabels(role, address);
  metrics_->Gauge("baton_worker_connected", kConnectedHelp, labels)
      ->Set(standing.connected ? 1 : 0);
  metrics_->Gauge("baton_worker_usable", kUsableHelp, labels)
      ->Set(standing.usable ? 1 : 0);
  metrics_->Gauge("baton_worker_standby", kStandbyHelp, labels)
      ->Set(standing.standby ? 1 : 0);
}

void RouterMetrics::ForgetWorker(scheduling::WorkerRole role,
                                 const std::string& address) {
  const metrics::Labels labels = WorkerLabels(role, address);
  metrics_->RemoveGauge("baton_worker_connected", kConnectedHelp, labels);
  metrics_->RemoveGauge("baton_worker_usable", kUsableHelp, labels);
  metrics_->RemoveGauge("baton_worker_standby", kStandbyHelp, labels);
}

prometheus::Counter* RouterMetrics::FalseLossCounter(
    scheduling::WorkerRole role) {
  return metrics_->Counter(
      "baton_worker_false_losses_total",
      "Workers that were silent, were taken for lost and came back in the same "
      "life.",
      {{"peer_role", WorkerRoleName(role)}});
}

prometheus::Counter* RouterMetrics::RoleAskedCounter(
    scheduling::WorkerRole role) {
  return metrics_->Counter("baton_router_role_requests_total",
                           "Dual workers that were asked to take this role.",
                           {{"to", WorkerRoleName(role)}});
}

void RouterMetrics::RoleAsked(scheduling::WorkerRole role) {
  RoleAskedCounter(role)->Increment();
}

void RouterMetrics::FalseLoss(scheduling::WorkerRole role) {
  FalseLossCounter(role)->Increment();
}

void RouterMetrics::LookedUp(const char* result, int times) {
  metrics_
      ->Counter("baton_router_discovery_lookups_total",
                "Look-ups of names of workers, by what came of them.",
                {{"result", result}})
      ->Increment(times);
}

void RouterMetrics::SetDiscovered(scheduling::WorkerRole role, int workers) {
  metrics_
      ->Gauge("baton_router_discovered_workers",
              "Workers that are there because a name in DNS has them.",
              {{"peer_role", WorkerRoleName(role)}})
      ->Set(workers);
}

}  // namespace baton::router
