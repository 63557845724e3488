#include "model_tools/machine.h"

#include <sched.h>

#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/process/cpu_quota.h"
#include "common/process/memory.h"
#include "common/process/proc_file.h"
#include "common/status_macros.h"
#include "engine/cpu/kernel_choice.h"
#include "model_tools/model_tensors.h"

namespace baton::model_tools {
namespace {

constexpr int64_t kLittleMemory = int64_t{1} << 30;

constexpr absl::string_view kInstructionSets[] = {
    "avx2",        "fma",         "f16c",     "avx_vnni",
    "avx512f",     "avx512bw",    "avx512vl", "avx512dq",
    "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"};

// The value of "name : value" or "name: value".
std::string Field(const std::string& text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::StripAsciiWhitespace(parts.first) == name) {
      return std::string(absl::StripAsciiWhitespace(parts.second));
    }
  }
  return "";
}

// "always [madvise] never".
std::string ChosenOf(const std::string& text) {
  const size_t begin = text.find('[');
  const size_t end = text.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    return "";
  }
  return text.substr(begin + 1, end - begin - 1);
}

void ReadCpus(const std::string& root, Machine* machine) {
  const std::string info = process::ReadProcFile(root + "/proc/cpuinfo");
  machine->cpu_model = Field(info, "model name");
  const std::string flags_text = Field(info, "flags");
  const std::set<absl::string_view> flags =
      absl::StrSplit(flags_text, ' ', absl::SkipEmpty());
  for (const absl::string_view name : kInstructionSets) {
    if (flags.count(name) > 0) machine->instruction_sets.emplace_back(name);
  }
  for (absl::string_view line : absl::StrSplit(info, '\n')) {
    if (absl::StartsWith(line, "processor")) ++machine->cpus;
  }
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    machine->usable_cpus = CPU_COUNT(&set);
  }
}

}  // namespace

Machine ReadMachine(const std::string& root) {
  Machine machine;
  ReadCpus(root, &machine);
  for (const engine::cpu::Kernels* kernels : engine::cpu::AvailableKernels()) {
    machine.kernel_sets.emplace_back(kernels->name);
  }
  machine.memory = process::ReadMemory(root);
  machine.cpu_quota = process::CpuQuota(root);
  machine.huge_pages = ChosenOf(process::ReadProcFile(
      root + "/sys/kernel/mm/transparent_hugepage/enabled"));
  return machine;
}

std::vector<Finding> FindTrouble(const Machine& machine) {
  std::vector<Finding> findings;
  const auto problem = [&](std::string text) {
    findings.push_back({true, std::move(text)});
  };
  if (machine.kernel_sets.size() == 1) {
    problem(
        "this CPU has no instruction set that Baton has fast kernels for "
        "(AVX2, or AVX-512 with BF16): expect a tenth of the speed");
  }
  if (machine.cpu_quota && *machine.cpu_quota < 1.0) {
    problem(absl::StrFormat(
        "the control group allows %.2f CPUs: every step waits for its share",
        *machine.cpu_quota));
  } else if (machine.cpu_quota && *machine.cpu_quota < machine.usable_cpus) {
    findings.push_back(
        {false, absl::StrFormat(
                    "the control group allows %.1f CPUs of %d: so many threads "
                    "should all workers have together",
                    *machine.cpu_quota, machine.usable_cpus)});
  }
  if (machine.memory.total > 0 && machine.memory.Free() < kLittleMemory) {
    problem(absl::StrFormat("only %.2f GiB of memory can be used",
                            machine.memory.Free() / 0x1p30));
  }
  if (machine.huge_pages == "never") {
    findings.push_back(
        {false,
         "transparent huge pages are off: reading weights is slower; write "
         "\"madvise\" to /sys/kernel/mm/transparent_hugepage/enabled"});
  }
  return findings;
}

absl::StatusOr<std::vector<MeasuredCeilings>> MeasureMachine(
    int32_t usable_cpus) {
  std::vector<MeasuredCeilings> measured;
  for (const int32_t threads : {1, usable_cpus}) {
    if (!measured.empty() && threads <= 1) continue;
    engine::cpu::CeilingOptions options;
    options.num_threads = threads;
    options.time_each = absl::Milliseconds(150);
    options.memory_bytes = int64_t{256} << 20;
    BATON_ASSIGN_OR_RETURN(const engine::cpu::Ceilings ceilings,
                           engine::cpu::MeasureCeilings(options));
    measured.push_back({threads, ceilings});
  }
  return measured;
}

int64_t WorkerBytes(const engine::ModelConfig& config, WeightKind kind,
                    int64_t kv_bytes) {
  // The embedding is read from its file as it is, a row per token; nearly
  // always 2 bytes an element.
  return static_cast<int64_t>(LayerMatrixBytes(config, kind) +
                              HeadBytes(config, kind)) +
         2 * HeadParameters(config) + kv_bytes;
}

}  // namespace baton::model_tools
