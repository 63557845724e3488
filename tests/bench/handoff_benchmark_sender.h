// The prefill worker's process of handoff_benchmark: what runs in it, and how
// the other process starts it and talks to it. One thread each.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/scoped_fd.h"
#include "tests/bench/handoff_benchmark_setup.h"

namespace baton::kv_transfer {

// Does what standard input says, one line each, and answers with one line:
//   write N SEED        writes the pages of the first N blocks anew
//   transfer N ID       hands them over; answers with the seconds it took
//   row N ID COUNT      hands COUNT over, from ID on, two at a time: the first
//   N
//                       blocks and the next ones in turn, each when a byte came
//                       through the TCP connection; the same
//   stream BYTES        sends them through a TCP connection; the same
// The first line, by itself, is "ready DESCRIPTOR" of KV memory. `args`:
// transport, data address, TCP port, plan.
int RunSender(char** args);
inline constexpr int kSenderArgs = 3 + Plan::kArgs;

class SenderProcess final {
 public:
  // This program again, with --sender and `args`.
  explicit SenderProcess(std::vector<std::string> args);
  ~SenderProcess();
  SenderProcess(const SenderProcess&) = delete;
  SenderProcess& operator=(const SenderProcess&) = delete;

  void Say(const std::string& line);
  std::string Hear();
  std::string Ask(const std::string& line) {
    Say(line);
    return Hear();
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  ScopedFd in_, out_;
};

}  // namespace baton::kv_transfer
