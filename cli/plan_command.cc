// `baton plan`: how many workers of each kind a load takes, by simulation.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/bench_serve_workload.h"
#include "cli/command.h"
#include "cli/finite_range.h"
#include "cli/plan_profile.h"
#include "cli/plan_report.h"
#include "common/json.h"
#include "common/output_file.h"
#include "common/status_macros.h"
#include "planner/plan_search.h"
#include "scheduling/placement_policies.h"

namespace baton::cli {
namespace {

using planner::Load;
using planner::PlanTrial;

struct PlanFlags {
  ProfileFlags profile;
  WorkloadFlags workload;
  double ttft_ms = 0;
  double itl_ms = 0;
  double attainment = 0.9;
  std::string workers = "1-256";
  int32_t prefill = -1;  // below zero: the search's affair
  int32_t decode = -1;
  bool dual = false;
  std::string mode = "default";
  std::string placement = "cost-model";
  double timeout = 600;
  bool no_sensitivity = false;
  std::string json;
  std::string html;
  bool quiet = false;
};

// Each prefill worker knows each decode worker.
constexpr int32_t kMostWorkers = 10'000;

const std::vector<double>& Factors() {
  static const auto* factors = new std::vector<double>{0.5, 0.75, 1, 1.5, 2};
  return *factors;
}

// What is wrong with flags that go together.
absl::Status CheckFlags(const PlanFlags& flags) {
  if (flags.workload.concurrency > 0) {
    return absl::InvalidArgumentError(
        "--concurrency: a plan is for requests that come at their own times");
  }
  if ((flags.prefill >= 0) != (flags.decode >= 0)) {
    return absl::InvalidArgumentError(
        "--prefill and --decode go together: both, or --workers");
  }
  if (int64_t{flags.prefill} + flags.decode > kMostWorkers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--prefill and --decode: at most ", kMostWorkers, " workers"));
  }
  if (flags.dual && flags.decode < 0) {
    return absl::InvalidArgumentError(
        "--dual: for --prefill and --decode only, which say how workers begin");
  }
  if (flags.dual && flags.mode == "aggregated") {
    return absl::InvalidArgumentError(
        "--dual: with --mode aggregated there are no prefill workers");
  }
  if (flags.mode == "aggregated" && flags.prefill > 0) {
    return absl::InvalidArgumentError(
        "--prefill: with --mode aggregated there are no prefill workers");
  }
  if (flags.mode == "disaggregated" && flags.prefill == 0) {
    return absl::InvalidArgumentError(
        "--prefill: with --mode disaggregated at least 1");
  }
  return absl::OkStatus();
}

class Planner final {
 public:
  Planner(const PlanFlags& flags, WorkloadSource source)
      : flags_(flags), source_(std::move(source)) {}

  absl::StatusOr<PlanReport> Run() {
    const absl::Time start = absl::Now();
    PlanReport report;
    BATON_ASSIGN_OR_RETURN(report.simulation.profile,
                           MakeProfile(flags_.profile));
    report.source = report.simulation.profile.source;
    report.attainment = flags_.attainment;
    planner::SimulationOptions& simulation = report.simulation;
    simulation.placement = flags_.placement;
    simulation.allow_local_prefill = flags_.mode != "disaggregated";
    simulation.dual_workers = flags_.dual;
    simulation.targets = {absl::Milliseconds(flags_.ttft_ms),
                          absl::Milliseconds(flags_.itl_ms)};
    simulation.timeout_seconds = flags_.timeout;
    BATON_ASSIGN_OR_RETURN(const Load load, MakeLoad(1, &report));
    BATON_ASSIGN_OR_RETURN(report.plan, Search(load, simulation));
    simulation.num_prefill = report.plan.best.num_prefill;
    simulation.num_decode = report.plan.best.num_decode;
    if (!flags_.no_sensitivity) {
      Say("loads and targets around it");
      BATON_ASSIGN_OR_RETURN(
          report.sensitivity,
          Sensitivity(simulation, Factors(), Factors(), [&](double factor) {
            return MakeLoad(factor, nullptr);
          }));
    }
    report.simulations =
        simulations_ + static_cast<int64_t>(report.sensitivity.size());
    report.seconds = absl::ToDoubleSeconds(absl::Now() - start);
    return report;
  }

 private:
  // Describes itself in the report, if there is one.
  absl::StatusOr<Load> MakeLoad(double factor, PlanReport* report) {
    const bool trace = !flags_.workload.trace.empty();
    double rate = 0;  // its own
    if (!trace) rate = flags_.workload.rate * factor;
    if (trace && flags_.workload.rate_given) rate = flags_.workload.rate;
    BATON_ASSIGN_OR_RETURN(WorkloadPlan plan, source_.Make(rate));
    if (trace) {
      for (workload::PlannedRequest& request : plan.requests) {
        request.at /= factor;
      }
      plan.window /= factor;
    }
    if (report != nullptr) {
      report->requests = static_cast<int64_t>(plan.requests.size());
      report->window_seconds = absl::ToDoubleSeconds(plan.window);
      report->too_long = plan.too_long;
      double prompts = 0;
      double outputs = 0;
      for (const workload::PlannedRequest& request : plan.requests) {
        prompts += request.prompt_tokens;
        outputs += request.output_tokens;
      }
      const auto count = static_cast<double>(plan.requests.size());
      report->mean_prompt = prompts / count;
      report->mean_output = outputs / count;
    }
    return Load{std::move(plan.requests), plan.window};
  }

  absl::StatusOr<planner::Plan> Search(
      const Load& load, const planner::SimulationOptions& simulation) {
    planner::PlanOptions options;
    options.simulation = simulation;
    options.attainment = flags_.attainment;
    options.progress = [this](const PlanTrial& trial) { Tell(trial); };
    if (flags_.decode >= 0) return Fixed(load, options);
    BATON_ASSIGN_OR_RETURN(const auto workers,
                           ParseRange("--workers", flags_.workers, 1));
    options.least_workers = workers.first;
    options.most_workers = workers.second;
    if (workers.second > kMostWorkers) {
      return absl::InvalidArgumentError(
          absl::StrCat("--workers: at most ", kMostWorkers));
    }
    if (!simulation.allow_local_prefill && workers.second < 2) {
      return absl::InvalidArgumentError(
          "--workers: with --mode disaggregated at least 2");
    }
    options.simulation.num_prefill = simulation.allow_local_prefill ? 0 : 1;
    options.simulation.num_decode = 1;
    BATON_RETURN_IF_ERROR(Validate(options.simulation));
    options.only_aggregated = flags_.mode == "aggregated";
    planner::PlanSearch search(options, &load);
    return workers.first == workers.second ? search.BestSplit(workers.first)
                                           : search.Find();
  }

  // The cluster that the user gave.
  absl::StatusOr<planner::Plan> Fixed(const Load& load,
                                      planner::PlanOptions options) {
    options.simulation.num_prefill = flags_.prefill;
    options.simulation.num_decode = flags_.decode;
    BATON_RETURN_IF_ERROR(Validate(options.simulation));
    planner::Plan plan;
    plan.best.num_prefill = flags_.prefill;
    plan.best.num_decode = flags_.decode;
    plan.best.result = Simulate(options.simulation, load.requests, load.window);
    Tell(plan.best);
    plan.found = plan.best.result.attainment >= flags_.attainment;
    plan.splits = {plan.best};
    return plan;
  }

  void Tell(const PlanTrial& trial) {
    ++simulations_;
    if (flags_.quiet) return;
    std::fprintf(stderr, "%4d prefill + %4d decode: attainment %s%.1f%%\n",
                 trial.num_prefill, trial.num_decode,
                 trial.result.stopped_early ? "below " : "",
                 100 * (trial.result.stopped_early ? flags_.attainment
                                                   : trial.result.attainment));
  }
  void Say(const char* what) const {
    if (!flags_.quiet) std::fprintf(stderr, "%s\n", what);
  }

  const PlanFlags& flags_;
  const WorkloadSource source_;
  int64_t simulations_ = 0;
};

absl::StatusOr<int> MakePlan(const PlanFlags& flags) {
  BATON_RETURN_IF_ERROR(CheckFlags(flags));
  BATON_ASSIGN_OR_RETURN(WorkloadSource source,
                         WorkloadSource::Open(flags.workload));
  Planner planner(flags, std::move(source));
  BATON_ASSIGN_OR_RETURN(const PlanReport report, planner.Run());
  const std::string json =
      absl::StrCat(PlanJson(report).dump(
                       1, ' ', false, nlohmann::json::error_handler_t::replace),
                   "\n");
  std::fputs(flags.json == "-" ? json.c_str() : PlanText(report).c_str(),
             stdout);
  if (!flags.json.empty() && flags.json != "-") {
    BATON_RETURN_IF_ERROR(WriteTextFile(flags.json, json));
  }
  if (!flags.html.empty()) {
    BATON_RETURN_IF_ERROR(WriteTextFile(flags.html, PlanHtml(report)));
  }
  return report.plan.found ? kExitOk : kExitFailed;
}

int RunPlan(const PlanFlags& flags) {
  const absl::StatusOr<int> code = MakePlan(flags);
  if (code.ok()) return *code;
  std::fprintf(stderr, "baton plan: %s\n",
               std::string(code.status().message()).c_str());
  return kExitBadFlags;
}

void AddSearchFlags(CLI::App* plan, PlanFlags* f) {
  plan->add_option("--ttft", f->ttft_ms,
                   "Target in ms: time to the first token; 0: none")
      ->check(FiniteRange(0.0, 1e9));
  plan->add_option("--itl", f->itl_ms,
                   "Target in ms: time per output token; 0: none")
      ->check(FiniteRange(0.0, 1e9));
  plan->add_option("--attainment", f->attainment,
                   "Share of requests that must meet the targets")
      ->check(FiniteRange(0.01, 1.0))
      ->capture_default_str();
  plan->add_option("--workers", f->workers,
                   "How many there may be, both kinds together: a number, or "
                   "a range of which the fewest are found")
      ->capture_default_str();
  plan->add_option("--prefill", f->prefill,
                   "With --decode: only this cluster is simulated")
      ->check(CLI::Range(0, 100'000));
  plan->add_option("--decode", f->decode, "With --prefill: decode workers")
      ->check(CLI::Range(1, 100'000));
  plan->add_flag("--dual", f->dual,
                 "Of these workers, each changes its role by what is asked for "
                 "(baton-worker); no prefix caches then");
  plan->add_option("--mode", f->mode,
                   "default: decided for each request; aggregated: no prefill "
                   "workers; disaggregated: decode workers compute no prompts")
      ->check(CLI::IsMember({"default", "aggregated", "disaggregated"}))
      ->capture_default_str();
  plan->add_option(
          "--placement", f->placement,
          absl::StrCat("How the router places: ",
                       absl::StrJoin(scheduling::PlacementPolicyNames(), ", ")))
      ->check(CLI::IsMember(scheduling::PlacementPolicyNames()))
      ->capture_default_str();
  plan->add_option("--timeout", f->timeout,
                   "Seconds until a request is given up")
      ->check(FiniteRange(0.1, 1e5))
      ->capture_default_str();
  plan->add_flag("--no-sensitivity", f->no_sensitivity,
                 "Leave out other loads and targets");
  plan->add_option("--json", f->json,
                   "File for the numbers; - for standard output");
  plan->add_option("--html", f->html, "File for a report with plots");
  plan->add_flag("-q,--quiet", f->quiet, "Do not say how things go");
}

}  // namespace

void AddPlanCommand(CLI::App* app, const std::string& program,
                    Command* chosen) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* plan = app->add_subcommand(
      "plan", "How many workers of each kind a load takes, by simulation");
  AddWorkloadFlags(plan, &flags->workload);
  AddSearchFlags(plan, flags.get());
  AddProfileFlags(plan, &flags->profile);
  AddPlanProfileCommand(plan, program, chosen);
  plan->footer(absl::StrCat(
      "Examples:\n  ", program,
      " plan --gpu H200 --model-shape Llama-3.1-8B --rate 50 --prompt-tokens "
      "2000\n    --output-tokens 300 --ttft 1000 --itl 30\n  ",
      program,
      " plan --profile cluster.json --trace conversation.csv --ttft 500 --itl "
      "50\n  ",
      program,
      " plan --profile cluster.json --prefill 2 --decode 6 --rate 20\n"));
  plan->callback([flags, chosen, plan] {
    if (!plan->get_subcommands().empty()) return;
    *chosen = [flags] { return RunPlan(*flags); };
  });
}

}  // namespace baton::cli
