// Where `baton plan` has the costs of workers from: a file, a known GPU, or a
// cluster that runs.
#pragma once

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

#include "absl/status/statusor.h"
#include "planner/profile.h"

namespace baton::cli {

struct ProfileFlags {
  std::string file;
  std::string gpu;
  std::string shape;
  std::string model;
  std::string weights = "bf16";
  int32_t gpus_per_worker = 1;
  double compute_efficiency = 0.6;
  double memory_efficiency = 0.8;
  int32_t expert_streams = 0;
  std::string write;
};

// `flags` must outlive the parsing.
void AddProfileFlags(CLI::App* command, ProfileFlags* flags);

// By the flags; writes the file that --write-profile names, too.
// InvalidArgument names the flag, or file and field.
absl::StatusOr<planner::ClusterProfile> MakeProfile(const ProfileFlags& flags);

}  // namespace baton::cli
