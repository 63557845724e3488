// The flags of workers.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "baton/v1/peer.pb.h"
#include "common/metrics/metrics.h"
#include "engine/engine_factory.h"

namespace CLI {
class App;
}

namespace baton::worker {

// --token-budget where it is not given. A chunk is worth its step's fixed cost
// with fewer tokens on a CPU; a GPU reads all weights for it, and has tiles of
// outputs for all of its multiprocessors from some 2,000 tokens on
// (docs/gpu.md).
inline constexpr int32_t kTokenBudget = 512;
inline constexpr int32_t kDeviceTokenBudget = 2048;

struct WorkerOptions {
  std::string name;
  std::string listen = "127.0.0.1:0";
  // Dual workers: `listen` is the prefill side's, this the decode side's; which
  // of both gets requests first, "prefill" or "decode".
  std::string listen_decode;  // empty: a free port of the same host
  std::string first_role = "decode";
  // Folder with ca.pem, cert.pem and key.pem; empty: plain text.
  std::string cluster_tls;
  // Folder of adapters that come and go (worker/adapter_folder.h); empty: none.
  std::string adapter_dir;
  std::string metrics = "127.0.0.1:0";
  // Names of metrics besides their own.
  metrics::Compat metrics_compat = metrics::Compat::kNone;
  std::string data_host = "127.0.0.1";
  int32_t data_port = 0;
  // As in kv_transfer::CreateTransport.
  std::string transport = "auto";
  std::string ucx_tls = "tcp";
  // "auto", "tls" or "off": worker/kv_encryption.h.
  std::string kv_encryption = "auto";
  // Where KV of a device is handed over from and to: "host", "device", or
  // "auto": on the device with --transport nccl.
  std::string kv_staging = "auto";
  // Prefill workers: kv_transfer::WirePolicy.
  std::string kv_wire = "exact";
  double kv_wire_below_mb_per_s = 200;
  // kv_staging_bytes of a device of its own; nothing for others.
  engine::EngineOptions engine = {.kv_staging_bytes = int64_t{4} << 30};
  int32_t token_budget = kTokenBudget;
  // Decode workers: what interactive streams that ask for nothing else may wait
  // between two tokens while prompts are computed beside them; 0: no bound.
  double itl_target_ms = 100;
  int32_t max_sequences = 64;
  int64_t max_queued_tokens = 1 << 20;
  // Decode workers: tokens of output ahead for which blocks are set aside; 0:
  // the whole output.
  int32_t output_reserve = 512;
  // Decode workers: host memory for the KV of sequences whose blocks others
  // needed, in bytes, and how long one may wait there.
  int64_t swap_memory_bytes = 0;
  double swap_seconds = 2;
  // Decode workers: most guesses at a stream's next tokens that a step checks
  // (scheduling/drafter.h).
  int32_t draft_tokens = 0;
  bool draft_always = false;
  // Decode workers on a device: give it a step before the tokens of the one
  // before are known.
  bool run_ahead = true;
  // Keep full KV blocks for prompts that begin alike.
  bool prefix_cache = true;
  // And so many bytes of them outside of KV memory (worker/kv_offload.h): in
  // this directory, or, without one, in the host's memory. 0: none.
  int64_t kv_offload_bytes = 0;
  std::string kv_offload_dir;
  // How long a draining worker goes on with what it has.
  double drain_seconds = 10;
  // "text" or "json" (common/log.h).
  std::string log_format = "text";
  int ready_fd = -1;
  bool die_with_parent = false;
};

// What `kv_staging` comes to.
bool StagesOnDevice(const WorkerOptions& options);

// Sets KV memory from "256MiB", or from "25%" of what is free once the weights
// are loaded. InvalidArgument, without the flag's name.
absl::Status ParseKvMemory(const std::string& text,
                           engine::EngineOptions* options);

// From "NAME=DIR", or "DIR", whose last part is then the name. InvalidArgument,
// without the flag's name.
absl::StatusOr<engine::AdapterSource> ParseAdapter(const std::string& text);

// Adds the flags to `app`; they write to `options` when it parses.
void AddFlags(CLI::App* app, WorkerOptions* options);
// And those that only dual workers have.
void AddDualFlags(CLI::App* app, WorkerOptions* options);

}  // namespace baton::worker
