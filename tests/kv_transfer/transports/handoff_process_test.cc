// The hand-off over real transports: within this process, and with a worker in
// another one that is killed or stopped in the middle.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/mutex.h"
#include "common/log.h"
#include "kv_transfer/handoff_receiver.h"
#include "kv_transfer/handoff_sender.h"
#include "tests/kv_transfer/kv_fixture.h"
#include "tests/support/cuda_memory.h"

namespace baton::kv_transfer {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kHere = 4242;

std::vector<BlockId> Blocks(int32_t first, int32_t n) {
  std::vector<BlockId> blocks(n);
  std::iota(blocks.begin(), blocks.end(), first);
  return blocks;
}

absl::Time In(absl::Duration d) { return Clock::Monotonic()->Now() + d; }

// The other worker: peer_process.cc.
class PeerProcess final {
 public:
  explicit PeerProcess(std::vector<std::string> args) {
    int in[2], out[2];
    PCHECK(pipe(in) == 0);
    PCHECK(pipe(out) == 0);
    args.insert(args.begin(),
                BATON_BINARY_DIR "/tests/bin/kv_transfer_peer_process");
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    pid_ = fork();
    PCHECK(pid_ >= 0);
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      close(in[1]);
      close(out[0]);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  ~PeerProcess() {
    Signal(SIGKILL);
    Wait();
    if (in_ >= 0) close(in_);
    close(out_);
  }

  std::string ReadLine() {
    std::string line;
    char c;
    while (read(out_, &c, 1) == 1 && c != '\n') line += c;
    return line;
  }
  void Signal(int number) {
    if (pid_ <= 0) return;
    kill(pid_, number);
    if (number != SIGSTOP) return;
    // Its threads stop one after another; on a busy machine they get much done
    // before the last one does.
    int status = 0;
    PCHECK(waitpid(pid_, &status, WUNTRACED) == pid_);
    CHECK(WIFSTOPPED(status));
  }
  // Its exit status, or minus the signal that killed it.
  int Wait() {
    if (pid_ <= 0) return 0;
    int status = 0;
    PCHECK(waitpid(pid_, &status, 0) == pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  // Ends its standard input, and waits for it to end by itself.
  int Finish() {
    close(in_);
    in_ = -1;
    return Wait();
  }
  Incarnation incarnation() const { return Incarnation(pid_); }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
};

// A sender or a receiver with its transport and all events so far.
template <typename Side>
class Worker final {
 public:
  using Event = typename Side::Event;

  Worker(const std::string& kind, uint64_t incarnation, KvMemory& memory,
         absl::Duration quarantine_timeout = absl::Seconds(2)) {
    constexpr bool kReceives = std::is_same_v<Side, HandoffReceiver>;
    UcxOptions ucx;
    ucx.listen = kReceives;
    auto transport = CreateTransportOf(kind, ucx);
    CHECK(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
    HandoffOptions options;
    options.self =
        MakeHello(kReceives ? v1::WORKER_ROLE_DECODE : v1::WORKER_ROLE_PREFILL,
                  incarnation, "test");
    options.kv = memory.geometry();
    options.quarantine_timeout = quarantine_timeout;
    options.wake = [this] {
      absl::MutexLock lock(&mu_);
      woken_ = true;
    };
    auto side = Side::Create(transport_.get(), options);
    CHECK(side.ok()) << side.status();
    side_ = *std::move(side);
  }

  Side* operator->() { return side_.get(); }
  const std::string& address() { return transport_->properties().address; }

  // The first event of type T that comes, or came and was not taken before.
  template <typename T>
  std::optional<T> Await(absl::Duration timeout = absl::Seconds(30)) {
    const absl::Time deadline = In(timeout);
    for (;;) {
      for (Event& event : side_->Poll()) events_.push_back(std::move(event));
      for (auto it = events_.begin(); it != events_.end(); ++it) {
        if (const T* found = std::get_if<T>(&*it)) {
          T out = *found;
          events_.erase(it);
          return out;
        }
      }
      absl::MutexLock lock(&mu_);
      if (!mu_.AwaitWithTimeout(absl::Condition(&woken_),
                                deadline - Clock::Monotonic()->Now())) {
        return std::nullopt;
      }
      woken_ = false;
    }
  }
  template <typename T>
  bool Has() {
    return Await<T>(absl::ZeroDuration()).has_value();
  }

 private:
  absl::Mutex mu_;
  bool woken_ = false;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Side> side_;
  std::vector<Event> events_;
};

// The kind of transport of both workers.
class HandoffProcessTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() != kUcxCuda) return;
    if (const absl::Status cuda = CheckCudaMemory(); !cuda.ok()) {
      GTEST_SKIP() << cuda.message();
    }
  }
  static KvMemory::MakeMirror Mirror() { return MirrorOf(GetParam()); }
};

using Receiver = Worker<HandoffReceiver>;
using Sender = Worker<HandoffSender>;

HandoffReceiver::OpenTransfer OpenOf(uint64_t id, std::vector<BlockId> blocks,
                                     absl::Duration timeout) {
  HandoffReceiver::OpenTransfer open;
  open.transfer = TransferId{id};
  open.generation = 1;
  open.blocks = std::move(blocks);
  open.deadline = In(timeout);
  return open;
}

HandoffSender::Grant GrantOf(uint64_t id, Incarnation receiver, int32_t n) {
  HandoffSender::Grant grant;
  grant.transfer = TransferId{id};
  grant.generation = 1;
  grant.receiver = receiver;
  grant.num_tokens = n * kBlockTokens;
  return grant;
}

TEST_P(HandoffProcessTest, TransfersLandBitForBit) {
  constexpr int32_t kLayers = 6, kBlocks = 96, kPerTransfer = 12;
  KvMemory here(kLayers, kBlocks, 8 << 10, Mirror());
  KvMemory there(kLayers, kBlocks, 8 << 10, Mirror());
  Receiver receiver(GetParam(), kHere, there);
  Sender sender(GetParam(), 1, here);
  ASSERT_TRUE(sender->Pair(receiver.address()).ok());
  ASSERT_TRUE(sender.Await<PeerReady>().has_value());

  // Eight transfers at once; the blocks of each in opposite order there.
  constexpr int32_t kTransfers = kBlocks / kPerTransfer;
  const auto target = [](int32_t t) {
    auto blocks = Blocks(t * kPerTransfer, kPerTransfer);
    std::reverse(blocks.begin(), blocks.end());
    return blocks;
  };
  for (int32_t t = 0; t < kTransfers; ++t) {
    ASSERT_TRUE(receiver->Open(OpenOf(t, target(t), absl::Minutes(1))).ok());
    ASSERT_TRUE(sender
                    ->Start(GrantOf(t, Incarnation{kHere}, kPerTransfer),
                            Blocks(t * kPerTransfer, kPerTransfer),
                            In(absl::Minutes(1)))
                    .ok());
  }
  for (int32_t chunk = 1; chunk <= 3; ++chunk) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (int32_t t = 0; t < kTransfers; ++t) {
        // Computed just now.
        for (int32_t i = (chunk - 1) * 4; i < chunk * 4; ++i) {
          here.Write(t, layer, i, t * kPerTransfer + i);
        }
        sender->SendLayer(TransferId(t), layer, chunk * 4);
      }
    }
  }
  for (int32_t t = 0; t < kTransfers; ++t) {
    sender->Commit(TransferId(t), {.first_token = t});
  }
  for (int32_t t = 0; t < kTransfers; ++t) {
    const auto landed = receiver.Await<HandoffReceiver::Landed>();
    ASSERT_TRUE(landed.has_value());
    const auto id = static_cast<int32_t>(landed->transfer);
    EXPECT_EQ(landed->record.first_token, id);
    EXPECT_EQ(landed->bytes, int64_t{kLayers} * kPerTransfer * (8 << 10));
    EXPECT_TRUE(there.HoldsAll(id, 0, target(id)));
    ASSERT_TRUE(sender.Await<HandoffSender::Acked>().has_value());
    ASSERT_TRUE(sender.Await<HandoffSender::Quiesced>().has_value());
  }
  EXPECT_FALSE(receiver.Has<HandoffReceiver::Failed>());
  EXPECT_TRUE(there.UntouchedExcept(Blocks(0, kBlocks)));
}

TEST_P(HandoffProcessTest, AnotherFingerprintIsRefused) {
  KvMemory here(2, 4, 1024, Mirror()), there(2, 4, 1024, Mirror());
  Receiver receiver(GetParam(), kHere, there);
  auto transport = CreateTransportOf(GetParam(), {.listen = false});
  ASSERT_TRUE(transport.ok());
  HandoffOptions options;
  options.self = MakeHello(v1::WORKER_ROLE_PREFILL, 1, "odd");
  options.self.mutable_fingerprint()->set_block_size(24);
  options.kv = here.geometry();
  auto sender = HandoffSender::Create(transport->get(), options);
  ASSERT_TRUE(sender.ok());
  ASSERT_TRUE((*sender)->Pair(receiver.address()).ok());
  const auto refused = receiver.Await<PeerRefused>();
  ASSERT_TRUE(refused.has_value());
  EXPECT_THAT(refused->reason,
              ::testing::HasSubstr("block_size (16 here, 24 there)"));
}

TEST_P(HandoffProcessTest, EitherSideMayGoFirst) {
  KvMemory here(2, 8, 64 << 10, Mirror()), there(2, 8, 64 << 10, Mirror());
  for (bool sender_first : {true, false}) {
    auto receiver = std::make_unique<Receiver>(GetParam(), kHere, there);
    auto sender = std::make_unique<Sender>(GetParam(), 1, here);
    ASSERT_TRUE((*sender)->Pair(receiver->address()).ok());
    ASSERT_TRUE(sender->Await<PeerReady>().has_value());
    auto open = OpenOf(1, Blocks(0, 8), absl::Minutes(1));
    open.sender = Incarnation{1};
    ASSERT_TRUE((*receiver)->Open(open).ok());
    ASSERT_TRUE((*sender)
                    ->Start(GrantOf(1, Incarnation{kHere}, 8), Blocks(0, 8),
                            In(absl::Minutes(1)))
                    .ok());
    (*sender)->SendLayer(TransferId{1}, 0, 8);
    // With bytes on the wire, or not: the destructor waits for them.
    if (sender_first) {
      sender.reset();
      EXPECT_TRUE(receiver->Await<HandoffReceiver::Failed>().has_value());
      EXPECT_TRUE(receiver->Await<HandoffReceiver::Quiesced>().has_value());
    } else {
      receiver.reset();
      EXPECT_TRUE(sender->Await<HandoffSender::Failed>().has_value());
      EXPECT_TRUE(sender->Await<HandoffSender::Quiesced>().has_value());
    }
  }
}

// 64 MB: long enough on the wire to be killed in the middle.
constexpr int32_t kBigLayers = 16, kBigBlocks = 128;
constexpr int64_t kBigPage = 32 << 10;

std::vector<std::string> SendArgs(const std::string& kind, Receiver& receiver,
                                  uint64_t id, bool commit) {
  return {kind,
          "send",
          receiver.address(),
          std::to_string(kHere),
          std::to_string(id),
          std::to_string(kBigBlocks),
          std::to_string(kBigLayers),
          std::to_string(kBigPage),
          commit ? "1" : "0"};
}

// Whether some of it comes in time. There is no event for that, so this looks
// again and again, without spinning.
bool BytesCome(const std::function<uint64_t()>& bytes, absl::Duration timeout) {
  absl::Mutex mu;
  absl::MutexLock lock(&mu);
  const auto never = [] { return false; };
  const absl::Time deadline = In(timeout);
  while (bytes() == 0 && Clock::Monotonic()->Now() < deadline) {
    mu.AwaitWithTimeout(absl::Condition(&never), absl::Milliseconds(1));
  }
  return bytes() > 0;
}
void AwaitBytes(const std::function<uint64_t()>& bytes) {
  ASSERT_TRUE(BytesCome(bytes, absl::Seconds(30)));
}

TEST_P(HandoffProcessTest, SenderIsKilledMidTransferAndComesBack) {
  KvMemory memory(kBigLayers, kBigBlocks, kBigPage, Mirror());
  Receiver receiver(GetParam(), kHere, memory);
  ASSERT_TRUE(
      receiver->Open(OpenOf(1, Blocks(0, kBigBlocks), absl::Minutes(1))).ok());
  {
    PeerProcess sender(SendArgs(GetParam(), receiver, 1, /*commit=*/false));
    AwaitBytes([&] { return receiver->stats().bytes_received; });
    sender.Signal(SIGKILL);
    EXPECT_EQ(sender.Wait(), -SIGKILL);
  }
  const auto failed = receiver.Await<HandoffReceiver::Failed>();
  ASSERT_TRUE(failed.has_value());
  EXPECT_THAT(failed->outcome,
              ::testing::AnyOf(TransferOutcome::kPeerLost,
                               TransferOutcome::kTransportFailed));
  ASSERT_TRUE(receiver.Await<HandoffReceiver::Quiesced>().has_value());
  ASSERT_TRUE(receiver.Await<PeerLost>().has_value());
  EXPECT_FALSE(receiver.Has<HandoffReceiver::Landed>());
  EXPECT_EQ(receiver->stats().peers_ready, 0u);

  // The next life sends it all, into the same blocks.
  ASSERT_TRUE(
      receiver->Open(OpenOf(2, Blocks(0, kBigBlocks), absl::Minutes(1))).ok());
  PeerProcess reborn(SendArgs(GetParam(), receiver, 2, /*commit=*/true));
  const auto landed = receiver.Await<HandoffReceiver::Landed>();
  ASSERT_TRUE(landed.has_value());
  EXPECT_EQ(landed->sender, reborn.incarnation());
  EXPECT_TRUE(memory.HoldsAll(2, 0, Blocks(0, kBigBlocks)));
  EXPECT_EQ(reborn.Finish(), 0);
}

TEST_P(HandoffProcessTest, StoppedSenderIsGivenUpAtTheDeadline) {
  KvMemory memory(kBigLayers, kBigBlocks, kBigPage, Mirror());
  // The other process has to start within it, which takes a moment, and longer
  // where many do.
  for (const absl::Duration timeout : {absl::Seconds(2), absl::Seconds(20)}) {
    Receiver receiver(GetParam(), kHere, memory,
                      /*quarantine_timeout=*/absl::Milliseconds(200));
    ASSERT_TRUE(receiver->Open(OpenOf(1, Blocks(0, kBigBlocks), timeout)).ok());
    PeerProcess sender(SendArgs(GetParam(), receiver, 1, /*commit=*/false));
    if (!BytesCome([&] { return receiver->stats().bytes_received; }, timeout)) {
      continue;
    }
    sender.Signal(SIGSTOP);
    const auto failed = receiver.Await<HandoffReceiver::Failed>();
    ASSERT_TRUE(failed.has_value());
    EXPECT_EQ(failed->outcome, TransferOutcome::kDeadlineExceeded);
    EXPECT_TRUE(receiver.Await<HandoffReceiver::Quiesced>().has_value());
    return;
  }
  FAIL() << "no sender came in time";
}

// Once its transfer is quiet, its blocks are another's.
TEST_P(HandoffProcessTest, StoppedSenderThatGoesOnWritesNothing) {
  KvMemory memory(kBigLayers, kBigBlocks, kBigPage, Mirror());
  Receiver receiver(GetParam(), kHere, memory,
                    /*quarantine_timeout=*/absl::Milliseconds(200));
  ASSERT_TRUE(
      receiver->Open(OpenOf(1, Blocks(0, kBigBlocks), absl::Minutes(1))).ok());
  PeerProcess sender(SendArgs(GetParam(), receiver, 1, /*commit=*/false));
  AwaitBytes([&] { return receiver->stats().bytes_received; });
  sender.Signal(SIGSTOP);
  receiver->Abort(TransferId{1}, TransferOutcome::kCancelled);
  ASSERT_TRUE(receiver.Await<HandoffReceiver::Quiesced>().has_value());
  memory.Clear();
  sender.Signal(SIGCONT);
  EXPECT_EQ(sender.ReadLine(), "quiet");
  EXPECT_EQ(sender.Finish(), 0);
  EXPECT_TRUE(memory.UntouchedExcept({}));
}

TEST_P(HandoffProcessTest, ReceiverIsKilledMidTransfer) {
  KvMemory memory(kBigLayers, kBigBlocks, kBigPage, Mirror());
  Sender sender(GetParam(), 1, memory);
  PeerProcess receiver({GetParam(), "receive", "1", std::to_string(kBigBlocks),
                        std::to_string(kBigLayers), std::to_string(kBigPage)});
  const Incarnation there = receiver.incarnation();
  ASSERT_TRUE(sender->Pair(receiver.ReadLine()).ok());
  ASSERT_TRUE(sender.Await<PeerReady>().has_value());
  ASSERT_TRUE(sender
                  ->Start(GrantOf(1, there, kBigBlocks), Blocks(0, kBigBlocks),
                          In(absl::Minutes(1)))
                  .ok());
  for (int32_t layer = 0; layer < kBigLayers; ++layer) {
    sender->SendLayer(TransferId{1}, layer, kBigBlocks);
  }
  AwaitBytes([&] { return sender->stats().bytes_sent; });
  receiver.Signal(SIGKILL);
  EXPECT_EQ(receiver.Wait(), -SIGKILL);
  ASSERT_TRUE(sender.Await<HandoffSender::Failed>().has_value());
  ASSERT_TRUE(sender.Await<HandoffSender::Quiesced>().has_value());
  ASSERT_TRUE(sender.Await<PeerLost>().has_value());
  EXPECT_FALSE(sender->IsReady(there));
  EXPECT_EQ(sender->stats().transfers_quarantined, 0u);
}

TEST_P(HandoffProcessTest, StoppedReceiverIsGivenUpAtTheDeadline) {
  KvMemory memory(kBigLayers, kBigBlocks, kBigPage, Mirror());
  Sender sender(GetParam(), 1, memory,
                /*quarantine_timeout=*/absl::Milliseconds(200));
  PeerProcess receiver({GetParam(), "receive", "1", std::to_string(kBigBlocks),
                        std::to_string(kBigLayers), std::to_string(kBigPage)});
  const Incarnation there = receiver.incarnation();
  ASSERT_TRUE(sender->Pair(receiver.ReadLine()).ok());
  ASSERT_TRUE(sender.Await<PeerReady>().has_value());
  receiver.Signal(SIGSTOP);
  ASSERT_TRUE(sender
                  ->Start(GrantOf(1, there, kBigBlocks), Blocks(0, kBigBlocks),
                          In(absl::Seconds(2)))
                  .ok());
  for (int32_t layer = 0; layer < kBigLayers; ++layer) {
    sender->SendLayer(TransferId{1}, layer, kBigBlocks);
  }
  const auto failed = sender.Await<HandoffSender::Failed>();
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->outcome, TransferOutcome::kDeadlineExceeded);
  // Its sends end only because the peer is closed by force.
  EXPECT_TRUE(sender.Await<HandoffSender::Quiesced>().has_value());
  EXPECT_EQ(sender->stats().peers_closed_by_force, 1u);
}

INSTANTIATE_TEST_SUITE_P(Transports, HandoffProcessTest,
                         ::testing::Values("ucx", "local", "tcp", "auto",
                                           kUcxCuda),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace baton::kv_transfer
