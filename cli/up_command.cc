// `baton up`: starts a cluster on this machine, watches it, and ends it.
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "cli/command.h"
#include "cli/host_port.h"
#include "cli/local_cluster.h"
#include "cli/prometheus_targets.h"
#include "cli/router_connection.h"
#include "common/clock.h"
#include "common/process/cpu_quota.h"
#include "common/process/process.h"
#include "common/status_macros.h"
#include "scheduling/placement_policies.h"

namespace baton::cli {
namespace {

constexpr absl::Duration kStopGrace = absl::Seconds(10);
constexpr absl::Duration kJoinPoll = absl::Milliseconds(20);
// The router is there; on a busy machine it may be slow all the same.
constexpr absl::Duration kRpcTimeout = absl::Seconds(10);
constexpr int kLogTailLines = 10;

constexpr char kDefaultHttpAddress[] = "127.0.0.1:8000";
constexpr char kAnyHttpAddress[] = "127.0.0.1:0";

struct UpOptions {
  std::string model;
  int num_prefill = 1;
  int num_decode = 1;
  std::string listen = kDefaultAddress;
  // Empty: kDefaultHttpAddress, or a free port where --listen takes one.
  std::string http;
  std::string placement;
  std::string kv_memory;
  std::string weights;
  std::string kv_dtype;
  std::string output_reserve;
  std::string log_format;
  int threads = 0;
  // For requests that name none; 0: none.
  double ttft_target_ms = 0;
  double itl_target_ms = 0;
  std::string prometheus_targets;
  std::string log_dir;
  double start_timeout_seconds = 120;
  int ready_fd = -1;
  bool die_with_parent = false;
  std::string program;
};

absl::Time ClockNow() { return Clock::Monotonic()->Now(); }

int UsableCpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return process::ThreadsWithin(process::CpuQuota(), CPU_COUNT(&set));
}

// The log folder, removed at the end when it was made for this run and nothing
// went wrong.
class LogDir final {
 public:
  static absl::StatusOr<LogDir> Make(const std::string& wanted) {
    std::error_code error;
    if (!wanted.empty()) {
      std::filesystem::create_directories(wanted, error);
      if (error) {
        return absl::InvalidArgumentError(
            absl::StrCat("--log-dir ", wanted, ": ", error.message()));
      }
      return LogDir(wanted, /*temporary=*/false);
    }
    const char* tmp = getenv("TMPDIR");
    std::string path = absl::StrCat(
        tmp != nullptr && *tmp != '\0' ? tmp : "/tmp", "/baton-XXXXXX");
    if (mkdtemp(path.data()) == nullptr) {
      return absl::ErrnoToStatus(
          errno, absl::StrCat("cannot make a folder for logs, ", path));
    }
    return LogDir(path, /*temporary=*/true);
  }

  const std::string& path() const { return path_; }

  // True when it was empty. remove() leaves a folder that is not.
  bool RemoveIfEmpty() const {
    std::error_code ignored;
    return std::filesystem::remove(path_, ignored);
  }

  void RemoveIfTemporary() const {
    std::error_code ignored;
    if (temporary_) std::filesystem::remove_all(path_, ignored);
  }

 private:
  LogDir(std::string path, bool temporary)
      : path_(std::move(path)), temporary_(temporary) {}

  std::string path_;
  bool temporary_;
};

// --model, or the model that ships with the repository: below the working
// directory, or above the program (a build directory lies in the repository; an
// installed program has it in share/baton beside bin).
absl::StatusOr<std::string> FindModel(const std::string& wanted,
                                      const std::string& program_dir) {
  std::error_code ignored;
  if (!wanted.empty()) {
    if (std::filesystem::exists(wanted, ignored)) return wanted;
    return absl::NotFoundError(
        absl::StrCat("--model ", wanted, ": there is no such folder or file"));
  }
  const std::filesystem::path demo = "models/stories";
  if (std::filesystem::is_directory(demo, ignored)) return demo.string();
  for (std::filesystem::path dir = program_dir; dir.has_relative_path();
       dir = dir.parent_path()) {
    for (const char* below : {"", "share/baton"}) {
      const std::filesystem::path model = dir / below / demo;
      if (std::filesystem::is_directory(model, ignored)) return model.string();
    }
  }
  return absl::NotFoundError(
      "cannot find models/stories, which ships with Baton's repository; say "
      "--model FOLDER");
}

// One run of `baton up`. Its lines go to stdout, troubles to stderr.
class Up final {
 public:
  Up(UpOptions options, LocalClusterOptions cluster_options, LogDir log_dir)
      : options_(std::move(options)),
        cluster_(std::move(cluster_options)),
        log_dir_(std::move(log_dir)) {}

  int Run() {
    const absl::Time deadline =
        started_ + absl::Seconds(options_.start_timeout_seconds);
    absl::Status status = Start(deadline);
    if (status.ok() && !options_.prometheus_targets.empty()) {
      status = WritePrometheusTargets(options_.prometheus_targets,
                                      cluster_.members());
    }
    if (status.ok()) {
      PrintWelcome();
      ReportReady();
      status = Watch();
    }
    if (absl::IsCancelled(status)) {
      std::printf("stopping\n");
      std::fflush(stdout);
      cluster_.Stop(kStopGrace);
      log_dir_.RemoveIfTemporary();
      return kExitOk;
    }
    std::fprintf(stderr, "baton up: %s\n",
                 std::string(status.message()).c_str());
    cluster_.Stop(kStopGrace);
    if (!log_dir_.RemoveIfEmpty()) {
      std::fprintf(stderr, "Logs: %s\n", log_dir_.path().c_str());
    }
    return kExitFailed;
  }

 private:
  // Until the cluster can serve. Cancelled when the user stops it.
  absl::Status Start(absl::Time deadline) {
    BATON_RETURN_IF_ERROR(cluster_.StartWorkers());
    while (!cluster_.AllWorkersReady()) {
      BATON_RETURN_IF_ERROR(AwaitReady(deadline));
    }
    BATON_RETURN_IF_ERROR(cluster_.StartRouter());
    BATON_RETURN_IF_ERROR(AwaitReady(deadline));
    const ReadyFields& router = cluster_.members().back().process->ready();
    const auto grpc = router.find("grpc");
    if (grpc == router.end()) {
      return absl::InternalError("the router gave no address");
    }
    address_ = grpc->second;
    const auto http = router.find("http");
    if (http != router.end()) http_address_ = http->second;
    return AwaitJoined(deadline);
  }

  // The next member becomes ready.
  absl::Status AwaitReady(absl::Time deadline) {
    const ClusterEvent event = cluster_.Next(deadline);
    switch (event.kind) {
      case ClusterEvent::Kind::kReady:
        PrintReady(cluster_.member(event.member));
        return absl::OkStatus();
      case ClusterEvent::Kind::kExited:
        return absl::UnavailableError(
            DescribeExit(cluster_.member(event.member)));
      case ClusterEvent::Kind::kStopSignal:
        return absl::CancelledError();
      case ClusterEvent::Kind::kTimeout:
        return absl::DeadlineExceededError(absl::StrCat(
            "the cluster was not ready after --start-timeout ",
            options_.start_timeout_seconds, " s; waiting for ", Unready()));
    }
    return absl::InternalError("unknown event");
  }

  // Until the router has found, checked and paired all workers.
  absl::Status AwaitJoined(absl::Time deadline) {
    BATON_ASSIGN_OR_RETURN(
        const std::unique_ptr<client::Client> router,
        ConnectToRouter(RouterFlags{.address = address_}, kRpcTimeout));
    for (;;) {
      BATON_ASSIGN_OR_RETURN(model_, router->GetModel(kRpcTimeout));
      const int prefill = static_cast<int>(model_.num_prefill_workers());
      const int decode = static_cast<int>(model_.num_decode_workers());
      if (prefill >= options_.num_prefill && decode >= options_.num_decode) {
        return absl::OkStatus();
      }
      const ClusterEvent event =
          cluster_.Next(std::min(deadline, ClockNow() + kJoinPoll));
      if (event.kind == ClusterEvent::Kind::kStopSignal) {
        return absl::CancelledError();
      }
      if (event.kind == ClusterEvent::Kind::kExited) {
        return absl::UnavailableError(
            DescribeExit(cluster_.member(event.member)));
      }
      if (ClockNow() < deadline) continue;
      return absl::DeadlineExceededError(absl::StrFormat(
          "after --start-timeout %g s the router had joined %d of %d prefill "
          "and %d of %d decode workers; the last lines of its log:\n%s",
          options_.start_timeout_seconds, prefill, options_.num_prefill, decode,
          options_.num_decode,
          cluster_.members().back().process->LogTail(kLogTailLines)));
    }
  }

  // Until the end. Cancelled when the user stops the cluster.
  absl::Status Watch() {
    for (;;) {
      const ClusterEvent event = cluster_.Next(absl::InfiniteFuture());
      switch (event.kind) {
        case ClusterEvent::Kind::kStopSignal:
          return absl::CancelledError();
        case ClusterEvent::Kind::kExited: {
          const Member& member = cluster_.member(event.member);
          const std::string what = DescribeExit(member);
          if (member.is_router() || cluster_.NumLivePrefill() == 0 ||
              cluster_.NumLiveDecode() == 0) {
            return absl::UnavailableError(
                absl::StrCat(what, "\nwithout it the cluster cannot serve"));
          }
          std::fprintf(stderr,
                       "baton up: %s\nthe cluster goes on with %d prefill and "
                       "%d decode workers\n",
                       what.c_str(), cluster_.NumLivePrefill(),
                       cluster_.NumLiveDecode());
          break;
        }
        case ClusterEvent::Kind::kReady:
        case ClusterEvent::Kind::kTimeout:
          break;
      }
    }
  }

  std::string Unready() const {
    std::string names;
    for (const Member& member : cluster_.members()) {
      if (member.reported_ready) continue;
      absl::StrAppend(&names, names.empty() ? "" : ", ",
                      member.process->name());
    }
    return names;
  }

  static std::string DescribeExit(const Member& member) {
    const ChildProcess& process = *member.process;
    std::string text =
        absl::StrFormat("%s (pid %d) ended: %s", process.name(), process.pid(),
                        member.process->Poll()->Describe());
    const std::string tail = process.LogTail(kLogTailLines);
    if (!tail.empty()) {
      absl::StrAppend(&text, "; the last lines of its log:\n  ",
                      absl::StrReplaceAll(tail, {{"\n", "\n  "}}));
    }
    return text;
  }

  static void PrintReady(const Member& member) {
    const ReadyFields& ready = member.process->ready();
    std::string addresses;
    for (const char* field : {"grpc", "http", "data", "metrics"}) {
      const auto it = ready.find(field);
      if (it == ready.end() || it->second.empty()) continue;
      absl::StrAppend(&addresses, "  ", field, " ", it->second);
    }
    std::printf("  %-10s pid %-7d ready in %5.2f s%s\n",
                member.process->name().c_str(), member.process->pid(),
                absl::ToDoubleSeconds(ClockNow() - member.started),
                addresses.c_str());
    std::fflush(stdout);
  }

  void PrintWelcome() const {
    std::printf(
        "Ready in %.2f s: %s (%s), context of %u tokens, %u prefill + %u "
        "decode workers.\n\nTalk to it:\n  %s generate%s \"Once upon a "
        "time\"\n  http://%s/      console\n  http://%s/v1    OpenAI API\n"
        "Logs: %s\nCtrl-C stops it.\n",
        absl::ToDoubleSeconds(ClockNow() - started_), model_.name().c_str(),
        model_.architecture().c_str(), model_.max_context(),
        model_.num_prefill_workers(), model_.num_decode_workers(),
        options_.program.c_str(),
        address_ == kDefaultAddress
            ? ""
            : absl::StrCat(" --address ", address_).c_str(),
        http_address_.c_str(), http_address_.c_str(), log_dir_.path().c_str());
    std::fflush(stdout);
  }

  void ReportReady() const {
    std::map<std::string, std::string> fields = {{"name", "up"},
                                                 {"grpc", address_},
                                                 {"http", http_address_},
                                                 {"log_dir", log_dir_.path()}};
    for (const Member& member : cluster_.members()) {
      fields[absl::StrCat("pid.", member.process->name())] =
          absl::StrCat(member.process->pid());
    }
    process::ReportReady(options_.ready_fd, fields);
  }

  const UpOptions options_;
  const absl::Time started_ = ClockNow();
  LocalCluster cluster_;
  const LogDir log_dir_;
  std::string address_;
  std::string http_address_;
  v1::GetModelResponse model_;
};

absl::StatusOr<std::unique_ptr<Up>> PrepareUp(const UpOptions& options) {
  LocalClusterOptions cluster;
  BATON_RETURN_IF_ERROR(CheckAddressIsFree(options.listen));
  BATON_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(options.listen));
  cluster.http = options.http;
  if (cluster.http.empty()) {
    cluster.http = listen.port == 0 ? kAnyHttpAddress : kDefaultHttpAddress;
  }
  BATON_RETURN_IF_ERROR(CheckAddressIsFree(cluster.http));
  BATON_ASSIGN_OR_RETURN(cluster.program_dir, ProgramDir());
  BATON_ASSIGN_OR_RETURN(cluster.model_dir,
                         FindModel(options.model, cluster.program_dir));
  BATON_ASSIGN_OR_RETURN(LogDir log_dir, LogDir::Make(options.log_dir));
  cluster.num_prefill = options.num_prefill;
  cluster.num_decode = options.num_decode;
  cluster.listen = options.listen;
  cluster.kv_memory = options.kv_memory;
  cluster.weights = options.weights;
  cluster.kv_dtype = options.kv_dtype;
  cluster.output_reserve = options.output_reserve;
  cluster.log_format = options.log_format;
  cluster.placement = options.placement;
  const auto target = [&cluster](const char* flag, double ms) {
    if (ms <= 0) return;
    cluster.router_flags.insert(cluster.router_flags.end(),
                                {flag, absl::StrCat(ms)});
  };
  target("--ttft-target-ms", options.ttft_target_ms);
  target("--itl-target-ms", options.itl_target_ms);
  // Workers that each take all CPUs would run over each other.
  cluster.threads_per_worker =
      options.threads > 0
          ? options.threads
          : std::max(1,
                     UsableCpus() / (options.num_prefill + options.num_decode));
  cluster.log_dir = log_dir.path();
  std::printf(
      "Starting %d prefill + %d decode workers (%d thread%s each) and "
      "a router; model %s\n",
      cluster.num_prefill, cluster.num_decode, cluster.threads_per_worker,
      cluster.threads_per_worker == 1 ? "" : "s", cluster.model_dir.c_str());
  std::fflush(stdout);
  return std::make_unique<Up>(options, std::move(cluster), std::move(log_dir));
}

int RunUp(const UpOptions& options) {
  process::SetUpSignals(options.die_with_parent);
  // Not for the children: whoever waits for the line would wait for them.
  if (options.ready_fd >= 0) fcntl(options.ready_fd, F_SETFD, FD_CLOEXEC);
  absl::StatusOr<std::unique_ptr<Up>> up = PrepareUp(options);
  if (!up.ok()) {
    std::fprintf(stderr, "baton up: %s\n",
                 std::string(up.status().message()).c_str());
    return kExitFailed;
  }
  return (*up)->Run();
}

}  // namespace

void AddUpCommand(CLI::App* app, const std::string& program, Command* chosen) {
  auto options = std::make_shared<UpOptions>();
  options->program = program;
  CLI::App* up = app->add_subcommand(
      "up", "Start a cluster on this machine; Ctrl-C stops it");
  up->add_option("--model", options->model,
                 "Hugging Face model folder, GGUF file, or what `baton "
                 "quantize` wrote; default: "
                 "models/stories, which ships with the repository");
  up->add_option("--prefill", options->num_prefill,
                 "Prefill workers, default 1")
      ->check(CLI::Range(1, 64));
  up->add_option("--decode", options->num_decode, "Decode workers, default 1")
      ->check(CLI::Range(1, 64));
  up->add_option("--listen", options->listen,
                 absl::StrCat("HOST:PORT of the router; port 0 takes a free "
                              "one; default ",
                              kDefaultAddress))
      ->check([](const std::string& text) {
        return std::string(ParseHostPort(text).status().message());
      });
  up->add_option("--http", options->http,
                 absl::StrCat("HOST:PORT of the OpenAI API and the console; "
                              "default ",
                              kDefaultHttpAddress,
                              ", or a free port where --listen takes one"))
      ->check([](const std::string& text) {
        return std::string(ParseHostPort(text).status().message());
      });
  up->add_option("--placement", options->placement,
                 absl::StrCat("Which workers a request gets, default ",
                              scheduling::kDefaultPlacementPolicy, ". ",
                              scheduling::DescribePlacementPolicies()))
      ->check(CLI::IsMember(scheduling::PlacementPolicyNames()));
  up->add_option("--kv-memory", options->kv_memory,
                 "KV memory of each worker, such as 256MiB, or 25%: a share "
                 "of what is free once its weights are loaded");
  up->add_option("--output-reserve", options->output_reserve,
                 "Output tokens for which decode workers set KV memory aside "
                 "from the beginning (512); 0: all")
      ->check(CLI::Range(0, 1 << 24));
  up->add_option("--weights", options->weights,
                 "How workers hold matrices: bf16, int8, int4, or auto "
                 "(default): as `baton quantize` packed them, else bf16")
      ->check(CLI::IsMember({"auto", "bf16", "int8", "int4"}));
  up->add_option("--kv-dtype", options->kv_dtype,
                 "How workers hold keys and values: bf16 (default) or int8")
      ->check(CLI::IsMember({"bf16", "int8"}));
  up->add_option("--threads", options->threads,
                 "Compute threads of each worker; default 0: the CPUs, shared "
                 "out evenly")
      ->check(CLI::Range(0, 1024));
  up->add_option("--ttft-target-ms", options->ttft_target_ms,
                 "Target for the first token of requests that give none")
      ->check(CLI::Range(0.0, 8.64e7));
  up->add_option("--itl-target-ms", options->itl_target_ms,
                 "Target between two tokens of requests that give none")
      ->check(CLI::Range(0.0, 8.64e7));
  up->add_option("--prometheus-targets", options->prometheus_targets,
                 "File that gets the metrics addresses of all processes, for "
                 "Prometheus (docs/monitoring.md)");
  up->add_option("--log-format", options->log_format,
                 "Lines of the logs: text (default), or json: an object each")
      ->check(CLI::IsMember({"text", "json"}));
  up->add_option("--log-dir", options->log_dir,
                 "Folder for the logs of all processes; default: a new one, "
                 "removed after a clean end");
  up->add_option("--start-timeout", options->start_timeout_seconds,
                 "Seconds for the whole start, default 120")
      ->check(CLI::Range(1.0, 86400.0));
  up->add_option("--ready-fd", options->ready_fd,
                 "For scripts: a file descriptor that gets one JSON line, with "
                 "the address, when the cluster can serve");
  up->add_flag("--die-with-parent", options->die_with_parent,
               "For scripts: stop when the parent process ends");
  up->footer(absl::StrCat("Examples:\n  ", program, " up\n  ", program,
                          " up --prefill 2 --decode 2 --model ~/models/"
                          "SmolLM2-135M\n"));
  up->callback(
      [options, chosen] { *chosen = [options] { return RunUp(*options); }; });
}

}  // namespace baton::cli
