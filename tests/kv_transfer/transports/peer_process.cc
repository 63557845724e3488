// A worker's data plane in a process of its own, to be stopped and killed.
//
//   peer_process KIND send ADDRESS RECEIVER TRANSFER BLOCKS LAYERS PAGE_BYTES
//                     COMMIT
//     pairs with ADDRESS and sends BLOCKS blocks as transfer TRANSFER,
//     generation 1; commits when COMMIT is 1. Prints "quiet" when
//     nothing of it is on the wire any more.
//   peer_process KIND receive TRANSFER BLOCKS LAYERS PAGE_BYTES
//     opens that transfer and prints its address.
//
// KIND is that of its transport (tests/support/cuda_memory.h). Its incarnation
// is its process id. It ends when standard input does.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/log.h"
#include "kv_transfer/handoff_receiver.h"
#include "kv_transfer/handoff_sender.h"
#include "tests/kv_transfer/kv_fixture.h"
#include "tests/support/cuda_memory.h"

namespace baton::kv_transfer {
namespace {

std::vector<BlockId> Blocks(int32_t n) {
  std::vector<BlockId> blocks(n);
  std::iota(blocks.begin(), blocks.end(), 0);
  return blocks;
}

absl::Time InAMinute() { return Clock::Monotonic()->Now() + absl::Minutes(1); }

void AwaitEndOfInput() {
  char c;
  while (read(STDIN_FILENO, &c, 1) > 0) {
  }
}

struct Wake {
  absl::Mutex mu;
  bool woken = false;
  void Set() {
    absl::MutexLock lock(&mu);
    woken = true;
  }
  void Await() {
    absl::MutexLock lock(&mu);
    mu.Await(absl::Condition(&woken));
    woken = false;
  }
};

int Send(const std::string& kind, char** args) {
  const std::string address = args[0];
  const Incarnation receiver{std::strtoull(args[1], nullptr, 10)};
  const TransferId transfer{std::strtoull(args[2], nullptr, 10)};
  const int32_t num_blocks = std::atoi(args[3]);
  const int32_t num_layers = std::atoi(args[4]);
  const bool commit = std::atoi(args[6]) != 0;
  KvMemory memory(num_layers, num_blocks, std::atoll(args[5]), MirrorOf(kind));
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    for (int32_t i = 0; i < num_blocks; ++i) {
      memory.Write(static_cast<uint64_t>(transfer), layer, i, i);
    }
  }
  auto transport = CreateTransportOf(kind, {.listen = false});
  CHECK(transport.ok()) << transport.status();
  Wake wake;
  HandoffOptions options;
  options.self = MakeHello(v1::WORKER_ROLE_PREFILL, getpid(), "sender");
  options.kv = memory.geometry();
  options.wake = [&] { wake.Set(); };
  auto sender = HandoffSender::Create(transport->get(), options);
  CHECK(sender.ok()) << sender.status();
  CHECK((*sender)->Pair(address).ok());
  while (!(*sender)->IsReady(receiver)) {
    wake.Await();
    (*sender)->Poll();
  }
  HandoffSender::Grant grant;
  grant.transfer = transfer;
  grant.generation = 1;
  grant.receiver = receiver;
  grant.num_tokens = num_blocks * kBlockTokens;
  const absl::Status started =
      (*sender)->Start(grant, Blocks(num_blocks), InAMinute());
  CHECK(started.ok()) << started;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    (*sender)->SendLayer(transfer, layer, num_blocks);
  }
  if (commit) (*sender)->Commit(transfer, {.first_token = 1});
  std::atomic<bool> over = false;
  std::thread watcher([&] {
    for (; !over; wake.Await()) {
      for (const HandoffSender::Event& event : (*sender)->Poll()) {
        if (!std::holds_alternative<HandoffSender::Quiesced>(event)) continue;
        std::printf("quiet\n");
        std::fflush(stdout);
      }
    }
  });
  AwaitEndOfInput();
  over = true;
  wake.Set();
  watcher.join();
  return 0;
}

int Receive(const std::string& kind, char** args) {
  const int32_t num_blocks = std::atoi(args[1]);
  KvMemory memory(std::atoi(args[2]), num_blocks, std::atoll(args[3]),
                  MirrorOf(kind));
  auto transport = CreateTransportOf(kind, {});
  CHECK(transport.ok()) << transport.status();
  HandoffOptions options;
  options.self = MakeHello(v1::WORKER_ROLE_DECODE, getpid(), "receiver");
  options.kv = memory.geometry();
  auto receiver = HandoffReceiver::Create(transport->get(), options);
  CHECK(receiver.ok()) << receiver.status();
  HandoffReceiver::OpenTransfer open;
  open.transfer = TransferId{std::strtoull(args[0], nullptr, 10)};
  open.generation = 1;
  open.blocks = Blocks(num_blocks);
  open.deadline = InAMinute();
  CHECK((*receiver)->Open(open).ok());
  std::printf("%s\n", (*transport)->properties().address.c_str());
  std::fflush(stdout);
  AwaitEndOfInput();
  return 0;
}

}  // namespace
}  // namespace baton::kv_transfer

int main(int argc, char** argv) {
  baton::InitLogging("peer_process");
  const std::string kind = argc > 2 ? argv[1] : "";
  const std::string mode = argc > 2 ? argv[2] : "";
  if (mode == "send" && argc == 10) {
    return baton::kv_transfer::Send(kind, argv + 3);
  }
  if (mode == "receive" && argc == 7) {
    return baton::kv_transfer::Receive(kind, argv + 3);
  }
  std::fprintf(stderr, "usage: see peer_process.cc\n");
  return 2;
}
