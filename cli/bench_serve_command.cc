// `baton bench serve`: load on a server, and what it makes of it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench_serve_report.h"
#include "cli/bench_serve_workload.h"
#include "cli/command.h"
#include "cli/finite_range.h"
#include "cli/stop_signals.h"
#include "common/process/process.h"
#include "common/status_macros.h"
#include "load_generator/capacity.h"
#include "load_generator/grpc_target.h"
#include "load_generator/http_target.h"
#include "load_generator/runner.h"
#include "load_generator/summary.h"
#include "common/output_file.h"

namespace baton::cli {
namespace {

using load_generator::RequestRecord;
using load_generator::RunOptions;
using load_generator::Summary;
using load_generator::Target;

struct BenchServeFlags {
  std::string url = "http://127.0.0.1:8000";
  std::string grpc;
  std::string model;
  std::string api_key;

  WorkloadFlags workload;
  double ttft_ms = 0;
  double itl_ms = 0;
  bool capacity = false;
  double attainment = 0.9;
  double precision = 0.05;
  int32_t trials = 12;

  double timeout = 600;
  bool text = false;
  std::string token_range = "100-1999";
  std::string json;
  std::string html;
  bool records = false;
  bool quiet = false;
};

absl::StatusOr<std::unique_ptr<Target>> Connect(const BenchServeFlags& flags) {
  if (!flags.grpc.empty()) {
    return load_generator::CreateGrpcTarget(
        {.address = flags.grpc, .api_key = flags.api_key});
  }
  load_generator::HttpTargetOptions options{
      .url = flags.url, .model = flags.model, .api_key = flags.api_key};
  if (options.model.empty()) {
    BATON_ASSIGN_OR_RETURN(options.model,
                           load_generator::FirstModel(flags.url, flags.api_key,
                                                      absl::Seconds(10)));
  }
  return load_generator::CreateHttpTarget(options);
}

// One line that is written over, on a terminal; else a line every ten seconds.
class LoadLine final {
 public:
  explicit LoadLine(bool quiet)
      : quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1) {}

  void Show(const load_generator::Progress& p) {
    if (quiet_) return;
    const double seconds = absl::ToDoubleSeconds(p.elapsed);
    if (!terminal_ && seconds < next_) return;
    next_ = seconds + 10;
    const double events = static_cast<double>(p.output_events - events_) /
                          std::max(seconds - seconds_, 1e-3);
    events_ = p.output_events;
    seconds_ = seconds;
    std::fprintf(
        stderr,
        "%s%6.0f s  sent %lld of %lld  open %lld  finished %lld  "
        "not %lld  %.0f tokens/s%s",
        terminal_ ? "\r\033[K" : "", seconds, static_cast<long long>(p.sent),
        static_cast<long long>(p.planned), static_cast<long long>(p.open),
        static_cast<long long>(p.finished),
        static_cast<long long>(p.not_finished), events, terminal_ ? "" : "\n");
    std::fflush(stderr);
    shown_ = terminal_;
  }

  void Clear() {
    if (shown_) std::fputs("\r\033[K", stderr);
    shown_ = false;
    next_ = seconds_ = 0;
    events_ = 0;
  }

 private:
  const bool quiet_;
  const bool terminal_;
  bool shown_ = false;
  double next_ = 0;
  double seconds_ = 0;
  int64_t events_ = 0;
};

class ServeBench final {
 public:
  ServeBench(const BenchServeFlags& flags, WorkloadSource source,
             std::unique_ptr<Target> target, workload::TokenRange tokens)
      : flags_(flags),
        source_(std::move(source)),
        target_(std::move(target)),
        tokens_(tokens),
        targets_{absl::Milliseconds(flags.ttft_ms),
                 absl::Milliseconds(flags.itl_ms)},
        line_(flags.quiet) {}

  absl::StatusOr<BenchServeReport> Run() {
    BenchServeReport report;
    report.target = flags_.grpc.empty() ? flags_.url : flags_.grpc;
    report.targets = targets_;
    if (flags_.capacity) {
      BATON_ASSIGN_OR_RETURN(report.capacity, Search(&report));
      return report;
    }
    BATON_RETURN_IF_ERROR(
        One(flags_.workload.rate_given ? flags_.workload.rate : 0, &report)
            .status());
    return report;
  }

  bool interrupted() const { return interrupted_; }

 private:
  // Leaves what it measured in the report.
  absl::StatusOr<Summary> One(double rate, BenchServeReport* report) {
    BATON_ASSIGN_OR_RETURN(const WorkloadPlan plan, source_.Make(rate));
    RunOptions options;
    options.concurrency = flags_.workload.concurrency;
    options.timeout = absl::Seconds(flags_.timeout);
    options.seed = flags_.workload.seed;
    options.text = flags_.text;
    options.token_range = tokens_;
    options.on_progress = [this](const load_generator::Progress& progress) {
      line_.Show(progress);
      interrupted_ = signals_.Take() != 0;
      return !interrupted_;
    };
    report->records =
        load_generator::RunWorkload(plan.requests, target_.get(), options);
    line_.Clear();
    absl::Duration window = plan.window;
    if (flags_.workload.concurrency > 0) {
      for (const RequestRecord& record : report->records) {
        window = std::max(window, record.ended_at);
      }
    }
    report->too_long = plan.too_long;
    report->summary =
        load_generator::Summarize(report->records, targets_, window);
    return report->summary;
  }

  absl::StatusOr<load_generator::Capacity> Search(BenchServeReport* report) {
    load_generator::CapacityOptions options;
    options.first_rate = flags_.workload.rate;
    options.attainment = flags_.attainment;
    options.precision = flags_.precision;
    options.max_trials = flags_.trials;
    return load_generator::FindCapacity(
        options,
        [&](double rate) -> absl::StatusOr<load_generator::CapacityTrial> {
          BATON_ASSIGN_OR_RETURN(const Summary summary, One(rate, report));
          if (interrupted_) return absl::CancelledError("interrupted");
          if (!flags_.quiet) {
            std::fprintf(stderr,
                         "%8.2f per second: attainment %5.1f%%, goodput %.2f\n",
                         rate, 100 * summary.attainment, summary.goodput);
          }
          return load_generator::CapacityTrial{rate, summary.attainment,
                                               summary.goodput};
        });
  }

  const BenchServeFlags& flags_;
  const WorkloadSource source_;
  const std::unique_ptr<Target> target_;
  const workload::TokenRange tokens_;
  const load_generator::Targets targets_;
  StopSignalFd signals_;
  LoadLine line_;
  bool interrupted_ = false;
};

absl::StatusOr<int> MeasureServer(const BenchServeFlags& flags) {
  BATON_ASSIGN_OR_RETURN(const auto ids,
                         ParseRange("--token-range", flags.token_range, 0));
  const workload::TokenRange tokens = {
      static_cast<uint32_t>(ids.first),
      static_cast<uint32_t>(ids.second - ids.first + 1)};
  BATON_ASSIGN_OR_RETURN(WorkloadSource source,
                         WorkloadSource::Open(flags.workload));
  // What is wrong with the plan is said before anybody is asked for anything.
  BATON_RETURN_IF_ERROR(source.Make(0).status());
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Target> target, Connect(flags));
  ServeBench bench(flags, std::move(source), std::move(target), tokens);
  BATON_ASSIGN_OR_RETURN(const BenchServeReport report, bench.Run());
  const std::string json =
      absl::StrCat(BenchServeJson(report, flags.records).dump(1), "\n");
  if (flags.json == "-") {
    std::fputs(json.c_str(), stdout);
  } else {
    std::fputs(BenchServeText(report).c_str(), stdout);
  }
  if (!flags.json.empty() && flags.json != "-") {
    BATON_RETURN_IF_ERROR(WriteTextFile(flags.json, json));
  }
  if (!flags.html.empty()) {
    BATON_RETURN_IF_ERROR(
        WriteTextFile(flags.html, BenchServeHtml(report)));
  }
  return bench.interrupted() ? kExitInterrupted : kExitOk;
}

int RunBenchServe(const BenchServeFlags& flags) {
  // Before there are threads: Ctrl-C ends the run, and shows what there is.
  process::SetUpSignals(/*die_with_parent=*/false);
  const absl::StatusOr<int> code = MeasureServer(flags);
  if (code.ok()) return *code;
  std::fprintf(stderr, "baton bench serve: %s\n",
               std::string(code.status().message()).c_str());
  return absl::IsInvalidArgument(code.status()) ? kExitBadFlags : kExitFailed;
}

}  // namespace

void AddBenchServeCommand(CLI::App* bench, const std::string& program,
                          Command* chosen) {
  auto flags = std::make_shared<BenchServeFlags>();
  BenchServeFlags* f = flags.get();
  CLI::App* serve = bench->add_subcommand(
      "serve", "Put load on a server: latencies, goodput, capacity");
  serve->add_option("--url", f->url, "Any server of the OpenAI API")
      ->capture_default_str();
  serve->add_option("--grpc", f->grpc, "A Baton router over gRPC, HOST:PORT");
  serve->add_option("--model", f->model,
                    "As the server calls it; the first that it lists");
  serve->add_option("--api-key", f->api_key, "Sent with each request")
      ->envname("BATON_API_KEY");
  AddWorkloadFlags(serve, &f->workload);
  serve
      ->add_option("--ttft", f->ttft_ms,
                   "Target in ms: time to the first token; 0: none")
      ->check(FiniteRange(0.0, 1e9));
  serve
      ->add_option("--itl", f->itl_ms,
                   "Target in ms: time per output token; 0: none")
      ->check(FiniteRange(0.0, 1e9));
  serve->add_flag("--capacity", f->capacity,
                  "Searches the highest rate that keeps --attainment");
  serve
      ->add_option("--attainment", f->attainment,
                   "Share of requests that must meet the targets")
      ->check(FiniteRange(0.01, 1.0))
      ->capture_default_str();
  serve->add_option("--precision", f->precision, "Of the rate that is found")
      ->check(FiniteRange(0.001, 1.0))
      ->capture_default_str();
  serve->add_option("--trials", f->trials, "Most runs of a search")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  serve->add_option("--timeout", f->timeout, "Seconds until one is given up")
      ->check(FiniteRange(0.1, 1e5))
      ->capture_default_str();
  serve->add_flag("--text", f->text,
                  "Prompts of words, for servers that take no token ids");
  serve->add_option("--token-range", f->token_range, "Ids of prompts")
      ->capture_default_str();
  serve->add_option("--json", f->json,
                    "File for the numbers; - for standard output");
  serve->add_option("--html", f->html, "File for a report with plots");
  serve->add_flag("--records", f->records, "Each request in the JSON, too");
  serve->add_flag("-q,--quiet", f->quiet, "Do not say how things go");
  serve->footer(absl::StrCat(
      "Examples:\n  ", program,
      " bench serve --rate 4 --duration 30 --ttft 500 --itl 50\n  ", program,
      " bench serve --trace conversation.csv --time-scale 0.5 --max-context "
      "2048\n  ",
      program, " bench serve --capacity --rate 2 --ttft 500 --itl 50\n"));
  serve->callback(
      [flags, chosen] { *chosen = [flags] { return RunBenchServe(*flags); }; });
}

}  // namespace baton::cli
