#include "tests/bench/router_benchmark_slow.h"

#include <sys/socket.h>
#include <unistd.h>

#include "tests/bench/router_benchmark_router.h"
#include "tests/bench/router_benchmark_setup.h"

namespace baton::bench {
namespace {

// The kernel keeps little for a client that does not read.
constexpr int kReceiveBuffer = 4096;

}  // namespace

SlowClients::SlowClients(const std::string& address, int first_stream,
                         int silent, int trickling)
    : address_(address),
      request_(CompletionRequest(first_stream, MakePrompt(16), 16, true)),
      trickling_(trickling) {
  for (int i = 0; i < silent; ++i) {
    silent_.push_back(ConnectTo(address, kReceiveBuffer));
    SendAll(silent_.back(), CompletionRequest(first_stream + i, MakePrompt(16),
                                              100000, /*streamed=*/true));
  }
  for (Trickle& client : trickling_) client.fd = ConnectTo(address);
  thread_ = std::thread([this] { Run(); });
}

SlowClients::~SlowClients() {
  stop_ = true;
  thread_.join();
  for (const int fd : silent_) close(fd);
  for (const Trickle& client : trickling_) close(client.fd);
}

void SlowClients::Run() {
  int64_t due = NowNs();
  for (size_t turn = 0; !stop_ && !trickling_.empty(); ++turn) {
    due += 1'000'000'000 / static_cast<int64_t>(trickling_.size());
    SleepUntil(due);
    SendByte(&trickling_[turn % trickling_.size()]);
  }
}

void SlowClients::SendByte(Trickle* client) {
  // The server may have answered that it waits no more, and then closes.
  char answer[1024];
  const ssize_t ended = recv(client->fd, answer, sizeof(answer), MSG_DONTWAIT);
  if (ended < 0 && send(client->fd, &request_[client->sent % request_.size()],
                        1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1) {
    ++client->sent;
    return;
  }
  close(client->fd);
  *client = {ConnectTo(address_), 0};
  ++num_dropped_;
}

}  // namespace baton::bench
