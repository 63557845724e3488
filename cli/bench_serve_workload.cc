#include "cli/bench_serve_workload.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/finite_range.h"
#include "common/status_macros.h"
#include "workload/arrivals.h"
#include "workload/trace.h"
#include "workload/workload.h"

namespace baton::cli {
namespace {

// So many are kept in memory.
constexpr double kMaxRequests = 2e7;

using workload::ArrivalKind;
using workload::PlannedRequest;

workload::ArrivalOptions ArrivalsOf(const WorkloadFlags& flags, double rate) {
  workload::ArrivalOptions arrivals;
  arrivals.kind = flags.arrivals == "constant"  ? ArrivalKind::kConstant
                  : flags.arrivals == "poisson" ? ArrivalKind::kPoisson
                                                : ArrivalKind::kBursts;
  arrivals.rate = rate;
  arrivals.burstiness = flags.burstiness;
  arrivals.seed = flags.seed;
  return arrivals;
}

}  // namespace

absl::StatusOr<std::pair<int32_t, int32_t>> ParseRange(const char* flag,
                                                       const std::string& text,
                                                       int32_t least) {
  const std::vector<std::string> ends = absl::StrSplit(text, '-');
  std::pair<int32_t, int32_t> range;
  if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &range.first) ||
      !absl::SimpleAtoi(ends.back(), &range.second) || range.first < least ||
      range.second < range.first || range.second > 100'000'000) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " \"", text, "\" is neither a number nor a range ",
                     "such as 32-128 (from ", least, ")"));
  }
  return range;
}

absl::StatusOr<WorkloadSource> WorkloadSource::Open(
    const WorkloadFlags& flags) {
  WorkloadSource source(flags);
  if (!flags.trace.empty()) {
    BATON_ASSIGN_OR_RETURN(const workload::TraceFormat format,
                           workload::TraceFormatOf(flags.trace));
    BATON_ASSIGN_OR_RETURN(source.trace_,
                           workload::ReadTrace(flags.trace, format));
    return source;
  }
  BATON_ASSIGN_OR_RETURN(source.prompt_,
                         ParseRange("--prompt-tokens", flags.prompt, 1));
  BATON_ASSIGN_OR_RETURN(source.output_,
                         ParseRange("--output-tokens", flags.output, 1));
  return source;
}

absl::StatusOr<WorkloadPlan> WorkloadSource::Make(double rate) const {
  const absl::Duration duration = absl::Seconds(flags_.duration);
  WorkloadPlan plan;
  if (!trace_.empty()) {
    plan = FromTrace(rate, duration);
  } else if (flags_.concurrency > 0) {
    plan.requests = Synthetic(1, absl::Seconds(2.0 * flags_.requests + 1));
    plan.requests.resize(static_cast<size_t>(flags_.requests));
  } else {
    const double of_load = rate > 0 ? rate : flags_.rate;
    if (of_load * flags_.duration > kMaxRequests) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--rate and --duration make %.3g requests, at most %.3g are possible",
          of_load * flags_.duration, kMaxRequests));
    }
    plan.requests = Synthetic(of_load, duration);
    plan.window = duration;
  }
  if (plan.requests.empty()) {
    return absl::InvalidArgumentError(
        plan.too_long > 0
            ? absl::StrCat("all ", plan.too_long,
                           " requests are longer than --max-context")
            : "no request comes in that time: a longer --duration, or a "
              "higher --rate");
  }
  return plan;
}

std::vector<PlannedRequest> WorkloadSource::Synthetic(
    double rate, absl::Duration duration) const {
  workload::SyntheticOptions options;
  options.arrivals = ArrivalsOf(flags_, rate);
  if (flags_.concurrency > 0) {
    options.arrivals.kind = ArrivalKind::kConstant;
  }
  options.prompt = {prompt_.first, prompt_.second};
  options.output = {output_.first, output_.second};
  options.shared_prefix = flags_.shared_prefix;
  options.duration = duration;
  options.seed = flags_.seed;
  return workload::MakeSynthetic(options);
}

WorkloadPlan WorkloadSource::FromTrace(double rate,
                                       absl::Duration duration) const {
  workload::Fitting fitting;
  fitting.time_scale = flags_.time_scale;
  fitting.length_scale = flags_.length_scale;
  if (flags_.max_context > 0) fitting.max_context = flags_.max_context;
  const bool own_times = rate == 0;
  if (own_times && flags_.duration_given) fitting.duration = duration;
  if (flags_.max_requests > 0) {
    fitting.max_requests = static_cast<size_t>(flags_.max_requests);
  }
  workload::Fitted fitted = workload::Fit(trace_, fitting);
  WorkloadPlan plan;
  plan.too_long = fitted.too_long;
  plan.requests = std::move(fitted.requests);
  if (!own_times) {
    plan.requests = workload::Fit(workload::AtRate(plan.requests, rate),
                                  {.duration = duration})
                        .requests;
  }
  if (plan.requests.empty()) return plan;
  const auto count = static_cast<double>(plan.requests.size());
  // With the gap that follows the last one.
  plan.window = (own_times && flags_.duration_given) || !own_times
                    ? duration
                    : plan.requests.back().at * (count / (count - 0.5));
  return plan;
}

void AddWorkloadFlags(CLI::App* command, WorkloadFlags* flags) {
  command
      ->add_option("--rate", flags->rate,
                   "Requests per second on average; of --capacity the first "
                   "that is tried")
      ->check(FiniteRange(1e-4, 1e6))
      ->each([flags](const std::string&) { flags->rate_given = true; })
      ->capture_default_str();
  command
      ->add_option("--duration", flags->duration,
                   "Seconds during which requests come")
      ->check(FiniteRange(0.01, 1e6))
      ->each([flags](const std::string&) { flags->duration_given = true; })
      ->capture_default_str();
  command->add_option("--arrivals", flags->arrivals, "How requests come")
      ->check(CLI::IsMember({"constant", "poisson", "bursts"}))
      ->capture_default_str();
  command
      ->add_option("--burstiness", flags->burstiness,
                   "Of bursts: coefficient of variation of the gaps")
      ->check(FiniteRange(0.01, 100.0))
      ->capture_default_str();
  command
      ->add_option("--prompt-tokens", flags->prompt,
                   "Length of prompts, or range")
      ->capture_default_str();
  command
      ->add_option("--output-tokens", flags->output,
                   "Length of answers, or range")
      ->capture_default_str();
  command
      ->add_option("--shared-prefix", flags->shared_prefix,
                   "Tokens that all prompts begin with")
      ->check(CLI::Range(0, 100'000'000))
      ->capture_default_str();
  command
      ->add_option("--concurrency", flags->concurrency,
                   "Closed loop: so many at a time; 0: each at its time")
      ->check(CLI::Range(0, 100'000))
      ->capture_default_str();
  command
      ->add_option("--requests", flags->requests, "Of a closed loop: how many")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
  command->add_option(
      "--trace", flags->trace,
      "Replays a trace: a .csv with Azure's columns, or a .jsonl "
      "with Mooncake's, prefixes included");
  command
      ->add_option("--time-scale", flags->time_scale,
                   "Of a trace: its times are multiplied by it")
      ->check(FiniteRange(1e-6, 1e6))
      ->capture_default_str();
  command
      ->add_option("--length-scale", flags->length_scale,
                   "Of a trace: its lengths are multiplied by it")
      ->check(FiniteRange(1e-6, 1e3))
      ->capture_default_str();
  command
      ->add_option("--max-requests", flags->max_requests,
                   "Of a trace: the first so many; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  command
      ->add_option("--max-context", flags->max_context,
                   "Of a trace: longer ones are left out; 0: none")
      ->check(CLI::Range(0, 100'000'000));
  command->add_option("--seed", flags->seed, "Of times, lengths and prompts")
      ->capture_default_str();
}

}  // namespace baton::cli
