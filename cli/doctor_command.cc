// `baton doctor`: what this machine offers, and what stands in the way.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <google/protobuf/util/json_util.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/cluster_report.h"
#include "cli/command.h"
#include "cli/host_port.h"
#include "cli/router_connection.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "model_tools/machine.h"

namespace baton::cli {
namespace {

using model_tools::Finding;
using model_tools::Machine;
using model_tools::WeightKind;
using nlohmann::ordered_json;

constexpr int64_t kKvBytes = int64_t{256} << 20;

constexpr absl::Duration kTimeout = absl::Seconds(5);

struct DoctorFlags {
  RouterFlags router{.address = ""};
  std::string model;
  bool no_measure = false;
  bool json = false;
};

struct Fit {
  const char* weights;
  int64_t bytes;  // of one worker
  bool fits;
};

struct Diagnosis {
  Machine machine;
  std::vector<Finding> findings;
  std::vector<model_tools::MeasuredCeilings> ceilings;
  std::vector<Fit> fits;  // with --model

  bool healthy() const {
    for (const Finding& finding : findings) {
      if (finding.is_problem) return false;
    }
    return true;
  }
};

absl::StatusOr<Diagnosis> Examine(const DoctorFlags& flags) {
  Diagnosis d;
  d.machine = model_tools::ReadMachine();
  d.findings = model_tools::FindTrouble(d.machine);
  if (!flags.model.empty()) {
    BATON_ASSIGN_OR_RETURN(const engine::ModelConfig config,
                           engine::LoadModelConfig(flags.model));
    bool any = false;
    std::vector<WeightKind> kinds = {WeightKind::kBf16, WeightKind::kInt8,
                                     WeightKind::kInt4};
    if (config.quantization.method ==
        engine::QuantizationConfig::Method::kMxfp4) {
      kinds.insert(kinds.begin() + 1, WeightKind::kMxfp4);
    }
    for (const WeightKind kind : kinds) {
      const int64_t bytes = model_tools::WorkerBytes(config, kind, kKvBytes);
      const bool fits = bytes <= d.machine.memory.Free();
      d.fits.push_back({model_tools::WeightKindName(kind), bytes, fits});
      any = any || fits;
    }
    if (!any) {
      d.findings.push_back(
          {true, absl::StrCat(flags.model, " does not fit in memory")});
    }
  }
  if (!flags.no_measure) {
    BATON_ASSIGN_OR_RETURN(d.ceilings,
                           model_tools::MeasureMachine(d.machine.usable_cpus));
  }
  return d;
}

double GiB(int64_t bytes) { return bytes / 0x1p30; }

void Print(const Diagnosis& d) {
  const Machine& m = d.machine;
  std::printf("CPU            %s\n",
              m.cpu_model.empty() ? "unknown" : m.cpu_model.c_str());
  std::printf("instructions   %s\n",
              absl::StrJoin(m.instruction_sets, " ").c_str());
  std::printf("kernels        %s (of %s)\n", m.kernel_sets.front().c_str(),
              absl::StrJoin(m.kernel_sets, ", ").c_str());
  std::printf(
      "CPUs           %d of %d%s\n", m.usable_cpus, m.cpus,
      m.cpu_quota ? absl::StrFormat(", quota %.2f", *m.cpu_quota).c_str() : "");
  std::printf(
      "memory         %.1f GiB available of %.1f GiB%s\n",
      GiB(m.memory.available), GiB(m.memory.total),
      m.memory.limit
          ? absl::StrFormat(", control group uses %.1f of %.1f GiB",
                            GiB(m.memory.limit_used), GiB(*m.memory.limit))
                .c_str()
          : "");
  std::printf("huge pages     %s\n",
              m.huge_pages.empty() ? "unknown" : m.huge_pages.c_str());
  for (const model_tools::MeasuredCeilings& c : d.ceilings) {
    std::printf(
        "%2d thread%s     %.0f bf16 GFLOP/s, %.0f int8 GOP/s, reads %.1f "
        "GB/s\n",
        c.threads, c.threads == 1 ? " " : "s", c.ceilings.bf16_gflops,
        c.ceilings.int8_gops, c.ceilings.memory_gbs);
  }
  for (const Fit& fit : d.fits) {
    std::printf("%-5s worker   %.2f GiB with 256 MiB of KV: %s\n", fit.weights,
                GiB(fit.bytes), fit.fits ? "fits" : "does not fit");
  }
  for (const Finding& finding : d.findings) {
    std::printf("%s %s\n", finding.is_problem ? "problem:" : "note:",
                finding.text.c_str());
  }
  if (d.findings.empty()) std::printf("No trouble found.\n");
}

ordered_json ToJson(const Diagnosis& d) {
  const Machine& m = d.machine;
  ordered_json json = {{"kind", "baton doctor"},
                       {"version", 1},
                       {"cpu_model", m.cpu_model},
                       {"instruction_sets", m.instruction_sets},
                       {"kernel_sets", m.kernel_sets},
                       {"cpus", m.cpus},
                       {"usable_cpus", m.usable_cpus},
                       {"memory_total", m.memory.total},
                       {"memory_available", m.memory.available},
                       {"memory_usable", m.memory.Free()},
                       {"huge_pages", m.huge_pages}};
  if (m.cpu_quota) json["cpu_quota"] = *m.cpu_quota;
  if (m.memory.limit) json["memory_limit"] = *m.memory.limit;
  json["ceilings"] = ordered_json::array();
  for (const model_tools::MeasuredCeilings& c : d.ceilings) {
    json["ceilings"].push_back({{"threads", c.threads},
                                {"bf16_gflops", c.ceilings.bf16_gflops},
                                {"int8_gops", c.ceilings.int8_gops},
                                {"memory_gbs", c.ceilings.memory_gbs}});
  }
  json["model"] = ordered_json::array();
  for (const Fit& fit : d.fits) {
    json["model"].push_back({{"weights", fit.weights},
                             {"worker_bytes", fit.bytes},
                             {"fits", fit.fits}});
  }
  json["findings"] = ordered_json::array();
  for (const Finding& finding : d.findings) {
    json["findings"].push_back(
        {{"problem", finding.is_problem}, {"text", finding.text}});
  }
  json["healthy"] = d.healthy();
  return json;
}

absl::StatusOr<v1::GetClusterResponse> AskCluster(const RouterFlags& flags) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<client::Client> router,
                         ConnectToRouter(flags, kTimeout));
  return router->GetCluster(kTimeout);
}

int ExamineCluster(const DoctorFlags& flags) {
  const auto cluster = AskCluster(flags.router);
  if (!cluster.ok()) {
    std::fprintf(stderr, "baton doctor: %s\n",
                 std::string(cluster.status().message()).c_str());
    return kExitFailed;
  }
  if (flags.json) {
    google::protobuf::util::JsonPrintOptions format;
    format.preserve_proto_field_names = true;
    format.always_print_primitive_fields = true;
    std::string text;
    if (!google::protobuf::util::MessageToJsonString(*cluster, &text, format)
             .ok()) {
      return kExitFailed;
    }
    std::printf("%s\n", text.c_str());
  } else {
    std::printf("%s", FormatCluster(*cluster).c_str());
  }
  const std::vector<ClusterFinding> findings = FindTrouble(*cluster);
  const bool healthy =
      std::none_of(findings.begin(), findings.end(),
                   [](const ClusterFinding& f) { return f.is_problem; });
  return healthy ? kExitOk : kExitFailed;
}

int RunDoctor(const DoctorFlags& flags) {
  if (!flags.router.address.empty()) return ExamineCluster(flags);
  const auto diagnosis = Examine(flags);
  if (!diagnosis.ok()) {
    std::fprintf(stderr, "baton doctor: %s\n",
                 std::string(diagnosis.status().message()).c_str());
    return kExitFailed;
  }
  if (flags.json) {
    std::printf("%s\n",
                ToJson(*diagnosis)
                    .dump(1, ' ', false, ordered_json::error_handler_t::replace)
                    .c_str());
  } else {
    Print(*diagnosis);
  }
  return diagnosis->healthy() ? kExitOk : kExitFailed;
}

}  // namespace

void AddDoctorCommand(CLI::App* app, const std::string& program,
                      Command* chosen) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* doctor = app->add_subcommand(
      "doctor", "Show what this machine offers, and what is wrong with it");
  doctor
      ->add_option("--router", flags->router.address,
                   "HOST:PORT of a router: examine its workers and the links "
                   "between them instead")
      ->check([](const std::string& text) {
        return std::string(ParseHostPort(text).status().message());
      });
  doctor->add_option("--model", flags->model,
                     "Whether this model (directory or GGUF file) fits");
  doctor->add_flag("--no-measure", flags->no_measure,
                   "Do not measure CPU and memory");
  doctor->add_flag("--json", flags->json, "As JSON");
  AddCredentialFlags(doctor, &flags->router);
  doctor->footer(
      absl::StrCat("Exit status 1 when there is a problem.\nExample:\n  ",
                   program, " doctor --model models/stories\n  ", program,
                   " doctor --router 127.0.0.1:8600\n"));
  doctor->callback(
      [flags, chosen] { *chosen = [flags] { return RunDoctor(*flags); }; });
}

}  // namespace baton::cli
