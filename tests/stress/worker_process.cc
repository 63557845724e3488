#include "tests/stress/worker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"

namespace baton::stress {
namespace {

std::vector<std::string> Command(Role role, const WorkerOptions& options,
                                 bool log) {
  std::vector<std::string> command = {
      "handoff_stress",
      absl::StrCat("--role=", role == Role::kSender ? "sender" : "receiver"),
      absl::StrCat("--notes-fd=", options.notes_fd),
      absl::StrCat("--incarnation=", options.incarnation),
      absl::StrCat("--transport=", options.transport),
      absl::StrCat("--seed=", options.seed)};
  if (options.late_writes) command.push_back("--late-writes");
  if (options.removed_fence == kv_transfer::Fence::kQuarantine) {
    command.push_back("--remove-fence=quarantine");
  }
  if (log) command.push_back("--log");
  return command;
}

}  // namespace

WorkerProcess::WorkerProcess(Role role, const WorkerOptions& given, bool log)
    : role_(role),
      incarnation_(given.incarnation),
      undisturbed_since_(Clock::Monotonic()->Now()) {
  int ends[2];
  PCHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  socket_ = NoteSocket(ScopedFd(ends[0]));
  const ScopedFd theirs(ends[1]);
  WorkerOptions options = given;
  options.notes_fd = theirs.get();
  std::vector<std::string> command = Command(role, options, log);
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t driver = getpid();
  pid_ = fork();
  PCHECK(pid_ >= 0);
  if (pid_ > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != driver) _exit(126);
  fcntl(theirs.get(), F_SETFD, 0);
  execv("/proc/self/exe", argv.data());
  _exit(127);
}

WorkerProcess::~WorkerProcess() {
  if (pid_ <= 0) return;
  Signal(SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void WorkerProcess::Signal(int number) {
  if (pid_ > 0) kill(pid_, number);
}

void WorkerProcess::Kill() {
  killed_ = true;
  Signal(SIGKILL);
}

void WorkerProcess::StandStill(absl::Time until) {
  still_until_ = until;
  Signal(SIGSTOP);
}

void WorkerProcess::Continue(absl::Time now) {
  if (!stands_still()) return;
  still_until_ = absl::InfinitePast();
  undisturbed_since_ = now;
  Signal(SIGCONT);
}

void WorkerProcess::Quit(absl::Time now) {
  leaving_ = true;
  undisturbed_since_ = now;
  socket_.Send({"quit", {}});
}

std::optional<std::string> WorkerProcess::Reap() {
  CHECK(socket_.closed());
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0) PCHECK(errno == EINTR);
  const pid_t pid = pid_;
  pid_ = -1;
  const bool by_us =
      killed_ && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  const bool as_told =
      leaving_ && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (by_us || as_told) return std::nullopt;
  return absl::StrCat(
      role_ == Role::kSender ? "sender " : "receiver ", pid, " ended with ",
      WIFSIGNALED(status)
          ? absl::StrCat("signal ", strsignal(WTERMSIG(status)))
          : absl::StrCat("status ", WEXITSTATUS(status),
                         WEXITSTATUS(status) == kViolationStatus
                             ? ", a violation that it names above"
                             : ""));
}

}  // namespace baton::stress
