#include "cli/stop_signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdint>
#include <iterator>
#include <utility>

#include "common/log.h"

namespace baton::cli {

StopSignalFd::StopSignalFd() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  fd_ = OwnedFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  PCHECK(fd_.get() >= 0) << "signalfd";
}

int StopSignalFd::Take() {
  signalfd_siginfo info;
  if (read(fd_.get(), &info, sizeof(info)) != sizeof(info)) return 0;
  return static_cast<int>(info.ssi_signo);
}

StopSignalWatch::StopSignalWatch(std::function<void(int signal)> on_signal)
    : end_(eventfd(0, EFD_CLOEXEC)) {
  PCHECK(end_.get() >= 0) << "eventfd";
  thread_ = std::thread([this, on_signal = std::move(on_signal)] {
    pollfd fds[] = {{end_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    while (poll(fds, std::size(fds), -1) < 0) {
    }
    if (fds[0].revents != 0) return;
    if (const int signal = signals_.Take(); signal != 0) on_signal(signal);
  });
}

StopSignalWatch::~StopSignalWatch() {
  const uint64_t one = 1;
  PCHECK(write(end_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
}

}  // namespace baton::cli
