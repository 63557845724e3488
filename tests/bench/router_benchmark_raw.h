// What a router could not do better: a process of one thread on the router's
// CPU that sends a chunk of 180 bytes per token and stream, by one send(), and
// does nothing else. Takes the same requests as the router's HTTP.
//
// One thread, which must outlive it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>

#include "tests/bench/router_benchmark_setup.h"

namespace baton::bench {

class RawServer final {
 public:
  // Forks: call it while this process has one thread. `board` outlives it.
  explicit RawServer(TokenBoard* board);
  ~RawServer();
  RawServer(const RawServer&) = delete;
  RawServer& operator=(const RawServer&) = delete;

  pid_t pid() const { return pid_; }
  const std::string& address() const { return address_; }

  // Of each stream, spread evenly; 0: as fast as it can.
  void SetTokensPerSecond(double rate) { control_->tokens_per_second = rate; }

 private:
  // In memory that both processes have.
  struct Control {
    std::atomic<int> port{0};
    std::atomic<double> tokens_per_second{20};
  };
  class Loop;

  Control* const control_;
  pid_t pid_ = -1;
  std::string address_;
};

}  // namespace baton::bench
