// `baton batch`: a file of requests that may wait, answered into another file.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include <unistd.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "batch/batch_run.h"
#include "batch/calls.h"
#include "batch/request_file.h"
#include "batch/result_file.h"
#include "cli/command.h"
#include "cli/finite_range.h"
#include "cli/router_connection.h"
#include "cli/stop_signals.h"
#include "common/clock.h"
#include "common/process/process.h"
#include "common/status_macros.h"

namespace baton::cli {
namespace {

using batch::BatchEnd;
using batch::BatchProgress;

struct BatchFlags {
  std::string requests;
  std::string results;
  std::string url = "http://127.0.0.1:8000";
  RouterFlags credentials;
  int32_t max_in_flight = 64;
  int32_t priority = 0;
  bool priority_given = false;
  double timeout = 3600;
  double patience = 600;
  bool resume = false;
  bool quiet = false;
};

// One line that is written over, on a terminal; else one every ten seconds.
class BatchLine final {
 public:
  explicit BatchLine(bool quiet)
      : quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1) {}
  ~BatchLine() { Clear(); }

  void Show(const BatchProgress& p) {
    if (quiet_ || (!terminal_ && p.elapsed < next_)) return;
    next_ = p.elapsed + absl::Seconds(10);
    absl::FPrintF(stderr,
                  "%s%6.0f s  answered %d of %d  failed %d  open %d  to be "
                  "asked again %d  output tokens %d%s",
                  terminal_ ? "\r\033[K" : "", absl::ToDoubleSeconds(p.elapsed),
                  p.earlier + p.answered, p.requests, p.failed, p.open,
                  p.waiting, p.output_tokens, terminal_ ? "" : "\n");
    std::fflush(stderr);
    shown_ = terminal_;
  }

  void Clear() {
    if (shown_) std::fputs("\r\033[K", stderr);
    shown_ = false;
  }

 private:
  const bool quiet_;
  const bool terminal_;
  bool shown_ = false;
  absl::Duration next_ = absl::Seconds(10);
};

void PrintSummary(const BatchProgress& p) {
  const double seconds = std::max(absl::ToDoubleSeconds(p.elapsed), 1e-3);
  absl::FPrintF(stderr, "%d of %d requests answered", p.earlier + p.answered,
                p.requests);
  if (p.earlier > 0) absl::FPrintF(stderr, ", %d of them before", p.earlier);
  absl::FPrintF(stderr,
                "; %.1f s, %.2f requests/s, %d prompt tokens, %d output tokens "
                "(%.1f/s)\n",
                seconds, static_cast<double>(p.answered) / seconds,
                p.prompt_tokens, p.output_tokens,
                static_cast<double>(p.output_tokens) / seconds);
  if (p.again > 0) {
    absl::FPrintF(stderr, "asked again %d times, where the server refused\n",
                  p.again);
  }
  for (const auto& [status, count] : p.failed_by_status) {
    absl::FPrintF(stderr, "failed: %d with %s\n", count,
                  status == 0 ? std::string("no answer")
                              : absl::StrCat("status ", status));
  }
}

absl::StatusOr<int> Answer(const BatchFlags& flags) {
  BATON_ASSIGN_OR_RETURN(batch::RequestFile requests,
                         batch::RequestFile::Open(flags.requests));
  batch::HttpCallsOptions call_options{
      .url = flags.url,
      .api_key = flags.credentials.api_key,
      .tls_ca_file = flags.credentials.tls_ca_file,
      .tls_cert_file = flags.credentials.tls_cert_file,
      .tls_key_file = flags.credentials.tls_key_file,
      .timeout = absl::Seconds(flags.timeout),
      .max_connections = flags.max_in_flight};
  if (flags.priority_given) call_options.priority = flags.priority;
  BATON_ASSIGN_OR_RETURN(const auto calls,
                         batch::CreateHttpCalls(call_options));
  BATON_ASSIGN_OR_RETURN(batch::ResultFile results,
                         flags.resume
                             ? batch::ResultFile::Resume(flags.results)
                             : batch::ResultFile::Create(flags.results));
  StopSignalFd signals;
  BatchLine line(flags.quiet);
  batch::BatchOptions options;
  options.max_in_flight = flags.max_in_flight;
  options.patience = absl::Seconds(flags.patience);
  options.connect_patience =
      std::min(options.connect_patience, options.patience);
  options.on_progress = [&](const BatchProgress& progress) {
    line.Show(progress);
    return signals.Take() == 0;
  };
  BATON_ASSIGN_OR_RETURN(const BatchEnd end,
                         batch::RunBatch(&requests, &results, calls.get(),
                                         Clock::Monotonic(), options));
  BATON_RETURN_IF_ERROR(results.Finish());
  line.Clear();
  if (!flags.quiet) PrintSummary(end.progress);
  if (!end.stopped.empty()) {
    std::fprintf(stderr, "baton batch: %s: %s; --resume goes on\n",
                 flags.url.c_str(), end.stopped.c_str());
    return end.interrupted ? kExitInterrupted : kExitFailed;
  }
  return end.progress.failed > 0 ? kExitFailed : kExitOk;
}

int RunBatchCommand(const BatchFlags& flags) {
  // Before there are threads: Ctrl-C ends the run, and keeps what there is.
  process::SetUpSignals(/*die_with_parent=*/false);
  const absl::StatusOr<int> code = Answer(flags);
  if (code.ok()) return *code;
  std::string message(code.status().message());
  if (absl::IsAlreadyExists(code.status())) {
    absl::StrAppend(&message, "; --resume goes on with it");
  }
  std::fprintf(stderr, "baton batch: %s\n", message.c_str());
  return absl::IsInvalidArgument(code.status()) ? kExitBadFlags : kExitFailed;
}

}  // namespace

void AddBatchCommand(CLI::App* app, const std::string& program,
                     Command* chosen) {
  auto flags = std::make_shared<BatchFlags>();
  BatchFlags* f = flags.get();
  CLI::App* batch =
      app->add_subcommand("batch", "Answer a file of requests that may wait");
  batch
      ->add_option("REQUESTS", f->requests,
                   "A file as OpenAI's Batch API takes it: one JSON object to "
                   "a line, with custom_id, url and body")
      ->required();
  batch
      ->add_option("RESULTS", f->results,
                   "The file for answers, in the order in which they come")
      ->required();
  batch->add_option("--url", f->url, "Any server of the OpenAI API")
      ->capture_default_str();
  batch->add_flag("--resume", f->resume,
                  "Go on with RESULTS: ask what has no answer there yet, and "
                  "what failed");
  batch
      ->add_option("--max-in-flight", f->max_in_flight,
                   "Requests that are open at once, at most; fewer while the "
                   "server refuses some")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  CLI::Option* const priority =
      batch
          ->add_option("--priority", f->priority,
                       "Among requests of class batch, which all of these are")
          ->check(CLI::Range(-100, 100));
  batch
      ->add_option("--timeout", f->timeout,
                   "Seconds until one that was taken is given up")
      ->check(FiniteRange(0.1, 1e6))
      ->capture_default_str();
  batch
      ->add_option("--patience", f->patience,
                   "Seconds of nothing but refusals until the run ends")
      ->check(FiniteRange(0.1, 1e6))
      ->capture_default_str();
  batch->add_flag("-q,--quiet", f->quiet, "Say nothing but errors");
  AddCredentialFlags(batch, &f->credentials);
  batch->footer(absl::StrCat(
      "Example:\n"
      "  echo '{\"custom_id\": \"a\", \"url\": \"/v1/completions\", \"body\": "
      "{\"prompt\": \"Once upon a time\"}}' > requests.jsonl\n  ",
      program, " batch requests.jsonl results.jsonl\n"));
  batch->callback([flags, priority, chosen] {
    flags->priority_given = priority->count() > 0;
    *chosen = [flags] { return RunBatchCommand(*flags); };
  });
}

}  // namespace baton::cli
