#include "cli/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton::cli {
namespace {

constexpr size_t kMaxReadyBytes = 64 << 10;

absl::Status ErrnoStatus(const std::string& what) {
  return absl::ErrnoToStatus(errno, what);
}

// Milliseconds for poll until `deadline`, rounded up so that a poll never ends
// just before it.
int PollMillis(absl::Time deadline) {
  const absl::Duration left = deadline - Clock::Monotonic()->Now();
  if (left <= absl::ZeroDuration()) return 0;
  const int64_t ms =
      absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)));
  return static_cast<int>(std::min<int64_t>(ms, 3600 * 1000));
}

// In the child, between fork and exec: only async-signal-safe calls.
[[noreturn]] void ExecChild(char* const* argv, char* const* environment,
                            int log_fd, int ready_fd, pid_t parent) {
  // Ctrl-C in a terminal goes to the foreground group; children are stopped by
  // their parent, in order.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);
  const int null_fd = open("/dev/null", O_RDONLY);
  if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 ||
      dup2(log_fd, STDOUT_FILENO) < 0 || dup2(log_fd, STDERR_FILENO) < 0 ||
      fcntl(ready_fd, F_SETFD, 0) < 0) {
    _exit(127);
  }
  signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(argv[0], argv, environment);
  const char message[] = "cannot execute the program\n";
  if (write(STDERR_FILENO, message, sizeof(message) - 1) < 0) _exit(126);
  _exit(127);
}

// This process's environment with `changes`.
std::vector<std::string> EnvironmentWith(
    const std::map<std::string, std::string>& changes) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!changes.contains(text.substr(0, text.find('=')))) all.push_back(text);
  }
  for (const auto& [name, value] : changes) {
    all.push_back(absl::StrCat(name, "=", value));
  }
  return all;
}

// As exec takes them. The strings outlive what is returned.
std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void OwnedFd::Reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

std::string ExitState::Describe() const {
  if (signal == 0) return absl::StrCat("exit status ", code);
  return absl::StrFormat("killed by signal %d (%s)", signal, strsignal(signal));
}

absl::StatusOr<ReadyFields> ParseReadyLine(const std::string& line) {
  const nlohmann::json json =
      nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("ready") || json["ready"] != true) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a ready line: '", line, "'"));
  }
  ReadyFields fields;
  for (const auto& [name, value] : json.items()) {
    if (value.is_string()) fields[name] = value.get<std::string>();
  }
  return fields;
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    ChildOptions options) {
  CHECK(!options.command.empty());
  std::unique_ptr<ChildProcess> child(new ChildProcess(std::move(options)));
  BATON_RETURN_IF_ERROR(child->Launch());
  return child;
}

absl::Status ChildProcess::Launch() {
  const std::string& program = options_.command.front();
  if (access(program.c_str(), X_OK) != 0) {
    return ErrnoStatus(absl::StrCat("cannot run ", program));
  }
  const OwnedFd log(open(options_.log_path.c_str(),
                         O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (log.get() < 0) {
    return ErrnoStatus(
        absl::StrCat("cannot write the log ", options_.log_path));
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe");
  ready_pipe_ = OwnedFd(ends[0]);
  const OwnedFd ready_write(ends[1]);
  // Only this end: the child's writes may wait.
  fcntl(ready_pipe_.get(), F_SETFL, O_NONBLOCK);

  std::vector<std::string> args = options_.command;
  if (options_.ready_line) {
    args.push_back("--ready-fd");
    args.push_back(absl::StrCat(ready_write.get()));
  }
  const std::vector<char*> argv = Pointers(args);
  std::vector<std::string> variables = EnvironmentWith(options_.environment);
  const std::vector<char*> environment = Pointers(variables);

  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) return ErrnoStatus("fork");
  if (pid_ == 0) {
    ExecChild(argv.data(), environment.data(), log.get(), ready_write.get(),
              parent);
  }
  pid_fd_ = OwnedFd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  PCHECK(pid_fd_.get() >= 0) << "pidfd_open";
  return absl::OkStatus();
}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0 || exit_.has_value()) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ChildProcess::ReadReady() {
  if (ready_pipe_.get() < 0) return;
  char buffer[1024];
  for (;;) {
    const ssize_t n = read(ready_pipe_.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) break;
    ready_text_.append(buffer, n);
    if (ready_text_.size() > kMaxReadyBytes) break;
    const size_t end = ready_text_.find('\n');
    if (end == std::string::npos) continue;
    auto fields = ParseReadyLine(ready_text_.substr(0, end));
    if (fields.ok()) {
      ready_ = *std::move(fields);
    } else {
      LOG(ERROR) << name() << ": " << fields.status().message();
    }
    break;
  }
  ready_pipe_.Reset();
}

absl::Status ChildProcess::WaitReady(absl::Duration timeout) {
  const absl::Time deadline = Clock::Monotonic()->Now() + timeout;
  for (;;) {
    ReadReady();
    if (is_ready()) return absl::OkStatus();
    if (Poll().has_value()) {
      // It may have become ready and ended since the read above.
      ReadReady();
      if (is_ready()) return absl::OkStatus();
      return absl::UnavailableError(absl::StrCat(
          name(), " ended before it was ready: ", exit_->Describe(), "\n",
          LogTail(10)));
    }
    pollfd fds[] = {{exit_fd(), POLLIN, 0}, {ready_fd(), POLLIN, 0}};
    const int millis = PollMillis(deadline);
    if (millis == 0) {
      return absl::DeadlineExceededError(
          absl::StrCat(name(), " was not ready after ",
                       absl::FormatDuration(timeout), "\n", LogTail(10)));
    }
    poll(fds, std::size(fds), millis);
  }
}

void ChildProcess::Signal(int signal) {
  if (!exit_.has_value()) kill(pid_, signal);
}

const std::optional<ExitState>& ChildProcess::Poll() {
  if (exit_.has_value()) return exit_;
  int status = 0;
  const pid_t reaped = waitpid(pid_, &status, WNOHANG);
  PCHECK(reaped >= 0 || errno == EINTR) << "waitpid " << pid_;
  if (reaped != pid_) return exit_;
  ExitState state;
  if (WIFSIGNALED(status)) {
    state.signal = WTERMSIG(status);
  } else {
    state.code = WEXITSTATUS(status);
  }
  exit_ = state;
  return exit_;
}

absl::StatusOr<ExitState> ChildProcess::WaitExit(absl::Duration timeout) {
  const absl::Time deadline = Clock::Monotonic()->Now() + timeout;
  for (;;) {
    if (Poll().has_value()) return *exit_;
    const int millis = PollMillis(deadline);
    if (millis == 0) {
      return absl::DeadlineExceededError(absl::StrCat(
          name(), " still runs after ", absl::FormatDuration(timeout)));
    }
    pollfd fds[] = {{exit_fd(), POLLIN, 0}};
    poll(fds, std::size(fds), millis);
  }
}

ExitState ChildProcess::Stop(absl::Duration grace) {
  Signal(SIGTERM);
  absl::StatusOr<ExitState> state = WaitExit(grace);
  if (state.ok()) return *state;
  Signal(SIGKILL);
  state = WaitExit(absl::Seconds(10));
  CHECK(state.ok()) << state.status();
  return *state;
}

std::string ChildProcess::Log() const {
  std::ifstream in(options_.log_path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::string ChildProcess::LogTail(int num_lines) const {
  constexpr std::streamoff kMaxTailBytes = 64 << 10;
  std::ifstream in(options_.log_path, std::ios::binary | std::ios::ate);
  in.seekg(
      std::max<std::streamoff>(0, std::streamoff{in.tellg()} - kMaxTailBytes));
  const std::string log(std::istreambuf_iterator<char>(in), {});
  std::vector<absl::string_view> lines =
      absl::StrSplit(absl::StripSuffix(log, "\n"), '\n');
  if (static_cast<int>(lines.size()) > num_lines) {
    lines.erase(lines.begin(), lines.end() - num_lines);
  }
  return absl::StrJoin(lines, "\n");
}

}  // namespace baton::cli
