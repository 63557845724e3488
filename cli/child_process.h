// One child process that speaks Baton's start-up contract: it gets --ready-fd,
// writes one JSON line there when it is ready, and logs to a file.
//
// May be used from one thread, which must live as long as the child does: the
// kernel ends the child when that thread goes (PR_SET_PDEATHSIG). Never leaves
// a zombie or an orphan: the destructor kills and reaps.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::cli {

// A file descriptor that closes itself; move-only.
class OwnedFd final {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  OwnedFd& operator=(OwnedFd&& other) noexcept;
  ~OwnedFd() { Reset(); }

  int get() const { return fd_; }
  void Reset();

 private:
  int fd_ = -1;
};

// How a process ended.
struct ExitState {
  int code = 0;    // when signal is 0
  int signal = 0;  // the signal that ended it

  bool clean() const { return code == 0 && signal == 0; }
  // "exit status 1", "killed by signal 9 (Killed)".
  std::string Describe() const;
};

// What a child said in its ready line: "grpc" -> "127.0.0.1:41234", ...
using ReadyFields = std::map<std::string, std::string>;

// InvalidArgument when the line is not a JSON object with "ready": true.
absl::StatusOr<ReadyFields> ParseReadyLine(const std::string& line);

struct ChildOptions {
  // For messages: "decode-0".
  std::string name;
  // The program's path and its arguments.
  std::vector<std::string> command;
  // Gets standard output and standard error. An existing file is appended to.
  std::string log_path;
  // Whether "--ready-fd N" is added. Without it the child is never ready.
  bool ready_line = true;
  // What the child has besides this process's environment, or in its place.
  std::map<std::string, std::string> environment;
};

class ChildProcess final {
 public:
  // NotFound when the program or the log's folder is not there.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      ChildOptions options);

  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  const std::string& name() const { return options_.name; }
  const std::string& log_path() const { return options_.log_path; }
  pid_t pid() const { return pid_; }

  // For poll: readable when ReadReady has something to read, -1 once it has
  // all; readable when the child has ended.
  int ready_fd() const { return ready_pipe_.get(); }
  int exit_fd() const { return pid_fd_.get(); }

  // Reads what the child has written so far, without waiting.
  void ReadReady();
  bool is_ready() const { return ready_.has_value(); }
  // REQUIRES: is_ready().
  const ReadyFields& ready() const { return *ready_; }

  // Waits until the child is ready. Unavailable when it ends before, with how
  // it ended and the tail of its log; DeadlineExceeded.
  absl::Status WaitReady(absl::Duration timeout);

  // Nothing when the child has been reaped.
  void Signal(int signal);

  // How it ended, when it has. Reaps it.
  const std::optional<ExitState>& Poll();
  // Waits for the end; DeadlineExceeded when it does not come.
  absl::StatusOr<ExitState> WaitExit(absl::Duration timeout);
  // SIGTERM, and SIGKILL when that does not end it within `grace`.
  ExitState Stop(absl::Duration grace);

  // All of the log, or its last lines.
  std::string Log() const;
  std::string LogTail(int num_lines) const;

 private:
  explicit ChildProcess(ChildOptions options) : options_(std::move(options)) {}
  absl::Status Launch();

  const ChildOptions options_;
  pid_t pid_ = -1;
  OwnedFd pid_fd_;
  OwnedFd ready_pipe_;
  std::string ready_text_;
  std::optional<ReadyFields> ready_;
  std::optional<ExitState> exit_;
};

}  // namespace baton::cli
