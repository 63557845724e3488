#include "tests/bench/handoff_benchmark_pair.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kv_transfer/checksum.h"
#include "kv_transfer/hashed_copy.h"
#include "tests/bench/streaming_copy.h"

namespace baton::kv_transfer {
namespace {

double Seconds(const std::string& text) {
  double seconds = 0;
  CHECK(absl::SimpleAtod(text, &seconds)) << text;
  return seconds;
}

void PlainCopy(const std::byte* from, std::byte* to, size_t bytes) {
  std::memcpy(to, from, bytes);
}

void MakeCold(absl::Span<const std::byte> memory) {
#ifdef __x86_64__
  ThrowOutOfCaches(memory);
#else
  // What is larger than most caches pushes it out.
  static std::vector<std::byte> other(size_t{256} << 20);
  std::fill(other.begin(), other.end(), memory[0]);
#endif
}

}  // namespace

Pair::Pair(const std::string& kind, const Plan& plan, bool warm)
    : plan_(plan), warm_(warm), blocks_(plan.Blocks(kReceiverSeed)) {
  auto arena = engine::cpu::MemoryArena::Allocate(plan.BytesOf(plan.num_blocks),
                                                  "KV memory");
  CHECK(arena.ok()) << arena.status();
  arena_ = *std::move(arena);
  // A decode worker's blocks have been used before.
  std::memset(arena_.memory().data(), 1, arena_.memory().size());
  transport_ = OpenTransport(kind, /*listen=*/true);
  HandoffOptions options = OptionsOf(plan, v1::WORKER_ROLE_DECODE, arena_);
  options.wake = [this] { bell_.Ring(); };
  kv_ = options.kv;
  auto receiver = HandoffReceiver::Create(transport_.get(), options);
  CHECK(receiver.ok()) << receiver.status();
  receiver_ = *std::move(receiver);

  const ScopedFd door(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  PCHECK(bind(door.get(), reinterpret_cast<sockaddr*>(&at), size) == 0);
  PCHECK(listen(door.get(), 1) == 0);
  PCHECK(getsockname(door.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
  std::vector<std::string> args = {kind, transport_->properties().address,
                                   absl::StrCat(ntohs(at.sin_port))};
  for (const std::string& arg : plan.Args()) args.push_back(arg);
  sender_ = std::make_unique<SenderProcess>(args);
  stream_ = ScopedFd(accept(door.get(), nullptr, nullptr));
  PCHECK(stream_.valid());
  const std::string ready = sender_->Hear();
  int descriptor = -1;
  CHECK(absl::SimpleAtoi(ready.substr(ready.find(' ') + 1), &descriptor));
  const ScopedFd file(
      open(absl::StrCat("/proc/", sender_->pid(), "/fd/", descriptor).c_str(),
           O_RDONLY | O_CLOEXEC));
  auto view = SharedMemoryView::Open(file.get(), arena_.memory().size());
  CHECK(view.ok()) << view.status();
  view_ = std::make_unique<SharedMemoryView>(*std::move(view));
}

void Pair::Write(int32_t n) {
  CHECK_EQ(sender_->Ask(absl::StrCat("write ", n, " ", ++writes_)), "written");
  if (warm_) {
    Hash(n);
  } else {
    MakeCold(kv_.memory);
  }
}

void Pair::Open(int32_t first, int32_t n) {
  HandoffReceiver::OpenTransfer open;
  open.transfer = TransferId{++last_transfer_};
  open.generation = 1;
  open.blocks.assign(blocks_.begin() + first, blocks_.begin() + first + n);
  open.deadline = InAMinute();
  CHECK(receiver_->Open(open).ok());
}

double Pair::InARow(int32_t n, int count) {
  CHECK_GE(plan_.num_blocks, kAtOnce * n);
  Write(kAtOnce * n);
  sender_->Say(absl::StrCat("row ", n, " ", last_transfer_ + 1, " ", count));
  // Where each of those under way lands.
  std::map<TransferId, int32_t> at;
  int left = count;
  const auto grant = [&](int32_t first) {
    if (left == 0) return;
    --left;
    Open(first, n);
    at[TransferId{last_transfer_}] = first;
    PCHECK(send(stream_.get(), "g", 1, MSG_NOSIGNAL) == 1);
  };
  for (int i = 0; i < kAtOnce; ++i) grant(i * n);
  while (!at.empty()) {
    for (const auto& landed :
         AwaitEvents<HandoffReceiver::Landed>(*receiver_, bell_)) {
      const int32_t first = at.at(landed.transfer);
      at.erase(landed.transfer);
      grant(first);
    }
  }
  return Seconds(sender_->Hear()) / count;
}

double Pair::Transfer(int32_t n) {
  Write(n);
  Open(0, n);
  sender_->Say(absl::StrCat("transfer ", n, " ", last_transfer_));
  AwaitEvent<HandoffReceiver::Landed>(*receiver_, bell_);
  return Seconds(sender_->Hear());
}

template <typename CopyRun>
Pair::Copied Pair::CopyOnce(int32_t first, int32_t n, CopyRun copy_run) {
  const std::vector<BlockId> from = plan_.Blocks(kSenderSeed);
  sender_->Say("ask");
  char word;
  PCHECK(recv(stream_.get(), &word, 1, 0) == 1);
  const absl::Time start = Now();
  for (int32_t layer = 0; layer < kv_.num_layers; ++layer) {
    for (int32_t i = first; i < first + n;) {
      int32_t run = 1;
      while (i + run < first + n && from[i + run] == from[i] + run &&
             blocks_[i + run] == blocks_[i] + run) {
        ++run;
      }
      copy_run(view_->memory().data() + kv_.PageOffset(layer, from[i]),
               kv_.memory.data() + kv_.PageOffset(layer, blocks_[i]),
               static_cast<size_t>(run * kv_.page_bytes));
      i += run;
    }
  }
  const double alone = absl::ToDoubleSeconds(Now() - start);
  PCHECK(send(stream_.get(), "k", 1, MSG_NOSIGNAL) == 1);
  return {.between_processes = Seconds(sender_->Hear()), .alone = alone};
}

template <typename CopyRun>
double Pair::CopiesInARow(int32_t n, int count, CopyRun copy_run) {
  Write(kAtOnce * n);
  double seconds = 0;
  for (int i = 0; i < count; ++i) {
    seconds += CopyOnce(n * (i % kAtOnce), n, copy_run).between_processes;
  }
  return seconds / count;
}

Pair::Copied Pair::Copy(int32_t n) {
  Write(n);
  return CopyOnce(0, n, PlainCopy);
}

Pair::Copied Pair::StreamingCopy(int32_t n) {
  Write(n);
  return CopyOnce(0, n, kv_transfer::StreamingCopy);
}

double Pair::CopyInARow(int32_t n, int count) {
  return CopiesInARow(n, count, PlainCopy);
}

double Pair::StreamingCopyInARow(int32_t n, int count) {
  return CopiesInARow(n, count, kv_transfer::StreamingCopy);
}

double Pair::TcpStream(int32_t n) {
  Write(n);
  return TcpOnce(n);
}

double Pair::TcpInARow(int32_t n, int count) {
  Write(kAtOnce * n);
  double seconds = 0;
  for (int i = 0; i < count; ++i) seconds += TcpOnce(n);
  return seconds / count;
}

double Pair::TcpOnce(int32_t n) {
  const int64_t bytes = BytesOf(n);
  sender_->Say(absl::StrCat("stream ", bytes));
  for (int64_t got = 0; got < bytes;) {
    const ssize_t more =
        recv(stream_.get(), kv_.memory.data() + got,
             std::min<int64_t>(bytes - got, int64_t{1} << 20), 0);
    PCHECK(more > 0);
    got += more;
  }
  PCHECK(send(stream_.get(), "k", 1, MSG_NOSIGNAL) == 1);
  return Seconds(sender_->Hear());
}

double Pair::Hash(int32_t n) {
  const absl::Time start = Now();
  uint64_t sum = 0;
  for (int32_t layer = 0; layer < kv_.num_layers; ++layer) {
    for (int32_t i = 0; i < n; ++i) {
      sum += PageChecksum(
          kv_.memory.subspan(kv_.PageOffset(layer, blocks_[i]), kv_.page_bytes),
          layer, i);
    }
  }
  const absl::Time end = Now();
  sink_ = sum;
  return absl::ToDoubleSeconds(end - start);
}

}  // namespace baton::kv_transfer
