// Profiles of workers that nobody has measured: what a step takes on a known
// GPU by what it has to compute and to read, from public figures of the device
// and the geometry of the model. An estimate to begin with: how far an engine
// comes on a device is in the efficiencies, which are the caller's.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "planner/profile.h"

namespace baton::planner {

struct Gpu {
  const char* name;
  // Of the data sheet: dense bf16, memory.
  double flops;             // per second
  double bytes_per_second;  // of memory
  double memory_bytes;
  // Of the network of one GPU in servers as they are sold.
  double link_bytes_per_second;
};

absl::Span<const Gpu> KnownGpus();

// Upper and lower case are the same. NotFound lists the names.
absl::StatusOr<Gpu> FindGpu(absl::string_view name);

// What costs depend on.
struct ModelGeometry {
  std::string name;
  // In the layers' matrices, and in the output head.
  double layer_parameters = 0;
  double head_parameters = 0;
  double weight_bytes = 0;  // of both
  // What a step of a decode worker reads of them; 0: all. Mixtures of experts
  // read those that their streams pass through.
  double decode_bytes = 0;
  int64_t kv_bytes_per_token = 0;
  // Each GPU of a worker has all of it, as with latent attention; else its
  // share of the heads.
  bool kv_on_each_gpu = false;
  int32_t num_layers = 0;
  int32_t q_size = 0;  // heads * head_dim
  int32_t max_context = 0;
};

struct RooflineOptions {
  int32_t gpus_per_worker = 1;  // tensor parallel, >= 1
  // How much of the data sheet an engine attains, in (0, 1].
  double compute_efficiency = 0.6;
  double memory_efficiency = 0.8;
};

// InvalidArgument when the model does not fit.
absl::StatusOr<ClusterProfile> RooflineProfile(const Gpu& gpu,
                                               const ModelGeometry& model,
                                               const RooflineOptions& options);

}  // namespace baton::planner
