// Clients that do not do their part: some send a request and never read the
// answer, some send a byte of their request a second. Those that the server
// drops come again.
//
// One thread calls it; one of its own works.
#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace baton::bench {

class SlowClients final {
 public:
  // The silent ones are the streams [first_stream, first_stream + silent).
  SlowClients(const std::string& address, int first_stream, int silent,
              int trickling);
  ~SlowClients();
  SlowClients(const SlowClients&) = delete;
  SlowClients& operator=(const SlowClients&) = delete;

  // How often one that sends slowly was dropped and came again.
  int num_dropped() const { return num_dropped_; }

 private:
  struct Trickle {
    int fd = -1;
    size_t sent = 0;
  };

  void Run();
  void SendByte(Trickle* client);

  const std::string address_;
  const std::string request_;
  std::vector<int> silent_;
  std::vector<Trickle> trickling_;
  std::atomic<bool> stop_{false};
  std::atomic<int> num_dropped_{0};
  std::thread thread_;
};

}  // namespace baton::bench
