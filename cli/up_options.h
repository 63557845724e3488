// The flags of `baton up`.
#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "cli/router_connection.h"

namespace baton::cli {

inline constexpr char kDefaultHttpAddress[] = "127.0.0.1:8000";

struct UpOptions {
  std::string model;
  // None of them given: two dual ones. Else one prefill and one decode worker,
  // or none where there are dual ones, and no dual one.
  std::optional<int> num_prefill;
  std::optional<int> num_decode;
  std::optional<int> num_dual;
  std::string listen = kDefaultAddress;
  // Empty: kDefaultHttpAddress, or a free port where --listen takes one.
  std::string http;
  std::string placement;
  std::string device;
  std::string transport;
  std::string kv_staging;
  std::string kv_memory;
  std::string kv_offload;
  std::string kv_offload_dir;
  std::string weights;
  std::vector<std::string> adapters;
  std::string adapter_dir;
  std::string kv_dtype;
  // GPUs of each worker.
  int tensor_parallel = 1;
  std::string output_reserve;
  std::string draft_tokens;
  std::string draft_weights;
  std::string log_format;
  int threads = 0;
  // For requests that name none; 0: none.
  double ttft_target_ms = 0;
  double itl_target_ms = 0;
  std::string prometheus_targets;
  std::string log_dir;
  double start_timeout_seconds = 120;
  int ready_fd = -1;
  bool die_with_parent = false;
  std::string program;
};

// They write to `options`, which outlive the parsing; `program` is there
// already.
void AddUpFlags(CLI::App* up, UpOptions* options);

}  // namespace baton::cli
