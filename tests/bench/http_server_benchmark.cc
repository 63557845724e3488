// What the HTTP server costs for each open stream and each write: one process
// is the server and its handler, a child of it all of the clients.
//
//   http_server_benchmark STREAMS EVENTS_PER_SECOND SECONDS [THREADS]
//
// The handler's one thread writes 150 bytes to each stream in turn, in a turn
// of work each millisecond. Reported are the memory of the server's process
// for each stream, with nothing written yet and at the end; the processor time
// of the handler's thread for each write, and of the whole process; and how
// long after the begin of its turn a client had an event. Kernel memory is not
// in it.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/log.h"
#include "router/http/http_server.h"
#include "tests/router/http/raw_client.h"

namespace baton::router::http {
namespace {

struct Plan {
  int streams = 0;
  double events_per_second = 0;
  double seconds = 0;
  int threads = 1;
};

double Seconds(clockid_t clock) {
  timespec now;
  CHECK_EQ(clock_gettime(clock, &now), 0);
  return static_cast<double>(now.tv_sec) + 1e-9 * now.tv_nsec;
}
double Now() { return Seconds(CLOCK_MONOTONIC); }

// Of this process, in bytes.
double Rss() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  CHECK(file != nullptr);
  long pages = 0;
  CHECK_EQ(std::fscanf(file, "%*d %ld", &pages), 1);
  std::fclose(file);
  return static_cast<double>(pages) * sysconf(_SC_PAGESIZE);
}

// The child: reads all streams until `seconds` after the first event.
int RunClients(const std::string& address, const Plan& plan) {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < plan.streams; ++i) {
    clients.push_back(std::make_unique<RawClient>(address));
    CHECK(clients.back()->Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = clients.back()->fd();
    CHECK_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, event.data.fd, &event), 0);
  }
  std::vector<double> delays;
  double events = 0, end = 0;
  std::vector<char> bytes(1 << 16);
  while (end == 0 || Now() < end) {
    epoll_event ready[512];
    const int count = epoll_wait(epoll, ready, 512, 100);
    for (int i = 0; i < count; ++i) {
      const ssize_t got =
          read(ready[i].data.fd, bytes.data(), bytes.size() - 1);
      CHECK_GT(got, 0);
      bytes[got] = '\0';
      const double now = Now();
      for (const char* at = std::strstr(bytes.data(), "{\"t\":"); at != nullptr;
           at = std::strstr(at + 1, "{\"t\":")) {
        ++events;
        delays.push_back(now - std::atof(at + 5));
      }
      if (events > 0 && end == 0) end = now + plan.seconds;
    }
  }
  std::sort(delays.begin(), delays.end());
  const auto at = [&](double share) {
    return 1e3 * delays[static_cast<size_t>(share * (delays.size() - 1))];
  };
  absl::PrintF("clients: %.0f events/s, delay p50 %.2f ms, p99 %.2f ms\n",
               events / plan.seconds, at(0.5), at(0.99));
  return 0;
}

class Streams final : public Handler {
 public:
  void Handle(Request, std::shared_ptr<Responder> responder) override {
    responder->Start({200, {{"Content-Type", "text/event-stream"}}, ""});
    absl::MutexLock lock(&mu_);
    open_.push_back(std::move(responder));
  }

  std::vector<std::shared_ptr<Responder>> Await(size_t count) {
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return open_.size() == count;
    };
    absl::MutexLock lock(&mu_);
    CHECK(mu_.AwaitWithTimeout(absl::Condition(&enough), absl::Minutes(1)));
    return open_;
  }

 private:
  absl::Mutex mu_;
  std::vector<std::shared_ptr<Responder>> open_ ABSL_GUARDED_BY(mu_);
};

void WriteEvents(const Plan& plan,
                 const std::vector<std::shared_ptr<Responder>>& streams) {
  const double begin = Now();
  const double process_begin = Seconds(CLOCK_PROCESS_CPUTIME_ID);
  double in_writes = 0, written = 0, turn = begin;
  const std::string rest(120, 'x');
  size_t next = 0;
  while ((turn = Now()) < begin + plan.seconds) {
    const std::string event =
        absl::StrFormat("data: {\"t\":%.6f,\"%s\"}\n\n", turn, rest);
    const double turn_begin = Seconds(CLOCK_THREAD_CPUTIME_ID);
    for (; written < (turn - begin) * plan.events_per_second; ++written) {
      CHECK(streams[next]->Write(event)) << "a client is too slow";
      next = (next + 1) % streams.size();
    }
    in_writes += Seconds(CLOCK_THREAD_CPUTIME_ID) - turn_begin;
    poll(nullptr, 0, 1);
  }
  absl::PrintF(
      "server: %.0f writes/s, %.0f ns each, %.2f cores in all\n",
      written / plan.seconds, 1e9 * in_writes / std::max(1.0, written),
      (Seconds(CLOCK_PROCESS_CPUTIME_ID) - process_begin) / plan.seconds);
}

int Run(const Plan& plan) {
  int pipe_ends[2];
  CHECK_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();  // Before there are threads.
  if (child == 0) {
    char address[64] = "";
    CHECK_GT(read(pipe_ends[0], address, sizeof(address) - 1), 0);
    return RunClients(address, plan);
  }
  Streams handler;
  HttpServer::Options options;
  options.listen = "127.0.0.1:0";
  options.threads = plan.threads;
  auto server = HttpServer::Start(options, &handler);
  CHECK(server.ok()) << server.status();
  const double rss = Rss();
  const std::string& address = (*server)->address();
  CHECK_GT(write(pipe_ends[1], address.data(), address.size()), 0);
  const auto streams = handler.Await(plan.streams);
  absl::PrintF("%d streams: %.2f KB each, idle\n", plan.streams,
               (Rss() - rss) / plan.streams / 1024);
  std::fflush(stdout);
  WriteEvents(plan, streams);
  absl::PrintF("%d streams: %.2f KB each, written to\n", plan.streams,
               (Rss() - rss) / plan.streams / 1024);
  std::fflush(stdout);
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace
}  // namespace baton::router::http

int main(int argc, char** argv) {
  baton::router::http::Plan plan;
  if (argc < 4 || !absl::SimpleAtoi(argv[1], &plan.streams) ||
      !absl::SimpleAtod(argv[2], &plan.events_per_second) ||
      !absl::SimpleAtod(argv[3], &plan.seconds) ||
      (argc > 4 && !absl::SimpleAtoi(argv[4], &plan.threads)) ||
      plan.streams < 1 || plan.seconds <= 0) {
    std::fprintf(stderr,
                 "http_server_benchmark STREAMS EVENTS_PER_SECOND SECONDS "
                 "[THREADS]\n");
    return 2;
  }
  // As in the router: the lock graph of Abseil's mutexes costs more than them.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return baton::router::http::Run(plan);
}
