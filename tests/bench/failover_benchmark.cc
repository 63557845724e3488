// How long streams pause when a worker dies, stops or is restarted: real
// processes on this machine, default settings. Prints a table; not a test,
// because the time is the machine's.
//
//   failover_benchmark MODEL_DIR [STREAMS] [ROUNDS]
//
// In each round a cluster of two prefill and two decode workers serves STREAMS
// streams; when all of them run, one worker is killed (SIGKILL), stopped
// (SIGSTOP) or drained (SIGTERM). The pause of a stream is its longest gap
// between two responses from then on. Wrong tokens end the program.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/synchronization/blocking_counter.h"
#include "common/clock.h"
#include "common/log.h"
#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/integration/reference.h"

namespace baton::test {
namespace {

struct Event {
  const char* name;
  const char* worker;
  int signal;
};

constexpr Event kEvents[] = {
    {"decode worker, kill -9", "decode-0", SIGKILL},
    {"decode worker, SIGSTOP", "decode-0", SIGSTOP},
    {"decode worker, SIGTERM", "decode-0", SIGTERM},
    {"prefill worker, kill -9", "prefill-0", SIGKILL},
};

v1::GenerateRequest RequestOf(int vocab_size, int i) {
  std::vector<TokenId> prompt;
  for (int k = 0; k < 40 + i; ++k) {
    prompt.push_back((k * 37 + i * 11) % vocab_size);
  }
  return GreedyRequest(prompt, 300);
}

// The longest gap of each stream after the event.
std::vector<absl::Duration> RunRound(
    const std::string& model_dir,
    const std::vector<v1::GenerateRequest>& requests,
    const std::vector<std::vector<TokenId>>& expected, const Event& event) {
  const int streams = static_cast<int>(requests.size());
  Cluster cluster(model_dir);
  Flags decode;
  // Else the streams would end before the time to drain does.
  if (event.signal == SIGTERM) decode = {"--drain-seconds", "0.2"};
  const absl::Status started =
      cluster.Start({.prefill = {{}, {}}, .decode = {decode, decode}});
  CHECK(started.ok()) << started;
  const auto stub = cluster.MakeStub();
  const Clock* const clock = Clock::Monotonic();
  std::vector<absl::Duration> gaps(streams);
  absl::BlockingCounter running(streams);
  std::vector<std::thread> clients;
  for (int i = 0; i < streams; ++i) {
    clients.emplace_back([&, i] {
      absl::Time last = absl::InfiniteFuture();
      bool counted = false;
      const Answer answer =
          Generate(*stub, requests[i], 4 * kPatience,
                   [&](const v1::GenerateResponse&, size_t tokens) {
                     const absl::Time now = clock->Now();
                     if (counted) gaps[i] = std::max(gaps[i], now - last);
                     last = now;
                     if (tokens >= 3 && !std::exchange(counted, true)) {
                       running.DecrementCount();
                     }
                     return true;
                   });
      CHECK(answer.status.ok()) << answer.status;
      CHECK(answer.tokens == expected[i]) << "wrong tokens";
      if (!counted) running.DecrementCount();
    });
  }
  running.Wait();
  if (event.signal == SIGKILL) {
    cluster.Kill(event.worker);
  } else {
    cluster.process(event.worker).Signal(event.signal);
  }
  for (std::thread& client : clients) client.join();
  if (event.signal == SIGSTOP) cluster.process(event.worker).Signal(SIGCONT);
  return gaps;
}

double Quantile(std::vector<absl::Duration>& sorted, double q) {
  const size_t last = sorted.size() - 1;
  return absl::ToDoubleMilliseconds(
      sorted[std::min(last, static_cast<size_t>(q * sorted.size()))]);
}

int Main(int argc, char** argv) {
  int streams = 24;
  int rounds = 5;
  if (argc < 2 || argc > 4 ||
      (argc > 2 && !absl::SimpleAtoi(argv[2], &streams)) ||
      (argc > 3 && !absl::SimpleAtoi(argv[3], &rounds)) || streams < 1 ||
      rounds < 1) {
    std::fprintf(stderr, "%s MODEL_DIR [STREAMS] [ROUNDS]\n", argv[0]);
    return 2;
  }
  InitLogging("failover_benchmark");
  const auto reference = Reference::Load(argv[1]);
  CHECK(reference.ok()) << reference.status();
  std::vector<v1::GenerateRequest> requests;
  std::vector<std::vector<TokenId>> expected;
  for (int i = 0; i < streams; ++i) {
    requests.push_back(RequestOf((*reference)->model().vocab_size, i));
    expected.push_back((*reference)->Tokens(requests.back()));
  }
  std::printf("%d streams, %d rounds; longest pause of each stream, ms\n",
              streams, rounds);
  std::printf("%-26s %8s %8s %8s\n", "event", "median", "p99", "max");
  for (const Event& event : kEvents) {
    std::vector<absl::Duration> gaps;
    for (int round = 0; round < rounds; ++round) {
      const auto more = RunRound(argv[1], requests, expected, event);
      gaps.insert(gaps.end(), more.begin(), more.end());
    }
    std::sort(gaps.begin(), gaps.end());
    std::printf("%-26s %8.0f %8.0f %8.0f\n", event.name, Quantile(gaps, 0.5),
                Quantile(gaps, 0.99), Quantile(gaps, 1));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace baton::test

int main(int argc, char** argv) { return baton::test::Main(argc, argv); }
