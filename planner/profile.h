// What a cluster's workers can hold and what their steps cost: the numbers that
// a simulation runs on. Written by `baton plan profile` from what the workers
// of a cluster measured, made up for known GPUs (roofline.h), or by hand; the
// fields of the file are in docs/planner.md.
//
// Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/json.h"
#include "scheduling/step_cost.h"

namespace baton::planner {

struct WorkerProfile {
  scheduling::StepCost cost;
  // Tokens per KV block, and blocks.
  int32_t block_size = 16;
  int32_t total_blocks = 4096;
  // Most sequences at a time, most tokens of one of them, prompt and output
  // together, and most tokens of a step.
  int32_t max_sequences = 64;
  int32_t max_context = 8192;
  int32_t token_budget = 512;
  // Prefill workers: most prompt tokens that wait.
  int64_t max_queued_tokens = 1 << 20;
};

struct ClusterProfile {
  // Where it comes from, for people.
  std::string source;
  WorkerProfile prefill;
  WorkerProfile decode;
  // Of the KV cache, over all layers.
  int64_t kv_bytes_per_token = 0;
  int32_t num_layers = 1;
  // Of a worker's network, each way; 0: a transfer takes no time.
  double link_bytes_per_second = 0;
  // Of a transfer, besides.
  double link_latency_seconds = 0;
};

// OK, or InvalidArgument naming the field.
absl::Status Validate(const ClusterProfile& profile);

// InvalidArgument names `where` and the field.
absl::StatusOr<ClusterProfile> ParseProfile(absl::string_view text,
                                            const std::string& where);
// NotFound without the file, which errors name.
absl::StatusOr<ClusterProfile> ReadProfile(const std::string& path);

// {"kind": "baton_profile", "version": 1, ...}
nlohmann::ordered_json ProfileJson(const ClusterProfile& profile);

}  // namespace baton::planner
