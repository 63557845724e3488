#include "tests/bench/handoff_benchmark_ucx.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/log.h"
#include "common/scoped_fd.h"
#include "tests/bench/handoff_benchmark_setup.h"

namespace baton::kv_transfer {
namespace {

uint16_t FreePort() {
  const ScopedFd probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  PCHECK(bind(probe.get(), reinterpret_cast<sockaddr*>(&at), size) == 0);
  PCHECK(getsockname(probe.get(), reinterpret_cast<sockaddr*>(&at), &size) ==
         0);
  return ntohs(at.sin_port);
}

// `command` by the shell, in the background; its pid.
pid_t Spawn(const std::string& command) {
  const pid_t pid = fork();
  PCHECK(pid >= 0);
  if (pid == 0) {
    execl("/bin/sh", "sh", "-c", absl::StrCat("exec ", command).c_str(),
          nullptr);
    _exit(127);
  }
  return pid;
}

std::string Output(const std::string& command, bool* succeeded) {
  FILE* const pipe = popen(command.c_str(), "r");
  PCHECK(pipe != nullptr);
  std::string out;
  char buffer[4096];
  size_t n;
  while ((n = fread(buffer, 1, sizeof(buffer), pipe)) > 0) {
    out.append(buffer, n);
  }
  *succeeded = pclose(pipe) == 0;
  return out;
}

// Of the last line with numbers: iterations, three latencies, then average and
// overall bandwidth in MiB/s.
absl::StatusOr<double> ParseBandwidth(const std::string& output) {
  std::vector<double> last;
  for (absl::string_view line : absl::StrSplit(output, '\n')) {
    std::vector<double> numbers;
    for (absl::string_view word :
         absl::StrSplit(line, absl::ByAnyChar(" ,\t"), absl::SkipEmpty())) {
      double number = 0;
      if (absl::SimpleAtod(word, &number)) numbers.push_back(number);
    }
    if (numbers.size() >= 6) last = std::move(numbers);
  }
  if (last.empty()) {
    return absl::InternalError(
        absl::StrCat("ucx_perftest said: ", output.substr(0, 500)));
  }
  return last[5] * (1 << 20);
}

}  // namespace

absl::StatusOr<double> UcxActiveMessageBandwidth(uint64_t message_bytes) {
  bool succeeded = false;
  Output("command -v ucx_perftest", &succeeded);
  if (!succeeded) {
    return absl::NotFoundError("ucx_perftest is not installed");
  }
  constexpr uint64_t kTotalBytes = uint64_t{1} << 30;
  const uint64_t messages = std::max<uint64_t>(4, kTotalBytes / message_bytes);
  const uint16_t port = FreePort();
  const auto command = [&](absl::string_view server, int cpu) {
    return absl::StrCat("env UCX_TLS=tcp UCX_NET_DEVICES=lo ucx_perftest ",
                        server, " -t ucp_am_bw -f -v -p ", port, " -c ",
                        CpuAt(cpu), " -s ", message_bytes, " -w ",
                        std::clamp<uint64_t>(messages / 8, 1, 50), " -n ",
                        messages, " 2>/dev/null");
  };
  const pid_t server = Spawn(absl::StrCat(command("", 0), " >/dev/null"));
  // It takes a moment to listen.
  std::string output;
  const absl::Time deadline = Now() + absl::Seconds(30);
  do {
    output = Output(command("127.0.0.1", 1), &succeeded);
  } while (!succeeded && Now() < deadline);
  kill(server, SIGTERM);
  waitpid(server, nullptr, 0);
  if (!succeeded) return absl::UnavailableError("ucx_perftest failed");
  return ParseBandwidth(output);
}

}  // namespace baton::kv_transfer
