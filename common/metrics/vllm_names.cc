#include "common/metrics/vllm_names.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <prometheus/client_metric.h>

#include "absl/strings/string_view.h"

namespace baton::metrics {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;

struct Name {
  absl::string_view ours;
  const char* theirs;
};

// Where vLLM has renamed one, both of its names: tools have either.
constexpr Name kNames[] = {
    {"baton_num_requests_running", "vllm:num_requests_running"},
    {"baton_num_requests_waiting", "vllm:num_requests_waiting"},
    {"baton_kv_cache_usage_perc", "vllm:kv_cache_usage_perc"},
    {"baton_kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
    {"baton_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"},
    {"baton_prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"},
    {"baton_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"},
    {"baton_prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"},
    {"baton_external_prefix_cache_queries_total",
     "vllm:external_prefix_cache_queries_total"},
    {"baton_external_prefix_cache_hits_total",
     "vllm:external_prefix_cache_hits_total"},
    {"baton_preemptions_total", "vllm:num_preemptions_total"},
    {"baton_spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts_total"},
    {"baton_spec_decode_num_draft_tokens_total",
     "vllm:spec_decode_num_draft_tokens_total"},
    {"baton_spec_decode_num_accepted_tokens_total",
     "vllm:spec_decode_num_accepted_tokens_total"},
    {"baton_cache_config_info", "vllm:cache_config_info"},
    {"baton_prompt_tokens_total", "vllm:prompt_tokens_total"},
    {"baton_generation_tokens_total", "vllm:generation_tokens_total"},
    {"baton_iteration_tokens_total", "vllm:iteration_tokens_total"},
    {"baton_request_success_total", "vllm:request_success_total"},
    {"baton_request_prompt_tokens", "vllm:request_prompt_tokens"},
    {"baton_request_generation_tokens", "vllm:request_generation_tokens"},
    {"baton_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
    {"baton_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"},
    {"baton_inter_token_latency_seconds", "vllm:time_per_output_token_seconds"},
    {"baton_request_time_per_output_token_seconds",
     "vllm:request_time_per_output_token_seconds"},
    {"baton_e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds"},
    {"baton_request_queue_time_seconds", "vllm:request_queue_time_seconds"},
    {"baton_request_prefill_time_seconds", "vllm:request_prefill_time_seconds"},
    {"baton_request_decode_time_seconds", "vllm:request_decode_time_seconds"},
    {"baton_request_inference_time_seconds",
     "vllm:request_inference_time_seconds"},
};

// Labels that vLLM's metrics have, too.
constexpr absl::string_view kLabels[] = {"model_name", "finished_reason",
                                         "block_size", "num_gpu_blocks"};

using LabelList = std::vector<ClientMetric::Label>;

LabelList VllmLabels(const LabelList& labels) {
  LabelList kept;
  for (const ClientMetric::Label& label : labels) {
    if (std::find(std::begin(kLabels), std::end(kLabels), label.name) ==
        std::end(kLabels)) {
      continue;
    }
    kept.push_back(label);
    if (label.name == "finished_reason" && label.value == "cancelled") {
      kept.back().value = "abort";
    }
  }
  kept.push_back({"engine", "0"});
  std::sort(kept.begin(), kept.end());
  return kept;
}

MetricFamily Copy(const MetricFamily& family, const char* name) {
  MetricFamily copy{.name = name, .help = family.help, .type = family.type};
  std::map<LabelList, size_t> places;
  for (const ClientMetric& metric : family.metric) {
    LabelList labels = VllmLabels(metric.label);
    const auto [place, is_new] = places.emplace(labels, copy.metric.size());
    if (is_new) {
      copy.metric.push_back(metric);
      copy.metric.back().label = std::move(labels);
      continue;
    }
    // The histograms of this table have no labels of their own.
    ClientMetric& sum = copy.metric[place->second];
    sum.counter.value += metric.counter.value;
    sum.gauge.value += metric.gauge.value;
  }
  return copy;
}

}  // namespace

std::vector<MetricFamily> VllmFamilies(
    const std::vector<MetricFamily>& families) {
  std::vector<MetricFamily> copies;
  for (const Name& name : kNames) {
    for (const MetricFamily& family : families) {
      if (family.name == name.ours && !family.metric.empty()) {
        copies.push_back(Copy(family, name.theirs));
      }
    }
  }
  return copies;
}

}  // namespace baton::metrics
