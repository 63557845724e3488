// The requests of this router, from admission to the last response: applies
// what the pure parts decide (scheduling/placement.h, request_lifecycle.h).
//
//   Admit -> waiting in line
//   PlaceWaiting -> an attempt on workers (scheduling/request_lifecycle.h)
//   Take -> tokens, grants, refusals, outcomes, lost workers
//   Publish -> one response per client with what came since the last one
//
// Whose turn it is, scheduling/waiting_line.h says. A request whose turn it is
// and that finds no room holds back those behind it, so that small ones cannot
// starve a large one. The number of waiting requests is bounded, and each wait
// ends with the request's deadline.
//
// Used by the router's loop thread only. Never blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "router/cluster.h"
#include "router/placement_log.h"
#include "router/request_history.h"
#include "router/request_record.h"
#include "router/router_metrics.h"
#include "router/served_model.h"
#include "router/tracing/span.h"
#include "router/worker_messages.h"
#include "scheduling/placement.h"
#include "scheduling/request_lifecycle.h"
#include "scheduling/waiting_line.h"

namespace baton::router {

class RequestFlow final {
 public:
  struct Options {
    scheduling::WaitingLine::Options line;
    // The operator's, of requests that give none.
    ClassTargets targets;
    int32_t max_attempts = 3;
    // How long a request waits for a worker to join when none can serve.
    absl::Duration worker_wait = absl::Seconds(10);
    // How long a finished request waits for its workers' reports.
    absl::Duration settle_wait = absl::Milliseconds(100);
    // For Explain.
    RequestHistory::Options history;
  };

  // Everything outlives the flow. `spans` takes those of requests whose traces
  // are recorded; null: nobody does.
  RequestFlow(const Options& options, const ServedModel& model,
              const scheduling::PlacementPolicy& policy, Cluster* cluster,
              RouterMetrics* metrics, const Clock* clock,
              tracing::SpanSink* spans = nullptr);

  void Admit(std::unique_ptr<IncomingRequest> incoming, absl::Time now);
  void TakeClientGone(RequestKey key, absl::Time now);
  void TakeNews(const Cluster::News& news, absl::Time now);

  // Deadlines, waits for outcomes, waits for workers.
  void RunTimers(absl::Time now);
  void PlaceWaiting(absl::Time now);
  void Publish(absl::Time now);

  // Admits nothing more.
  void StartDraining() { draining_ = true; }
  void AbortAll(const absl::Status& status, absl::Time now);

  bool empty() const { return records_.empty(); }
  // How many requests run and wait.
  void Describe(v1::GetClusterResponse* response) const;
  // Where the newest request of that id went: one that is here, or one that
  // ended not long ago. NotFound otherwise.
  absl::StatusOr<v1::ExplainRequestResponse> Explain(const std::string& id,
                                                     absl::Time now) const;
  // When RunTimers or PlaceWaiting is to be called at the latest.
  absl::Time NextDue() const;

 private:
  using Timer = std::pair<absl::Time, RequestKey>;

  void Reject(IncomingRequest& incoming, const absl::Status& status,
              const std::string& reason,
              std::optional<absl::Duration> retry_after);
  // Gives up a request that another one takes the place of.
  void Evict(RequestKey key, absl::Duration retry_after, absl::Time now);
  // How it stands in line.
  scheduling::WaitingRequest InLine(const IncomingRequest& incoming) const;
  scheduling::WaitingRequest InLine(const RequestRecord& record) const;
  void AbortUnplaceable(absl::Time now);

  // False when those behind it must wait too.
  bool TryPlace(RequestRecord& record, absl::Time now);
  void StartAttempt(RequestRecord& record,
                    const scheduling::PlacementVerdict& verdict,
                    const scheduling::PlacementRequest& request,
                    absl::Time now);

  // Keeps where an attempt goes, and why. Before it is sent.
  void LogPlacement(RequestRecord& record,
                    const scheduling::PlacementVerdict& verdict,
                    const scheduling::PlacementRequest& request,
                    absl::Time now);
  // Keeps what its spans need of an attempt that begins.
  void TraceAttempt(RequestRecord& record,
                    const scheduling::PlacementVerdict& verdict);
  // Hands its spans on. When it ends.
  void Trace(const RequestRecord& record, const scheduling::Finish& end,
             const v1::Timing& timing, absl::Time now);
  // What a waiting request waits for; empty: nothing stood in its way yet.
  std::string WaitsFor(const RequestRecord& record, absl::Time now) const;

  // The owner of an attempt; null when it is over.
  RequestRecord* OwnerOf(uint64_t attempt);
  void TakeTokens(const Cluster::News& news, absl::Time now);
  // Whether the attempt's prompt is the worker's.
  bool ComputesPrompt(const RequestRecord& record,
                      scheduling::WorkerId worker) const;
  // Of the news, what is said of prompts.
  void TakePromptLogprobs(const Cluster::News& news, absl::Time now);
  // Hands on what did not come before. False when the client reads too slowly.
  bool SendPromptLogprobs(RequestRecord& record,
                          const ReportedPromptLogprobs& reported);
  // The worker said of the attempt what cannot be.
  void FailLeg(RequestRecord& record, const Cluster::News& news,
               const std::string& what, absl::Time now);
  void TakeRefusal(const Cluster::News& news, absl::Time now);
  void TakeOutcome(const Cluster::News& news, absl::Time now);
  // What an outcome says of its worker, or of the pair.
  void Judge(const RequestRecord& record, const Cluster::News& news,
             absl::Time now);
  void TakeLoss(const Cluster::News& news, absl::Time now);

  // Does what the life cycle says. The record may be gone afterwards.
  void Apply(RequestRecord& record, const scheduling::LifecycleActions& actions,
             absl::Time now);
  void Do(RequestRecord& record, const scheduling::SendReserve& action,
          absl::Time now);
  void Do(RequestRecord& record, const scheduling::SendPrefill& action,
          absl::Time now);
  void Do(RequestRecord& record, const scheduling::ForwardGrant& action,
          absl::Time now);
  void Do(RequestRecord& record, const scheduling::CancelLeg& action,
          absl::Time now);
  void Do(RequestRecord& record, const scheduling::DeliverToken& action,
          absl::Time now);
  void Do(RequestRecord& record, const scheduling::Requeue& action,
          absl::Time now);
  void Do(RequestRecord& record, const scheduling::AwaitOutcomes& action,
          absl::Time now);
  void Do(RequestRecord& record, const scheduling::Finish& action,
          absl::Time now);

  // For RoleControl: its first attempt begins, its answer grew, it ended well.
  void TellBegan(RequestRecord& record, int32_t cached_tokens, absl::Time now);
  void TellProduced(RequestRecord& record, absl::Time now);
  void TellEnded(const RequestRecord& record, absl::Time now);

  void EndAttempt(RequestRecord& record);
  void StampEvent(RequestRecord& record, absl::Time now);
  // What a request asked for, by its adapter's name.
  const std::string& AskedModel(const std::string& adapter) const {
    return adapter.empty() ? model_.name : adapter;
  }
  // False when the client reads too slowly.
  bool Flush(RequestRecord& record, absl::Time now);
  void SetTimer(absl::Time at, RequestKey key);
  void Remove(RequestRecord& record, absl::Time now);

  const Options options_;
  const ServedModel& model_;
  const scheduling::PlacementPolicy& policy_;
  Cluster* const cluster_;
  RouterMetrics* const metrics_;
  const Clock* const clock_;
  tracing::SpanSink* const spans_;

  bool draining_ = false;
  uint64_t last_attempt_ = 0;
  // Ordered, so that what concerns many happens in the order of arrival.
  std::map<RequestKey, std::unique_ptr<RequestRecord>> records_;
  std::map<uint64_t, RequestKey> attempts_;
  scheduling::WaitingLine line_;
  std::set<Timer> timers_;
  std::vector<RequestKey> touched_;
  // For Explain.
  RequestHistory history_;
  WorkerNames names_;
  // When the first in the line last had to wait, and why.
  absl::Time blocked_at_ = absl::InfinitePast();
  scheduling::PlacementReason blocked_by_{};
  // Since when no worker could serve any request.
  std::optional<absl::Time> unplaceable_since_;
  // Late ones of the line that the metrics know of.
  int64_t late_counted_ = 0;
};

}  // namespace baton::router
