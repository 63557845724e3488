// SIGINT and SIGTERM as a file descriptor, and as a callback.
#pragma once

#include <functional>
#include <thread>

#include "cli/child_process.h"

namespace baton::cli {

// Readable when SIGINT or SIGTERM has come. REQUIRES: process::SetUpSignals was
// called, so that they are blocked.
class StopSignalFd final {
 public:
  StopSignalFd();

  int get() const { return fd_.get(); }
  // The signal that has come and was not taken yet; 0 when there is none.
  int Take();

 private:
  OwnedFd fd_;
};

// Calls `on_signal` with it on a thread of its own when the first SIGINT or
// SIGTERM comes in its lifetime. REQUIRES: as StopSignalFd.
class StopSignalWatch final {
 public:
  explicit StopSignalWatch(std::function<void(int signal)> on_signal);
  ~StopSignalWatch();
  StopSignalWatch(const StopSignalWatch&) = delete;
  StopSignalWatch& operator=(const StopSignalWatch&) = delete;

 private:
  StopSignalFd signals_;
  OwnedFd end_;
  std::thread thread_;
};

}  // namespace baton::cli
