#include "cli/local_cluster.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/host_port.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton::cli {
namespace {

constexpr absl::Duration kKillWait = absl::Seconds(5);

absl::Time Now() { return Clock::Monotonic()->Now(); }

int MillisUntil(absl::Time deadline) {
  const absl::Duration left = deadline - Now();
  if (left <= absl::ZeroDuration()) return 0;
  const int64_t ms =
      absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)));
  return static_cast<int>(std::min<int64_t>(ms, 3600 * 1000));
}

// The address under `field` of a member's ready line.
absl::StatusOr<std::string> ReadyField(const Member& member,
                                       const std::string& field) {
  const ReadyFields& fields = member.process->ready();
  const auto it = fields.find(field);
  if (it == fields.end()) {
    return absl::InternalError(absl::StrCat(
        member.process->name(), " gave no '", field, "' when it was ready"));
  }
  return it->second;
}

}  // namespace

LocalCluster::LocalCluster(LocalClusterOptions options)
    : options_(std::move(options)) {}

LocalCluster::~LocalCluster() = default;

absl::Status LocalCluster::StartMember(const std::string& program,
                                       const std::string& name,
                                       const std::vector<std::string>& args,
                                       Member member) {
  ChildOptions child;
  child.name = name;
  child.command = {absl::StrCat(options_.program_dir, "/", program),
                   "--model",
                   options_.model_dir,
                   "--name",
                   name,
                   "--die-with-parent"};
  if (!options_.log_format.empty()) {
    child.command.insert(child.command.end(),
                         {"--log-format", options_.log_format});
  }
  child.command.insert(child.command.end(), args.begin(), args.end());
  child.log_path = absl::StrCat(options_.log_dir, "/", name, ".log");
  if (!member.gpus.empty()) {
    child.environment["CUDA_VISIBLE_DEVICES"] = absl::StrJoin(member.gpus, ",");
  }
  member.started = Now();
  BATON_ASSIGN_OR_RETURN(member.process, ChildProcess::Start(std::move(child)));
  members_.push_back(std::move(member));
  return absl::OkStatus();
}

absl::Status LocalCluster::StartWorker(const std::string& program,
                                       const std::string& name,
                                       const std::vector<std::string>& args,
                                       Member member) {
  if (!options_.gpus.empty()) member.gpus = options_.gpus.at(members_.size());
  return StartMember(program, name, args, std::move(member));
}

absl::Status LocalCluster::StartWorkers() {
  std::vector<std::string> args = {"--threads",
                                   absl::StrCat(options_.threads_per_worker)};
  const auto pass = [&args](const char* flag, const std::string& value) {
    if (!value.empty()) args.insert(args.end(), {flag, value});
  };
  pass("--kv-memory", options_.kv_memory);
  pass("--kv-offload", options_.kv_offload);
  pass("--kv-offload-dir", options_.kv_offload_dir);
  pass("--device", options_.device);
  pass("--transport", options_.transport);
  pass("--kv-staging", options_.kv_staging);
  pass("--weights", options_.weights);
  for (const std::string& adapter : options_.adapters) {
    pass("--adapter", adapter);
  }
  pass("--adapter-dir", options_.adapter_dir);
  pass("--kv-dtype", options_.kv_dtype);
  pass("--tensor-parallel", options_.tensor_parallel);
  for (int i = 0; i < options_.num_prefill; ++i) {
    Member member;
    member.is_prefill = true;
    BATON_RETURN_IF_ERROR(StartWorker(
        "baton-prefill", absl::StrCat("prefill-", i), args, std::move(member)));
  }
  pass("--output-reserve", options_.output_reserve);
  pass("--draft-tokens", options_.draft_tokens);
  pass("--draft-weights", options_.draft_weights);
  for (int i = 0; i < options_.num_decode; ++i) {
    Member member;
    member.is_decode = true;
    BATON_RETURN_IF_ERROR(StartWorker(
        "baton-decode", absl::StrCat("decode-", i), args, std::move(member)));
  }
  for (int i = 0; i < options_.num_dual; ++i) {
    Member member;
    member.is_prefill = true;
    member.is_decode = true;
    BATON_RETURN_IF_ERROR(StartWorker("baton-worker", absl::StrCat("dual-", i),
                                      args, std::move(member)));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::StartRouter() {
  CHECK(AllWorkersReady());
  std::vector<std::string> args = {"--listen", options_.listen, "--http",
                                   options_.http};
  if (!options_.placement.empty()) {
    args.insert(args.end(), {"--placement", options_.placement});
  }
  args.insert(args.end(), options_.router_flags.begin(),
              options_.router_flags.end());
  for (const Member& member : members_) {
    if (member.is_prefill) {
      BATON_ASSIGN_OR_RETURN(std::string address, ReadyField(member, "grpc"));
      args.insert(args.end(), {"--prefill", std::move(address)});
    }
    if (member.is_decode) {
      BATON_ASSIGN_OR_RETURN(
          std::string address,
          ReadyField(member, member.is_prefill ? "grpc_decode" : "grpc"));
      args.insert(args.end(), {"--decode", std::move(address)});
    }
  }
  return StartMember("baton-router", "router", args, Member());
}

// What has happened already and was not reported.
bool LocalCluster::NextReported(ClusterEvent* event) {
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    // The end is looked for first: a child that became ready and ended is
    // reported as both, in that order.
    const bool ended = member.process->Poll().has_value();
    member.process->ReadReady();
    if (member.process->is_ready() && !member.reported_ready) {
      member.reported_ready = true;
      *event = {ClusterEvent::Kind::kReady, i};
      return true;
    }
    if (ended && !member.reported_exit) {
      member.reported_exit = true;
      *event = {ClusterEvent::Kind::kExited, i};
      return true;
    }
  }
  return false;
}

ClusterEvent LocalCluster::Next(absl::Time deadline) {
  for (;;) {
    if (signals_.Take() != 0) return {ClusterEvent::Kind::kStopSignal, 0};
    ClusterEvent event;
    if (NextReported(&event)) return event;
    const int millis = MillisUntil(deadline);
    if (millis == 0) return {ClusterEvent::Kind::kTimeout, 0};
    std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0}};
    for (const Member& member : members_) {
      if (member.reported_exit) continue;
      fds.push_back({member.process->exit_fd(), POLLIN, 0});
      // poll skips -1, which is what a finished pipe gives.
      fds.push_back({member.process->ready_fd(), POLLIN, 0});
    }
    poll(fds.data(), fds.size(), millis);
  }
}

int LocalCluster::NumLivePrefill() const {
  return static_cast<int>(std::count_if(
      members_.begin(), members_.end(),
      [](const Member& m) { return m.is_prefill && !m.reported_exit; }));
}

int LocalCluster::NumLiveDecode() const {
  return static_cast<int>(std::count_if(
      members_.begin(), members_.end(),
      [](const Member& m) { return m.is_decode && !m.reported_exit; }));
}

int LocalCluster::NumLiveDual() const {
  return static_cast<int>(
      std::count_if(members_.begin(), members_.end(), [](const Member& m) {
        return m.is_prefill && m.is_decode && !m.reported_exit;
      }));
}

bool LocalCluster::AllWorkersReady() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& m) {
    return m.is_router() || m.reported_ready;
  });
}

void LocalCluster::AwaitEnd(const Member& member, absl::Time deadline) {
  while (!member.process->Poll().has_value()) {
    if (signals_.Take() != 0) {
      for (const Member& other : members_) other.process->Signal(SIGKILL);
    }
    const int millis = MillisUntil(deadline);
    if (millis == 0) return;
    pollfd fds[] = {{signals_.get(), POLLIN, 0},
                    {member.process->exit_fd(), POLLIN, 0}};
    poll(fds, std::size(fds), millis);
  }
}

bool LocalCluster::Stop(absl::Duration grace) {
  const absl::Time deadline = Now() + grace;
  // The router was started last; until it is gone the workers have work to do.
  for (auto it = members_.rbegin(); it != members_.rend(); ++it) {
    it->process->Signal(SIGTERM);
    if (it->is_router()) AwaitEnd(*it, deadline);
  }
  bool clean = true;
  for (Member& member : members_) {
    if (member.reported_exit) continue;
    AwaitEnd(member, deadline);
    if (!member.process->Poll().has_value()) member.process->Signal(SIGKILL);
    const absl::StatusOr<ExitState> state = member.process->WaitExit(kKillWait);
    clean = clean && state.ok() && state->clean();
    member.reported_exit = true;
  }
  return clean;
}

absl::Status CheckAddressIsFree(const std::string& address) {
  BATON_ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort(address));
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(host_port.host.c_str(), absl::StrCat(host_port.port).c_str(),
                  &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on ", address, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found,
                                                             &freeaddrinfo);
  const OwnedFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return absl::ErrnoToStatus(errno, "socket");
  // As the router will: a port in TIME_WAIT is free.
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd.get(), found->ai_addr, found->ai_addrlen) == 0) {
    return absl::OkStatus();
  }
  if (errno == EADDRINUSE) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", address, ": the address is in use. Does another ",
        "`baton up` run? Port 0 takes a free one (--listen, --http)."));
  }
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address, ": ", strerror(errno)));
}

absl::StatusOr<std::string> ProgramDir() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  if (n <= 0) return absl::ErrnoToStatus(errno, "readlink /proc/self/exe");
  const std::string full(path, n);
  return full.substr(0, full.rfind('/'));
}

}  // namespace baton::cli
