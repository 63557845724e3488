// The metrics that both kinds of worker have (docs/metrics.md).
#pragma once

#include <string>

#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "engine/engine.h"
#include "scheduling/decode_scheduler.h"
#include "scheduling/step_plan.h"
#include "worker/kv_blocks.h"

namespace baton::worker {

// Of a number that only grows, and is counted elsewhere.
template <typename Number>
void CountUpTo(Number number, prometheus::Counter* counter) {
  const double more = static_cast<double>(number) - counter->Value();
  if (more > 0) counter->Increment(more);
}

// Handles may be updated from any thread.
struct WorkerMetrics {
  // `registry` outlives the handles.
  WorkerMetrics(metrics::Metrics* registry, const engine::Engine& engine);

  prometheus::Gauge* running;
  prometheus::Gauge* waiting;
  prometheus::Gauge* prompt_tokens_waiting;
  prometheus::Gauge* kv_usage_ratio;
  prometheus::Gauge* kv_blocks_in_use;
  prometheus::Gauge* kv_blocks_quarantined;
  prometheus::Gauge* kv_staged_blocks;
  prometheus::Gauge* kv_staged_blocks_in_use;
  prometheus::Counter* prefix_cache_queries;
  prometheus::Counter* prefix_cache_hits;
  prometheus::Gauge* prefix_cache_blocks;
  prometheus::Counter* prefix_cache_evictions;
  prometheus::Counter* prompt_tokens;
  prometheus::Counter* generation_tokens;
  prometheus::Counter* prompt_logprobs;
  prometheus::Counter* steps;
  prometheus::Counter* expert_reads;
  prometheus::Counter* expert_rows;
  prometheus::Counter* steps_ahead;
  prometheus::Counter* ahead_tokens_dropped;
  prometheus::Counter* drafts;
  prometheus::Counter* draft_tokens;
  prometheus::Counter* accepted_draft_tokens;
  prometheus::Histogram* draft_step_seconds;
  prometheus::Histogram* guide_seconds;
  prometheus::Histogram* step_seconds;
  prometheus::Histogram* step_tokens;
  prometheus::Histogram* queue_seconds;
  prometheus::Histogram* grant_seconds;
  prometheus::Histogram* transfer_seconds;
  prometheus::Histogram* transfer_bytes;
  prometheus::Histogram* transfer_overlap;
  prometheus::Histogram* transfer_descriptors;
  prometheus::Gauge* reserved_granted;
  prometheus::Gauge* reserved_filling;
  prometheus::Gauge* reserved_committed;
  prometheus::Counter* wasted_prompt_tokens;
  prometheus::Counter* wasted_output_tokens;
  prometheus::Counter* lease_expired;
  prometheus::Counter* messages_dropped;
  prometheus::Counter* transfers_encoded;
  prometheus::Gauge* step_prediction_error;
  prometheus::Counter* mixed_steps;
  prometheus::Counter* mixed_steps_time_bound;
  prometheus::Histogram* mixed_step_prompt_tokens;
  prometheus::Gauge* mixed_step_predicted;
  prometheus::Histogram* mixed_step_budget;
  prometheus::Gauge* swapped_sequences;
  prometheus::Gauge* swapped_bytes;
  prometheus::Histogram* swap_seconds;
  prometheus::Counter* swaps_given_up;
  prometheus::Gauge* peers;

  // The bounds of the worker's queue and batch.
  void SetBounds(int64_t sequences, int64_t queued_tokens, int64_t step_tokens);
  // A sequence of so many tokens got its blocks, with the KV of so many of
  // them.
  void CountPrefix(int32_t tokens, int32_t cached);
  // A step that may have been a mixed one took so long (decode workers).
  void CountStep(const scheduling::StepResult& result);
  void CountMixedStep(const scheduling::MixedStep& step, double seconds);
  // A sequence gave its blocks up (decode workers); `way` as
  // scheduling::PreemptionWayName.
  void CountPreemption(const char* way);
  // Sets the gauges that a loop knows at the end of its turn.
  void Observe(const KvBlocks& blocks, int running_sequences,
               int waiting_sequences, int64_t quarantined_blocks);
  // A transfer over `transport` ended.
  void CountTransfer(const std::string& transport, bool ok);
  // A transfer was acknowledged after this time, of which so much was left when
  // prefill was done; so many extents went over (prefill workers).
  void ObserveSent(absl::Duration transfer, absl::Duration exposed,
                   int64_t extents);
  // So many prompt tokens computed and output tokens sampled are of no use any
  // more: the client gave the request up, or its deadline passed.
  void CountWasted(int32_t prompt, int32_t output);
  // A link was measured (prefill workers). The loop's thread.
  void ObserveLink(const std::string& peer, const std::string& transport,
                   double bandwidth_bytes, double latency_seconds);
  // The peer is gone. The loop's thread.
  void ForgetLink(const std::string& peer, const std::string& transport);
  // Stats of HandoffSender or HandoffReceiver.
  template <typename Stats>
  void ObserveHandoff(const Stats& stats) {
    CountUpTo(stats.messages_dropped, messages_dropped);
    peers->Set(static_cast<double>(stats.peers_ready));
    if constexpr (requires { stats.transfers_encoded; }) {  // the sender's
      CountUpTo(stats.transfers_encoded, transfers_encoded);
    }
    if constexpr (requires { stats.blocks_granted; }) {  // the receiver's
      reserved_granted->Set(static_cast<double>(stats.blocks_granted));
      reserved_filling->Set(static_cast<double>(stats.blocks_filling));
    }
  }

 private:
  prometheus::Counter* TransferCounter(const std::string& transport, bool ok);

  metrics::Metrics* const registry_;
};

// Of a worker's offload, whatever sides the worker has.
struct OffloadMetrics {
  // `registry` outlives the handles.
  explicit OffloadMetrics(metrics::Metrics* registry);

  prometheus::Gauge* bytes;
  prometheus::Gauge* capacity_bytes;
  prometheus::Counter* saved_blocks;
  prometheus::Counter* dropped_backlog;
  prometheus::Counter* dropped_full;
  prometheus::Counter* dropped_error;
  prometheus::Counter* loads_done;
  prometheus::Counter* loads_failed;
  prometheus::Counter* loads_given_up;
  prometheus::Counter* loads_skipped;
  prometheus::Counter* load_seconds;
  prometheus::Counter* queried_tokens;
  prometheus::Counter* loaded_tokens;

  // The loop's thread.
  void Observe(const KvOffload& offload);
};

}  // namespace baton::worker
