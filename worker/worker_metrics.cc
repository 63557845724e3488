#include "worker/worker_metrics.h"

#include <algorithm>
#include <string>

namespace baton::worker {
namespace {

constexpr char kLinkBandwidth[] = "baton_kv_link_bandwidth_bytes";
constexpr char kLinkBandwidthHelp[] =
    "Bytes per second to a decode worker, measured now and then.";
constexpr char kLinkLatency[] = "baton_kv_link_latency_seconds";
constexpr char kLinkLatencyHelp[] =
    "One way to a decode worker, measured now and then.";

prometheus::Gauge* Reserved(metrics::Metrics* m, const char* state) {
  return m->Gauge("baton_kv_reserved_blocks",
                  "KV blocks that hand-offs write to, or wrote to before the "
                  "sequence's first step, by how far they are.",
                  {{"state", state}});
}

prometheus::Counter* Wasted(metrics::Metrics* m, const char* stage) {
  return m->Counter("baton_cancel_wasted_tokens_total",
                    "Prompt tokens computed (prefill) and output tokens "
                    "sampled (decode) for requests that their clients gave up "
                    "or whose deadlines passed.",
                    {{"stage", stage}});
}

prometheus::Counter* Dropped(metrics::Metrics* m, const char* reason) {
  return m->Counter("baton_kv_offload_dropped_blocks_total",
                    "KV blocks that were to be stored and were not.",
                    {{"reason", reason}});
}

prometheus::Counter* Loads(metrics::Metrics* m, const char* outcome) {
  return m->Counter("baton_kv_offload_loads_total",
                    "Prompts for which KV was stored, by whether it was "
                    "loaded.",
                    {{"outcome", outcome}});
}

}  // namespace

WorkerMetrics::WorkerMetrics(metrics::Metrics* m, const engine::Engine& engine)
    : running(m->Gauge("baton_num_requests_running",
                       "Sequences in the step loop.")),
      waiting(m->Gauge("baton_num_requests_waiting",
                       "Sequences admitted but not in the step loop yet.")),
      prompt_tokens_waiting(
          m->Gauge("baton_prompt_tokens_waiting",
                   "Prompt tokens admitted here and not computed yet.")),
      kv_usage_ratio(m->Gauge("baton_kv_cache_usage_perc",
                              "Share of KV blocks in use, 0 to 1.")),
      kv_blocks_in_use(m->Gauge("baton_kv_blocks_in_use", "KV blocks in use.")),
      kv_blocks_quarantined(
          m->Gauge("baton_kv_blocks_quarantined",
                   "KV blocks of ended transfers that the transport may still "
                   "touch.")),
      kv_staged_blocks(
          m->Gauge("baton_kv_staged_blocks",
                   "Blocks, beside its own, that KV of a device is handed over "
                   "through.")),
      kv_staged_blocks_in_use(m->Gauge("baton_kv_staged_blocks_in_use",
                                       "Of those, the ones that transfers "
                                       "have.")),
      prefix_cache_queries(
          m->Counter("baton_prefix_cache_queries_total",
                     "Prompt tokens that were looked up in the prefix cache.")),
      prefix_cache_hits(
          m->Counter("baton_prefix_cache_hits_total",
                     "Prompt tokens whose KV the prefix cache had.")),
      prefix_cache_blocks(
          m->Gauge("baton_prefix_cache_blocks",
                   "KV blocks in the prefix cache, those in use included.")),
      prefix_cache_evictions(
          m->Counter("baton_prefix_cache_evictions_total",
                     "KV blocks that left the prefix cache to be used anew.")),
      prompt_tokens(m->Counter("baton_prompt_tokens_total",
                               "Prompt tokens computed by this worker.")),
      generation_tokens(m->Counter("baton_generation_tokens_total",
                                   "Output tokens sampled by this worker.")),
      prompt_logprobs(
          m->Counter("baton_prompt_logprobs_total",
                     "Prompt tokens whose own log-probability was computed.")),
      steps(m->Counter("baton_steps_total", "Steps executed.")),
      expert_reads(m->Counter("baton_expert_reads_total",
                              "Times that steps read the weights of an expert, "
                              "in any layer.")),
      expert_rows(m->Counter("baton_expert_rows_total",
                             "Rows that experts computed in these steps.")),
      steps_ahead(m->Counter("baton_steps_ahead_total",
                             "Steps that the device had before the one that "
                             "they follow was done.")),
      ahead_tokens_dropped(
          m->Counter("baton_steps_ahead_dropped_tokens_total",
                     "Tokens of such steps whose sequence was over, or had to "
                     "be run again.")),
      drafts(m->Counter("baton_spec_decode_num_drafts_total",
                        "Times that guesses at a sequence's next tokens were "
                        "checked.")),
      draft_tokens(m->Counter("baton_spec_decode_num_draft_tokens_total",
                              "Guesses that were checked.")),
      accepted_draft_tokens(
          m->Counter("baton_spec_decode_num_accepted_tokens_total",
                     "Guesses that came true.")),
      draft_step_seconds(
          m->Histogram("baton_draft_step_seconds",
                       "Time the engine took for one step with weights of "
                       "fewer bits, which guesses.",
                       metrics::StepBuckets())),
      guide_seconds(m->Histogram(
          "baton_output_guide_seconds",
          "Per token of a sequence with a grammar, time that "
          "finding what may come next took.",
          {1e-6, 1e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 0.1})),
      step_seconds(m->Histogram("baton_step_seconds",
                                "Time the engine took for one step.",
                                metrics::StepBuckets())),
      step_tokens(m->Histogram("baton_iteration_tokens_total",
                               "Tokens in one step.", metrics::TokenBuckets())),
      queue_seconds(m->Histogram(
          "baton_request_queue_time_seconds",
          "Time a sequence waited at this worker before its first step.",
          metrics::RequestBuckets())),
      grant_seconds(m->Histogram("baton_kv_grant_seconds",
                                 "From a prompt to its hand-off's grant.",
                                 metrics::TransferBuckets())),
      transfer_seconds(
          m->Histogram("baton_kv_transfer_seconds",
                       "Time of one KV transfer, first byte sent to verified.",
                       metrics::TransferBuckets())),
      transfer_bytes(m->Histogram("baton_kv_transfer_bytes",
                                  "KV bytes of one transfer.",
                                  metrics::ByteBuckets())),
      transfer_overlap(
          m->Histogram("baton_kv_transfer_overlap_ratio",
                       "Share of one transfer's time that prefill hid.",
                       metrics::ShareBuckets())),
      transfer_descriptors(m->Histogram(
          "baton_kv_transfer_descriptors",
          "Runs of bytes that the transport was given for one transfer.",
          metrics::ExtentBuckets())),
      reserved_granted(Reserved(m, "granted")),
      reserved_filling(Reserved(m, "filling")),
      reserved_committed(Reserved(m, "committed")),
      wasted_prompt_tokens(Wasted(m, "prefill")),
      wasted_output_tokens(Wasted(m, "decode")),
      lease_expired(m->Counter(
          "baton_kv_lease_expired_total",
          "Reservations or held KV given up because the lease ran out.")),
      messages_dropped(m->Counter(
          "baton_kv_transfer_messages_dropped_total",
          "Hand-off messages that were stale, unknown, duplicate or out of "
          "range and touched no memory.")),
      transfers_encoded(
          m->Counter("baton_kv_transfers_encoded_total",
                     "Hand-offs that went over the wire as int8 or fp8.")),
      step_prediction_error(m->Gauge(
          "baton_step_prediction_error_ratio",
          "How far the last steps took from what was predicted for them: mean "
          "of |measured - predicted| / measured.")),
      mixed_steps(
          m->Counter("baton_mixed_steps_total",
                     "Steps that computed prompts beside running streams.")),
      mixed_steps_time_bound(
          m->Counter("baton_mixed_steps_time_bound_total",
                     "Those of them in which the time that streams may wait, "
                     "and not the token budget, left prompt tokens waiting.")),
      mixed_step_prompt_tokens(
          m->Histogram("baton_mixed_step_prompt_tokens",
                       "Prompt tokens in one step beside running streams.",
                       metrics::TokenBuckets())),
      mixed_step_predicted(
          m->Gauge("baton_mixed_step_predicted_ratio",
                   "What the last such step was predicted to take, of the time "
                   "that it might take while no stream is behind.")),
      mixed_step_budget(
          m->Histogram("baton_mixed_step_budget_ratio",
                       "What such a step took, of the time that it might take "
                       "while no stream is behind.",
                       {0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 5})),
      swapped_sequences(
          m->Gauge("baton_swapped_sequences",
                   "Preempted sequences whose KV waits in the host's memory.")),
      swapped_bytes(m->Gauge("baton_swapped_bytes",
                             "Bytes of KV that wait in the host's memory.")),
      swap_seconds(m->Histogram(
          "baton_swap_seconds",
          "Time of copying the KV of one sequence to the host's memory, or "
          "back.",
          metrics::TransferBuckets())),
      swaps_given_up(
          m->Counter("baton_swaps_given_up_total",
                     "Preempted sequences that waited in the host's memory for "
                     "too long, and went back to the router.")),
      peers(m->Gauge("baton_kv_transfer_peers",
                     "Workers that this one is paired with.")),
      registry_(m) {
  const engine::KvLayout& layout = engine.kv_layout();
  m->Gauge("baton_cache_config_info", "KV cache configuration; always 1.",
           {{"block_size", std::to_string(layout.block_size)},
            {"num_gpu_blocks", std::to_string(layout.num_blocks)}})
      ->Set(1);
  const engine::WeightsInfo weights = engine.weights_info();
  m->Gauge("baton_engine_weight_bytes",
           "Bytes of all matrices, their scales and the embedding, as held.",
           {{"dtype", weights.dtype}})
      ->Set(static_cast<double>(weights.bytes));
  for (const char* way : {"recompute", "swap"}) {  // 0, and not absent
    m->Counter("baton_preemptions_total",
               "Sequences that gave their blocks up, by how they go on.",
               {{"way", way}});
  }
  m->Gauge("baton_model_load_seconds",
           "Time that packing or mapping the weights took.")
      ->Set(weights.load_seconds);
}

void WorkerMetrics::SetBounds(int64_t sequences, int64_t queued_tokens,
                              int64_t step_tokens) {
  const auto set = [this](const char* name, const char* help, int64_t value) {
    registry_->Gauge(name, help)->Set(static_cast<double>(value));
  };
  set("baton_max_sequences", "Most sequences at a time.", sequences);
  set("baton_max_prompt_tokens_waiting", "Most prompt tokens that wait.",
      queued_tokens);
  set("baton_max_step_tokens", "Most tokens in one step.", step_tokens);
}

void WorkerMetrics::CountPrefix(int32_t tokens, int32_t cached) {
  prefix_cache_queries->Increment(tokens);
  prefix_cache_hits->Increment(cached);
}

void WorkerMetrics::CountPreemption(const char* way) {
  registry_
      ->Counter("baton_preemptions_total",
                "Sequences that gave their blocks up, by how they go on.",
                {{"way", way}})
      ->Increment();
}

void WorkerMetrics::CountStep(const scheduling::StepResult& result) {
  steps->Increment();
  expert_reads->Increment(static_cast<double>(result.expert_reads));
  expert_rows->Increment(static_cast<double>(result.expert_rows));
  for (const std::vector<float>& scored : result.target_logprobs) {
    prompt_logprobs->Increment(static_cast<double>(scored.size()));
  }
}

void WorkerMetrics::CountMixedStep(const scheduling::MixedStep& step,
                                   double seconds) {
  if (step.prompt_tokens == 0) return;
  mixed_steps->Increment();
  mixed_step_prompt_tokens->Observe(step.prompt_tokens);
  if (step.time_bound) mixed_steps_time_bound->Increment();
  if (step.budget_seconds == 0) return;
  mixed_step_budget->Observe(seconds / step.budget_seconds);
  if (step.predicted_seconds == 0) return;
  mixed_step_predicted->Set(step.predicted_seconds / step.budget_seconds);
}

void WorkerMetrics::Observe(const KvBlocks& blocks, int running_sequences,
                            int waiting_sequences, int64_t quarantined_blocks) {
  const scheduling::BlockPool& pool = blocks.pool;
  const scheduling::PrefixCache& cache = blocks.cache;
  running->Set(running_sequences);
  waiting->Set(waiting_sequences);
  kv_blocks_in_use->Set(pool.num_in_use());
  kv_blocks_quarantined->Set(static_cast<double>(quarantined_blocks));
  kv_usage_ratio->Set(static_cast<double>(pool.num_in_use()) / pool.size());
  if (blocks.staged.has_value()) {
    kv_staged_blocks->Set(blocks.staged->size());
    kv_staged_blocks_in_use->Set(blocks.staged->num_in_use());
  }
  prefix_cache_blocks->Set(cache.num_blocks());
  CountUpTo(cache.num_evictions(), prefix_cache_evictions);
}

prometheus::Counter* WorkerMetrics::TransferCounter(
    const std::string& transport, bool ok) {
  return registry_->Counter(
      "baton_kv_transfers_total", "KV transfers that ended, by outcome.",
      {{"transport", transport}, {"outcome", ok ? "ok" : "failed"}});
}

void WorkerMetrics::CountTransfer(const std::string& transport, bool ok) {
  // Both are made, so that the one that did not happen is 0 and not absent.
  TransferCounter(transport, !ok);
  TransferCounter(transport, ok)->Increment();
}

void WorkerMetrics::ObserveSent(absl::Duration transfer, absl::Duration exposed,
                                int64_t extents) {
  transfer_descriptors->Observe(static_cast<double>(extents));
  if (transfer <= absl::ZeroDuration()) return;  // nothing that could overlap
  transfer_overlap->Observe(
      std::clamp(1 - absl::FDivDuration(exposed, transfer), 0.0, 1.0));
}

void WorkerMetrics::CountWasted(int32_t prompt, int32_t output) {
  wasted_prompt_tokens->Increment(prompt);
  wasted_output_tokens->Increment(output);
}

void WorkerMetrics::ObserveLink(const std::string& peer,
                                const std::string& transport,
                                double bandwidth_bytes,
                                double latency_seconds) {
  TransferCounter(transport, true);
  TransferCounter(transport, false);
  const metrics::Labels labels = {{"peer", peer}, {"transport", transport}};
  registry_->Gauge(kLinkBandwidth, kLinkBandwidthHelp, labels)
      ->Set(bandwidth_bytes);
  registry_->Gauge(kLinkLatency, kLinkLatencyHelp, labels)
      ->Set(latency_seconds);
}

void WorkerMetrics::ForgetLink(const std::string& peer,
                               const std::string& transport) {
  const metrics::Labels labels = {{"peer", peer}, {"transport", transport}};
  registry_->RemoveGauge(kLinkBandwidth, kLinkBandwidthHelp, labels);
  registry_->RemoveGauge(kLinkLatency, kLinkLatencyHelp, labels);
}

OffloadMetrics::OffloadMetrics(metrics::Metrics* m)
    : bytes(m->Gauge("baton_kv_offload_bytes",
                     "KV that is stored outside of the KV memory.")),
      capacity_bytes(
          m->Gauge("baton_kv_offload_capacity_bytes",
                   "KV that may be stored outside of the KV memory.")),
      saved_blocks(m->Counter("baton_kv_offload_saved_blocks_total",
                              "KV blocks that were stored.")),
      dropped_backlog(Dropped(m, "backlog")),
      dropped_full(Dropped(m, "full")),
      dropped_error(Dropped(m, "error")),
      loads_done(Loads(m, "loaded")),
      loads_failed(Loads(m, "failed")),
      loads_given_up(Loads(m, "given_up")),
      loads_skipped(Loads(m, "skipped")),
      load_seconds(
          m->Counter("baton_kv_offload_load_seconds_total",
                     "Time that prompts waited for KV that was loaded.")),
      queried_tokens(
          m->Counter("baton_external_prefix_cache_queries_total",
                     "Prompt tokens, not found in the prefix cache, that were "
                     "looked for in what is stored.")),
      loaded_tokens(m->Counter("baton_external_prefix_cache_hits_total",
                               "Of them, those whose KV was loaded.")) {}

void OffloadMetrics::Observe(const KvOffload& offload) {
  const KvOffload::Stats& stats = offload.stats();
  bytes->Set(static_cast<double>(offload.stored_bytes()));
  capacity_bytes->Set(static_cast<double>(offload.capacity_bytes()));
  CountUpTo(stats.saved_blocks, saved_blocks);
  CountUpTo(stats.dropped_backlog, dropped_backlog);
  CountUpTo(stats.dropped_full, dropped_full);
  CountUpTo(stats.dropped_error, dropped_error);
  CountUpTo(stats.loads_done, loads_done);
  CountUpTo(stats.loads_failed, loads_failed);
  CountUpTo(stats.loads_given_up, loads_given_up);
  CountUpTo(stats.loads_skipped, loads_skipped);
  CountUpTo(stats.load_seconds, load_seconds);
  CountUpTo(stats.queried_tokens, queried_tokens);
  CountUpTo(stats.loaded_tokens, loaded_tokens);
}

}  // namespace baton::worker
