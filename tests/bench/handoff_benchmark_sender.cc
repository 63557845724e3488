#include "tests/bench/handoff_benchmark_sender.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>

#include "kv_transfer/handoff_sender.h"

namespace baton::kv_transfer {
namespace {

ScopedFd ConnectStream(uint16_t port) {
  ScopedFd stream(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  PCHECK(connect(stream.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) ==
         0);
  const int on = 1;
  setsockopt(stream.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return stream;
}

// All that the process has; one command at a time.
class Prefill final {
 public:
  explicit Prefill(char** args)
      : plan_(Plan::Parse(args + 3)), blocks_(plan_.Blocks(kSenderSeed)) {
    auto arena = engine::cpu::MemoryArena::AllocateShared(
        plan_.BytesOf(plan_.num_blocks), "KV memory");
    CHECK(arena.ok()) << arena.status();
    arena_ = *std::move(arena);
    transport_ = OpenTransport(args[0], /*listen=*/false);
    HandoffOptions options = OptionsOf(plan_, v1::WORKER_ROLE_PREFILL, arena_);
    options.wake = [this] { bell_.Ring(); };
    kv_ = options.kv;
    auto sender = HandoffSender::Create(transport_.get(), options);
    CHECK(sender.ok()) << sender.status();
    sender_ = *std::move(sender);
    CHECK(sender_->Pair(args[1]).ok());
    AwaitEvent<PeerReady>(*sender_, bell_);
    stream_ = ConnectStream(static_cast<uint16_t>(std::atoi(args[2])));
  }

  int descriptor() const { return arena_.descriptor(); }

  // All pages of the first n blocks, as computing them would.
  void Write(int64_t n, uint64_t seed) {
    for (int32_t layer = 0; layer < kv_.num_layers; ++layer) {
      for (int64_t i = 0; i < n; ++i) {
        std::memset(kv_.memory.data() + kv_.PageOffset(layer, blocks_[i]),
                    static_cast<int>(seed + layer + i), kv_.page_bytes);
      }
    }
  }

  double Transfer(int64_t n, uint64_t id) {
    Send(absl::MakeConstSpan(blocks_).first(n), id);
    return absl::ToDoubleSeconds(
        AwaitEvent<HandoffSender::Acked>(*sender_, bell_).duration);
  }

  double Row(int64_t n, uint64_t first, int count) {
    const absl::Time start = Now();
    int sent = 0;
    for (int acked = 0; acked < count;) {
      while (sent < std::min(count, acked + kAtOnce)) {
        char granted;
        PCHECK(recv(stream_.get(), &granted, 1, 0) == 1);
        Send(absl::MakeConstSpan(blocks_).subspan(n * (sent % kAtOnce), n),
             first + sent);
        ++sent;
      }
      acked += static_cast<int>(
          AwaitEvents<HandoffSender::Acked>(*sender_, bell_).size());
    }
    return absl::ToDoubleSeconds(Now() - start);
  }

  // Until the answer to a byte.
  double Ask() {
    const absl::Time start = Now();
    PCHECK(send(stream_.get(), "?", 1, MSG_NOSIGNAL) == 1);
    char answer;
    PCHECK(recv(stream_.get(), &answer, 1, 0) == 1);
    return absl::ToDoubleSeconds(Now() - start);
  }

  double Stream(int64_t bytes) {
    const absl::Time start = Now();
    for (int64_t sent = 0; sent < bytes;) {
      const ssize_t more =
          send(stream_.get(), kv_.memory.data() + sent,
               std::min<int64_t>(bytes - sent, int64_t{1} << 20), MSG_NOSIGNAL);
      PCHECK(more > 0);
      sent += more;
    }
    char ack;
    PCHECK(recv(stream_.get(), &ack, 1, 0) == 1);
    return absl::ToDoubleSeconds(Now() - start);
  }

 private:
  // To the decode worker, which has granted it.
  void Send(absl::Span<const BlockId> blocks, uint64_t id) {
    HandoffSender::Grant grant;
    grant.transfer = TransferId{id};
    grant.generation = 1;
    grant.receiver = Incarnation{2};
    const auto n = static_cast<int32_t>(blocks.size());
    grant.num_tokens = n * kBlockTokens;
    CHECK(sender_->Start(grant, blocks, InAMinute()).ok());
    for (int32_t layer = 0; layer < kv_.num_layers; ++layer) {
      sender_->SendLayer(grant.transfer, layer, n);
    }
    sender_->Commit(grant.transfer, {.first_token = 1});
  }

  const Plan plan_;
  const std::vector<BlockId> blocks_;
  engine::cpu::MemoryArena arena_;
  KvGeometry kv_;
  Bell bell_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<HandoffSender> sender_;
  ScopedFd stream_;
};

}  // namespace

int RunSender(char** args) {
  Prefill prefill(args);
  std::cout << "ready " << prefill.descriptor() << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command;
    int64_t n = 0;
    uint64_t number = 0;
    words >> command >> n >> number;
    if (command == "write") {
      prefill.Write(n, number);
      std::cout << "written" << std::endl;
    } else if (command == "transfer") {
      std::cout << prefill.Transfer(n, number) << std::endl;
    } else if (command == "row") {
      int count = 0;
      words >> count;
      std::cout << prefill.Row(n, number, count) << std::endl;
    } else if (command == "ask") {
      std::cout << prefill.Ask() << std::endl;
    } else if (command == "stream") {
      std::cout << prefill.Stream(n) << std::endl;
    }
  }
  return 0;
}

SenderProcess::SenderProcess(std::vector<std::string> args) {
  int in[2], out[2];
  PCHECK(pipe2(in, O_CLOEXEC) == 0);
  PCHECK(pipe2(out, O_CLOEXEC) == 0);
  args.insert(args.begin(), {"handoff_benchmark", "--sender"});
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  pid_ = fork();
  PCHECK(pid_ >= 0);
  if (pid_ == 0) {
    KeepToCpu(1);
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  in_ = ScopedFd(in[1]);
  out_ = ScopedFd(out[0]);
}

SenderProcess::~SenderProcess() {
  kill(pid_, SIGTERM);
  waitpid(pid_, nullptr, 0);
}

void SenderProcess::Say(const std::string& line) {
  const std::string bytes = line + "\n";
  PCHECK(write(in_.get(), bytes.data(), bytes.size()) ==
         static_cast<ssize_t>(bytes.size()));
}

std::string SenderProcess::Hear() {
  std::string line;
  char c;
  ssize_t n;
  while ((n = read(out_.get(), &c, 1)) == 1 && c != '\n') line += c;
  CHECK(n == 1) << "the sender's process ended";
  return line;
}

}  // namespace baton::kv_transfer
