// All workers of a simulated cluster, and the transfers between them. Admission
// is that of scheduling/admission.h, by the workers themselves.
//
// Workers go by number: prefill workers from 0, decode workers behind them. A
// dual worker is one of each, by its sides: two numbers.
// Seconds of the virtual clock. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "planner/decode_simulation.h"
#include "planner/gap_histogram.h"
#include "planner/prefill_simulation.h"
#include "planner/prefix_cache_simulation.h"
#include "planner/prefix_chains.h"
#include "planner/profile.h"
#include "planner/report_clock.h"
#include "planner/router_simulation.h"
#include "planner/simulation_result.h"
#include "planner/worker_times.h"
#include "workload/planned_request.h"

namespace baton::planner {

// What becomes of requests, by their place in the workload.
class FleetListener {
 public:
  virtual ~FleetListener() = default;
  virtual void OnFirstToken(uint32_t request, double now) = 0;
  // Two of its tokens were so far apart; the longest ones are told.
  virtual void OnGap(uint32_t request, double seconds) = 0;
  virtual void OnFinished(uint32_t request, double now) = 0;
};

// SimulationOptions::split_share is of prompts that are not shorter.
inline constexpr int32_t kLeastSplitPrompt = 256;

struct FleetOptions {
  ClusterProfile profile;
  int32_t num_prefill = 0;
  int32_t num_decode = 1;
  // 0: none.
  double ttft_target_seconds = 0;
  double itl_target_seconds = 0;
  bool fast_forward = true;
  // As SimulationOptions.
  double split_share = 0;
  // Most tokens in a worker's prefix cache.
  int64_t prefix_cache_tokens = 0;
  // The prefill worker and the decode worker of the same place among their like
  // are the sides of a dual worker: they share their device (device_side.h) and
  // the decode worker's KV blocks, and have no prefix cache. REQUIRES: as many
  // of both, with blocks of one size.
  bool dual_workers = false;
  // Of those, how many are prefill workers at first, from 0.
  int32_t first_prefill_roles = 0;
};

class FleetSimulation final {
 public:
  // Where a request goes. Below zero: the decode worker computes the prompt.
  // The decode worker's number is that among its like.
  struct Attempt {
    int32_t prefill = -1;
    int32_t decode = -1;
  };

  // The requests, the prefixes of their prompts and the listener outlive this.
  // Without prefixes, workers have no caches.
  FleetSimulation(const FleetOptions& options,
                  absl::Span<const workload::PlannedRequest> requests,
                  const PrefixChains& prefixes, FleetListener* listener);
  FleetSimulation(const FleetSimulation&) = delete;
  FleetSimulation& operator=(const FleetSimulation&) = delete;

  // Who refuses the request; none: Assign may follow.
  std::optional<size_t> Refuses(uint32_t request, const Attempt& attempt,
                                double now) const;
  void Assign(uint32_t request, const Attempt& attempt, double now);

  // Calls visit(request, its tokens so far) for all that run on decode workers
  // and had their first token.
  template <typename Function>
  void VisitOutputs(double now, Function visit) const {
    for (const DecodeWorker& worker : decode_) {
      worker.simulation.VisitStreams(now, [&](uint32_t request, int64_t done) {
        const int32_t prompt = requests_[request].prompt_tokens;
        visit(request, static_cast<int32_t>(done) - prompt + 1);
      });
    }
  }

  // Of a dual worker. Routers know from its next reports on.
  void SetRole(size_t worker, scheduling::WorkerRole role, double now);

  // When something happens next; infinity: nothing will.
  double next_event() const;
  // Takes the next event. Requests are told of in here; the listener must not
  // call back.
  void Advance();

  // When reports come next; Report calls report(worker, SimulatedReport) for
  // each. What changed in its cache since its last report is in it.
  double next_report() const { return reports_.next(); }
  template <typename Function>
  void Report(double now, Function report) {
    reports_.Tick([&](size_t worker) {
      report(worker, ReportOf(worker, now));
      return times_.time(worker) != WorkerTimes::kNever;
    });
  }

  int64_t local_prefills() const { return local_prefills_; }
  // The workers' part of the result. REQUIRES: result->total_seconds is there.
  void Sum(SimulationResult* result) const;

 private:
  struct PrefillWorker {
    // Null: none.
    std::unique_ptr<PrefixCacheSimulation> cache;
    PrefillSimulation simulation;
    int32_t attempts = 0;
    // When its network has sent what there is to send.
    double link_free_at = 0;
  };
  struct DecodeWorker {
    std::unique_ptr<PrefixCacheSimulation> cache;
    DecodeSimulation simulation;
    int32_t attempts = 0;
    int32_t uncounted_blocks = 0;  // as if nothing was shared
    double link_free_at = 0;

    int32_t free_blocks() const {
      return uncounted_blocks + (cache ? cache->shared_blocks() : 0);
    }
  };
  struct State {
    Attempt attempt;
    int32_t cached = 0;  // tokens, on the decode worker
    double first_at = 0;
  };

  // What the workers of one kind tell.
  class Listener final : public WorkerListener {
   public:
    Listener(FleetSimulation* fleet, bool prefill)
        : fleet_(fleet), prefill_(prefill) {}
    void OnLastChunk(uint32_t request, double now) override {
      fleet_->OnLastChunk(request, now);
    }
    void OnFirstToken(uint32_t request, double started, double now) override {
      fleet_->OnFirstToken(request, prefill_, started, now);
    }
    void OnFirstGap(uint32_t request, double seconds) override {
      fleet_->listener_->OnGap(request, seconds);
    }
    void OnFinished(uint32_t request, double longest_gap, double now) override {
      fleet_->listener_->OnGap(request, longest_gap);
      fleet_->Finish(request, now);
    }

   private:
    FleetSimulation* const fleet_;
    const bool prefill_;
  };

  PrefillWorker& PrefillOf(uint32_t request) {
    return prefill_[static_cast<size_t>(states_[request].attempt.prefill)];
  }
  DecodeWorker& DecodeOf(uint32_t request) {
    return decode_[static_cast<size_t>(states_[request].attempt.decode)];
  }
  size_t NumberOfDecode(const Attempt& attempt) const {
    return prefill_.size() + static_cast<size_t>(attempt.decode);
  }
  // Of its prompt, what a prefill worker computes, where one does.
  int32_t PrefillTokens(uint32_t request) const;
  // When its first token is to come; kNever without a target.
  double DueTime(uint32_t request) const;
  // Set aside on the decode worker.
  int32_t DecodeTokens(uint32_t request) const;
  int32_t DecodeBlocks(uint32_t request) const;
  // Of its prompt, most that may be found in the decode worker's cache.
  int32_t MostCached(uint32_t request, const Attempt& attempt) const;
  std::unique_ptr<PrefixCacheSimulation> MakeCache(
      const WorkerProfile& worker, const PrefixChains& prefixes) const;
  // The prompt is on the decode worker.
  void InsertDecode(uint32_t request, double now);

  void OnLastChunk(uint32_t request, double now);
  void OnFirstToken(uint32_t request, bool prefill, double started, double now);
  // Its part of the prompt is computed.
  void OnPrefilled(uint32_t request, double started, double now);
  double LandingTime(uint32_t request, double started, double now);
  void Land(uint32_t request, double now);
  void LeavePrefill(uint32_t request, double now);
  void Finish(uint32_t request, double now);

  // Something changed there.
  void Touch(size_t worker, double now);
  void SetTime(size_t worker);
  // Whether the worker gets new work; of dual workers, scheduling::TakesWork.
  bool IsUsable(size_t worker, double now) const;
  SimulatedReport ReportOf(size_t worker, double now);
  void CountBlocks(int32_t change, double now);

  const FleetOptions options_;
  const absl::Span<const workload::PlannedRequest> requests_;
  FleetListener* const listener_;
  Listener prefill_listener_{this, true};
  Listener decode_listener_{this, false};
  GapHistogram gaps_;
  std::deque<PrefillWorker> prefill_;
  std::deque<DecodeWorker> decode_;
  WorkerTimes times_;
  ReportClock reports_;
  struct Role {
    scheduling::WorkerRole role = scheduling::WorkerRole::kDecode;
    double changed_at = 0;
  };
  std::vector<Role> roles_;    // of dual workers
  std::vector<State> states_;  // by request
  // KV on its way: when it is there, and whose it is; the first one on top.
  std::priority_queue<std::pair<double, uint32_t>,
                      std::vector<std::pair<double, uint32_t>>, std::greater<>>
      landings_;

  int64_t local_prefills_ = 0;
  int64_t cached_tokens_ = 0;  // of local prefills
  int64_t unsent_tokens_ = 0;
  // Of decode workers, over time.
  int64_t blocks_in_use_ = 0;
  double block_seconds_ = 0;
  double blocks_counted_at_ = 0;
};

}  // namespace baton::planner
