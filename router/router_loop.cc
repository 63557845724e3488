#include "router/router_loop.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "common/log.h"
#include "router/cluster_status.h"

namespace baton::router {

using scheduling::WorkerRole;

namespace {

// Who asks whether the loop is alive sees a turn no older than this.
constexpr absl::Duration kLongestTurn = absl::Milliseconds(500);

}  // namespace

RouterLoop::RouterLoop(const Options& options, RouterInbox* inbox,
                       Cluster* cluster, RequestFlow* flow, ServingState* state,
                       ServingChanged serving_changed, const Clock* clock)
    : options_(options),
      inbox_(inbox),
      cluster_(cluster),
      flow_(flow),
      state_(state),
      serving_changed_(std::move(serving_changed)),
      clock_(clock) {}

void RouterLoop::Run() {
  while (Turn(kLongestTurn)) {
  }
  RefuseTheRest();
}

bool RouterLoop::Turn(absl::Duration max_wait) {
  if (Drained(clock_->Now())) return false;
  const absl::Time until = std::min(next_due_, drain_deadline_);
  std::vector<RouterEvent> events =
      inbox_->DrainFor(std::min(until - clock_->Now(), max_wait));
  const absl::Time now = clock_->Now();
  state_->Beat(now);
  for (RouterEvent& event : events) Take(std::move(event), now);
  const absl::Time cluster_due = cluster_->Advance(now);
  flow_->RunTimers(now);
  flow_->PlaceWaiting(now);
  flow_->Publish(clock_->Now());
  PublishServing();
  next_due_ = std::min(cluster_due, flow_->NextDue());
  return true;
}

void RouterLoop::RequestDrain() {
  drain_requested_ = true;
  inbox_->Wake();
}

void RouterLoop::Take(RouterEvent event, absl::Time now) {
  if (auto* incoming = std::get_if<std::unique_ptr<IncomingRequest>>(&event)) {
    flow_->Admit(std::move(*incoming), now);
  } else if (const auto* gone = std::get_if<ClientGone>(&event)) {
    flow_->TakeClientGone(gone->key, now);
  } else if (auto* link = std::get_if<LinkEvent>(&event)) {
    const auto news = cluster_->Take(std::move(*link), now);
    if (news.has_value()) flow_->TakeNews(*news, now);
  } else if (const auto* found = std::get_if<FoundWorkers>(&event)) {
    cluster_->TakeFound(*found, now);
  } else if (const auto* query = std::get_if<ClusterQuery>(&event)) {
    v1::GetClusterResponse response =
        DescribeCluster(cluster_->registry(), now);
    flow_->Describe(&response);
    query->answer(std::move(response));
  } else if (const auto* why = std::get_if<ExplainQuery>(&event)) {
    why->answer(flow_->Explain(why->request_id, now));
  }
}

void RouterLoop::PublishServing() {
  const WorkerRegistry& registry = cluster_->registry();
  Serving serving;
  serving.draining = drain_requested_;
  serving.serving = registry.CouldPlace() && !serving.draining;
  serving.num_prefill_workers = registry.NumServing(WorkerRole::kPrefill);
  serving.num_decode_workers = registry.NumServing(WorkerRole::kDecode);
  serving.max_context = registry.MaxContext();
  serving.takes_grammars = registry.TakesGrammars();
  serving.adapters = registry.adapters();
  if (const v1::ModelFingerprint* fingerprint = registry.Fingerprint()) {
    serving.model_identity = fingerprint->model_identity();
    serving.block_size = static_cast<int>(fingerprint->block_size());
  }
  if (state_->Set(serving)) serving_changed_(serving);
}

bool RouterLoop::Drained(absl::Time now) {
  if (!drain_requested_) return false;
  if (drain_deadline_ == absl::InfiniteFuture()) {
    drain_deadline_ = now + options_.drain;
    flow_->StartDraining();
    PublishServing();
    LOG(INFO) << "draining";
  }
  if (now >= drain_deadline_) {
    flow_->AbortAll(absl::UnavailableError("the router is shutting down"), now);
  }
  return flow_->empty();
}

void RouterLoop::RefuseTheRest() {
  inbox_->Close();
  const absl::Time now = clock_->Now();
  for (RouterEvent& event : inbox_->DrainFor(absl::ZeroDuration())) {
    if (auto* incoming =
            std::get_if<std::unique_ptr<IncomingRequest>>(&event)) {
      flow_->Admit(std::move(*incoming), now);  // draining: refuses
    } else if (const auto* query = std::get_if<ClusterQuery>(&event)) {
      query->answer(absl::UnavailableError("the router is shutting down"));
    } else if (const auto* why = std::get_if<ExplainQuery>(&event)) {
      why->answer(absl::UnavailableError("the router is shutting down"));
    }
  }
}

}  // namespace baton::router
