// What the router reports on /metrics (docs/metrics.md). Updates may come from
// any thread.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "common/metrics/metrics.h"
#include "router/answer_options.h"
#include "router/prefix_metrics.h"
#include "scheduling/placement.h"
#include "scheduling/request.h"
#include "scheduling/waiting_line.h"

namespace baton::router {

// Which of a request's targets it met; empty: it had none of that kind.
struct TargetVerdict {
  std::optional<bool> ttft;
  std::optional<bool> itl;
};

// Of one placement decision.
struct DecisionTime {
  // Finding who has what of the prompt in the prefix index.
  absl::Duration prefix;
  // The policy.
  absl::Duration policy;
};

class RouterMetrics final {
 public:
  // `metrics` outlives this object. The operator's `targets` become edges of
  // the buckets of latencies, so that shares of them are exact.
  explicit RouterMetrics(metrics::Metrics* metrics,
                         const ClassTargets& targets = {});

  // A request came in. `reason` is "ok" for accepted ones; otherwise why it was
  // rejected: "invalid", "queue_full", "late", "intake_full", "inbox_full",
  // "draining".
  void Admitted(int64_t prompt_tokens);
  void Rejected(const std::string& reason);
  // A request that says what its answer is to be: "json_object", "json_schema",
  // "regex" or "choice".
  void Formatted(const char* format);
  // A request for an adapter, one that workers have.
  void Adapted(const std::string& adapter);
  // A call that can be answered: "grpc", "completions", "chat", "responses" or
  // "messages".
  void Called(const char* api);
  // Output tokens of one answer with which the model thought.
  void Thought(int64_t tokens);

  void Placed(const scheduling::PlacementVerdict& verdict,
              const DecisionTime& time);
  // An attempt ended without an answer and its prompt is prefilled again.
  // `reason`: "refused", "worker_lost", "failed", "preempted", "drained".
  void Retried(const std::string& reason);

  // A token event went to the client. `gap` is the time since the one before.
  void FirstEvent(absl::Duration ttft);
  // What placement expected of the time from there to the first token, and what
  // that was; no-op for zero.
  void PredictedTtft(absl::Duration expected, absl::Duration measured);
  // Likewise of the time per output token after the first.
  void PredictedTpot(absl::Duration expected, absl::Duration measured);
  void LaterEvent(absl::Duration gap);
  void OutputTokens(int64_t count);

  void Finished(scheduling::FinishReason reason, const v1::Timing& timing,
                int64_t output_tokens, absl::Duration first_to_last_event);

  // A request that had targets has ended.
  void TargetsJudged(RequestClass request_class, const TargetVerdict& verdict);
  void SetRequests(int64_t running, int64_t waiting);
  // How many may wait.
  void SetMaxWaiting(int64_t requests);
  void SetWaiting(scheduling::Lane lane, int64_t requests);
  // A waiting request had to make room for another.
  void Evicted();
  // The first tokens of so many more cannot come in time.
  void Late(int64_t requests);
  void SetPairs(int pairs);
  // Kinds of workers whose answers are not the same to the bit.
  void SetBackends(int backends);
  // A worker was taken for lost and came back in the same life.
  void FalseLoss(scheduling::WorkerRole role);
  // A dual worker was asked to take this role.
  void RoleAsked(scheduling::WorkerRole role);
  // Of the prefix index.
  PrefixMetrics* prefix() { return &prefix_; }
  // How a worker stands; `standby`: a side of a dual one, whose role is the
  // other.
  struct WorkerStanding {
    bool connected = false;
    bool usable = false;
    bool standby = false;
  };
  void SetWorker(scheduling::WorkerRole role, const std::string& address,
                 const WorkerStanding& standing);
  // The address is not a worker's any more.
  void ForgetWorker(scheduling::WorkerRole role, const std::string& address);
  // Workers were looked up: "found", "none" or "failed".
  void LookedUp(const char* result, int times = 1);
  // How many are there because a name has them.
  void SetDiscovered(scheduling::WorkerRole role, int workers);

 private:
  prometheus::Histogram* Stage(const char* stage);
  // What may never happen is 0 from the start, so that the first time is an
  // increase.
  void MakeCounters();
  void MakeTargets(const ClassTargets& targets);
  prometheus::Counter* AdmissionCounter(const std::string& outcome,
                                        const std::string& reason);
  prometheus::Counter* FormatCounter(const char* format);
  prometheus::Counter* RecomputeCounter(const std::string& reason);
  prometheus::Counter* FalseLossCounter(scheduling::WorkerRole role);
  prometheus::Counter* RoleAskedCounter(scheduling::WorkerRole role);
  prometheus::Counter* TargetsCounter(RequestClass request_class, bool met);
  prometheus::Counter* TargetCounter(RequestClass request_class,
                                     const char* target, bool met);

  metrics::Metrics* const metrics_;
  prometheus::Histogram* const ttft_;
  prometheus::Histogram* const predicted_ttft_;
  prometheus::Histogram* const predicted_tpot_;
  prometheus::Histogram* const ttft_error_;
  prometheus::Histogram* const tpot_error_;
  prometheus::Histogram* const inter_token_;
  prometheus::Histogram* const time_per_output_token_;
  prometheus::Histogram* const e2e_;
  prometheus::Histogram* const queue_time_;
  prometheus::Histogram* const prefill_time_;
  prometheus::Histogram* const decode_time_;
  prometheus::Histogram* const inference_time_;
  prometheus::Histogram* const request_prompt_tokens_;
  prometheus::Histogram* const request_generation_tokens_;
  prometheus::Histogram* const kv_transfer_exposed_;
  prometheus::Histogram* const decision_prefix_;
  prometheus::Histogram* const decision_policy_;
  prometheus::Histogram* const decision_all_;
  prometheus::Gauge* const running_;
  prometheus::Gauge* const waiting_;
  prometheus::Gauge* waiting_in_[scheduling::kLanes];
  prometheus::Counter* const evicted_;
  prometheus::Counter* const late_;
  prometheus::Gauge* const pairs_;
  prometheus::Gauge* const backends_;
  prometheus::Counter* const prompt_tokens_;
  prometheus::Counter* const generation_tokens_;
  prometheus::Counter* const reasoning_tokens_;
  std::map<std::string, prometheus::Histogram*> stages_;
  PrefixMetrics prefix_;
};

}  // namespace baton::router
