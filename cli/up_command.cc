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
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cli/command.h"
#include "cli/gpus.h"
#include "cli/host_port.h"
#include "cli/local_cluster.h"
#include "cli/prometheus_targets.h"
#include "cli/router_connection.h"
#include "cli/up_options.h"
#include "common/clock.h"
#include "common/process/cpu_quota.h"
#include "common/process/process.h"
#include "common/status_macros.h"

namespace baton::cli {
namespace {

constexpr absl::Duration kStopGrace = absl::Seconds(10);
constexpr absl::Duration kJoinPoll = absl::Milliseconds(20);
// The router is there; on a busy machine it may be slow all the same.
constexpr absl::Duration kRpcTimeout = absl::Seconds(10);
constexpr int kLogTailLines = 10;

constexpr char kAnyHttpAddress[] = "127.0.0.1:0";

absl::Time ClockNow() { return Clock::Monotonic()->Now(); }

int UsableCpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return process::ThreadsWithin(process::CpuQuota(), CPU_COUNT(&set));
}

// Deals the GPUs that this process sees out to so many workers. Where it sees
// none, workers look for themselves, and say why there is none.
absl::Status ChooseGpus(const UpOptions& options, int workers,
                        LocalClusterOptions* cluster) {
  if (options.tensor_parallel != 1) {
    cluster->tensor_parallel = absl::StrCat(options.tensor_parallel);
  }
  if (options.device != "cuda") return absl::OkStatus();
  const std::vector<std::string> gpus = VisibleGpus();
  if (gpus.empty()) return absl::OkStatus();
  if (options.transport == "nccl") {
    BATON_RETURN_IF_ERROR(CheckNoneShared(
        gpus, workers, options.tensor_parallel, "--transport nccl"));
  }
  BATON_ASSIGN_OR_RETURN(cluster->gpus,
                         DealGpus(gpus, workers, options.tensor_parallel));
  return absl::OkStatus();
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

// "1 prefill + 1 decode workers".
std::string DescribeWorkers(const LocalClusterOptions& cluster) {
  std::string text;
  const auto add = [&text](int count, const char* kind) {
    if (count == 0) return;
    absl::StrAppend(&text, text.empty() ? "" : " + ", count, " ", kind);
  };
  add(cluster.num_prefill, "prefill");
  add(cluster.num_decode, "decode");
  add(cluster.num_dual, "dual");
  return absl::StrCat(text, " workers");
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
      // A dual worker counts in its role, once it has said which one.
      const int wanted_prefill = cluster_.options().num_prefill;
      const int wanted_decode = cluster_.options().num_decode;
      const int all =
          wanted_prefill + wanted_decode + cluster_.options().num_dual;
      if (prefill >= wanted_prefill && decode >= std::max(1, wanted_decode) &&
          prefill + decode == all) {
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
          "after --start-timeout %g s the router had joined %d prefill and %d "
          "decode workers of %d in all; the last lines of its log:\n%s",
          options_.start_timeout_seconds, prefill, decode, all,
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
          const bool prefill_gone = cluster_.options().num_prefill > 0 &&
                                    cluster_.NumLivePrefill() == 0;
          if (member.is_router() || prefill_gone ||
              cluster_.NumLiveDecode() == 0) {
            return absl::UnavailableError(
                absl::StrCat(what, "\nwithout it the cluster cannot serve"));
          }
          std::fprintf(stderr, "baton up: %s\nthe cluster goes on with %s\n",
                       what.c_str(), DescribeLive().c_str());
          break;
        }
        case ClusterEvent::Kind::kReady:
        case ClusterEvent::Kind::kTimeout:
          break;
      }
    }
  }

  std::string DescribeLive() const {
    LocalClusterOptions live;
    // A dual worker counts as both.
    live.num_dual = cluster_.NumLiveDual();
    live.num_prefill = cluster_.NumLivePrefill() - live.num_dual;
    live.num_decode = cluster_.NumLiveDecode() - live.num_dual;
    return DescribeWorkers(live);
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
    std::string gpus;
    if (!member.gpus.empty()) {
      gpus = absl::StrCat("  GPU ", absl::StrJoin(member.gpus, ","));
    }
    std::printf("  %-10s pid %-7d ready in %5.2f s%s%s\n",
                member.process->name().c_str(), member.process->pid(),
                absl::ToDoubleSeconds(ClockNow() - member.started),
                gpus.c_str(), addresses.c_str());
    std::fflush(stdout);
  }

  void PrintWelcome() const {
    std::printf(
        "Ready in %.2f s: %s (%s), context of %u tokens, %u prefill + %u "
        "decode workers.\n%s\nTalk to it:\n  %s generate%s \"Once upon a "
        "time\"\n  http://%s/      console\n  http://%s/v1    OpenAI API\n"
        "Logs: %s\nCtrl-C stops it.\n",
        absl::ToDoubleSeconds(ClockNow() - started_), model_.name().c_str(),
        model_.architecture().c_str(), model_.max_context(),
        model_.num_prefill_workers(), model_.num_decode_workers(),
        model_.adapters().empty()
            ? ""
            : absl::StrCat("Adapters: ", absl::StrJoin(model_.adapters(), ", "),
                           "\n")
                  .c_str(),
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
  const bool split =
      options.num_prefill.has_value() || options.num_decode.has_value();
  cluster.num_dual = options.num_dual.value_or(split ? 0 : 2);
  const int otherwise = cluster.num_dual > 0 ? 0 : 1;
  cluster.num_prefill = options.num_prefill.value_or(otherwise);
  cluster.num_decode = options.num_decode.value_or(otherwise);
  const int workers =
      cluster.num_prefill + cluster.num_decode + cluster.num_dual;
  if (cluster.num_decode + cluster.num_dual == 0) {
    return absl::InvalidArgumentError(
        "--decode 0: without decode workers nobody is served");
  }
  cluster.listen = options.listen;
  cluster.device = options.device;
  cluster.transport = options.transport;
  cluster.kv_staging = options.kv_staging;
  cluster.kv_memory = options.kv_memory;
  cluster.kv_offload = options.kv_offload;
  cluster.kv_offload_dir = options.kv_offload_dir;
  cluster.weights = options.weights;
  cluster.adapters = options.adapters;
  cluster.adapter_dir = options.adapter_dir;
  cluster.kv_dtype = options.kv_dtype;
  BATON_RETURN_IF_ERROR(ChooseGpus(options, workers, &cluster));
  cluster.output_reserve = options.output_reserve;
  cluster.draft_tokens = options.draft_tokens;
  cluster.draft_weights = options.draft_weights;
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
  cluster.threads_per_worker = options.threads > 0
                                   ? options.threads
                                   : std::max(1, UsableCpus() / workers);
  cluster.log_dir = log_dir.path();
  std::printf("Starting %s (%d thread%s each) and a router; model %s\n",
              DescribeWorkers(cluster).c_str(), cluster.threads_per_worker,
              cluster.threads_per_worker == 1 ? "" : "s",
              cluster.model_dir.c_str());
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
  AddUpFlags(up, options.get());
  up->callback(
      [options, chosen] { *chosen = [options] { return RunUp(*options); }; });
}

}  // namespace baton::cli
