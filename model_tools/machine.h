// What this machine, and this process on it, has for running a model; and what
// stands in the way.
//
// Linux: from /proc, /sys and the control groups (versions 1 and 2). What
// cannot be read is left out. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/process/memory.h"
#include "engine/cpu/ceilings.h"
#include "engine/model_config.h"
#include "model_tools/model_costs.h"

namespace baton::model_tools {

struct Machine {
  std::string cpu_model;
  // Of those that matter to an engine: "avx2", "avx512_bf16", ...
  std::vector<std::string> instruction_sets;
  // Kernel sets that this CPU can run, the best (which Baton takes) first.
  std::vector<std::string> kernel_sets;
  // On the machine, and those that this process may run on.
  int32_t cpus = 0;
  int32_t usable_cpus = 0;
  // The control group's share, in CPUs.
  std::optional<double> cpu_quota;
  process::MemoryState memory;
  // "always", "madvise" or "never"; empty when not known.
  std::string huge_pages;
};

// `root` is put before every path; empty but for tests.
Machine ReadMachine(const std::string& root = "");

struct Finding {
  // Something works badly or not at all; else, it could be better.
  bool is_problem = false;
  std::string text;
};

std::vector<Finding> FindTrouble(const Machine& machine);

struct MeasuredCeilings {
  int32_t threads = 0;
  engine::cpu::Ceilings ceilings;
};

// What one thread can do, and all `usable_cpus` together. Blocks for about two
// seconds. Errors as engine::cpu::MeasureCeilings.
absl::StatusOr<std::vector<MeasuredCeilings>> MeasureMachine(
    int32_t usable_cpus);

// Bytes that one worker needs for a model: its matrices, the embedding, and
// `kv_bytes`.
int64_t WorkerBytes(const engine::ModelConfig& config, WeightKind kind,
                    int64_t kv_bytes);

}  // namespace baton::model_tools
