#include "common/process/process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::process {
namespace {

sigset_t EndSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

// JSON string of a value that holds no control characters (names, addresses).
std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  out.push_back('"');
  return out;
}

}  // namespace

void SetUpSignals(bool die_with_parent) {
  const sigset_t set = EndSignals();
  PCHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  PCHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
  if (die_with_parent) PCHECK(prctl(PR_SET_PDEATHSIG, SIGTERM) == 0);
}

int WaitForSignal() {
  const sigset_t set = EndSignals();
  int signal = 0;
  CHECK_EQ(sigwait(&set, &signal), 0);
  return signal;
}

void ReportReady(int ready_fd,
                 const std::map<std::string, std::string>& fields) {
  if (ready_fd < 0) return;
  std::string line = "{\"ready\":true";
  for (const auto& [name, value] : fields) {
    absl::StrAppend(&line, ",", Quoted(name), ":", Quoted(value));
  }
  line += "}\n";
  // The reader may be gone; then nobody waits for the line.
  if (write(ready_fd, line.data(), line.size()) < 0) {
    PLOG(WARNING) << "cannot report readiness on fd " << ready_fd;
  }
  close(ready_fd);
}

Incarnation DrawIncarnation() {
  std::random_device random;
  uint64_t value = 0;
  while (value == 0) value = (uint64_t{random()} << 32) | random();
  return Incarnation{value};
}

}  // namespace baton::process
