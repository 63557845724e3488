// How fast KV goes from one process to another, next to how fast bytes can go.
// Run by hand, on an otherwise idle machine:
//
//   handoff_benchmark [--json FILE] [--sizes 1,8,64,512] [--repeat 15]
//                     [--transports local,ucx] [--scattered]
//
// This process is the decode worker; it starts itself again as the prefill
// worker. Sizes are MB of KV (10^6 bytes, up to whole blocks) of a model of 30
// layers, 3 KV heads of 64 and 16 tokens per block in bf16: pages of 12,288
// bytes. --scattered: blocks in random order, so that no two pages lie next to
// each other. Before each repetition the sender writes the pages anew, as
// computing them would. Times are the sender's, from the first SendLayer to the
// receiver's word that the commit is verified; medians.
//
// Each process keeps to a CPU of its own: two threads that happen to share one
// would find all bytes in its nearest cache.
//
// The limits, measured in the same run, of the same bytes:
//   copy  the receiver copies what the sender wrote from their shared memory to
//         its own, by memcpy and nothing else;
//   tcp   a loopback TCP stream from process to process, 1 MB at a time.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/scoped_fd.h"
#include "common/shared_memory.h"
#include "engine/cpu/memory_arena.h"
#include "kv_transfer/handoff_receiver.h"
#include "kv_transfer/handoff_sender.h"
#include "kv_transfer/page_extents.h"
#include "kv_transfer/transports/host_aware/create_transport.h"

namespace baton::kv_transfer {
namespace {

using engine::cpu::MemoryArena;

struct Shape {
  const char* name;
  int32_t layers;
  int64_t page_bytes;
};
constexpr Shape kBenchShape = {"30 layers x 3 heads x 64", 30, 12288};
// models/stories: 6 layers, 4 KV heads of 32.
constexpr Shape kStoriesShape = {"models/stories", 6, 16 * 4 * 32 * 2 * 2};

absl::Time Now() { return Clock::Monotonic()->Now(); }
absl::Time InAMinute() { return Now() + absl::Minutes(1); }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

std::vector<BlockId> Blocks(int32_t n, bool scattered, uint32_t seed) {
  std::vector<BlockId> blocks(n);
  std::iota(blocks.begin(), blocks.end(), 0);
  if (scattered) {
    std::shuffle(blocks.begin(), blocks.end(), std::minstd_rand(seed));
  }
  return blocks;
}

KvGeometry GeometryOf(const Shape& shape, int32_t num_blocks,
                      const MemoryArena& arena) {
  KvGeometry kv;
  kv.memory = arena.memory();
  kv.descriptor = arena.descriptor();
  kv.num_layers = shape.layers;
  kv.page_bytes = shape.page_bytes;
  kv.layer_stride_bytes = shape.page_bytes * num_blocks;
  kv.num_blocks = num_blocks;
  return kv;
}

v1::PeerHello Hello(v1::WorkerRole role, const Shape& shape) {
  v1::PeerHello hello;
  hello.set_role(role);
  hello.set_incarnation(role == v1::WORKER_ROLE_DECODE ? 2 : 1);
  hello.set_worker_name("bench");
  hello.mutable_fingerprint()->set_num_layers(shape.layers);
  return hello;
}

// Lets a thread wait for the hand-off's events.
class Bell final {
 public:
  void Ring() {
    absl::MutexLock lock(&mu_);
    rung_ = true;
  }
  void Await() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&rung_));
    rung_ = false;
  }

 private:
  absl::Mutex mu_;
  bool rung_ = false;
};

template <typename T, typename Side>
T AwaitEvent(Side& side, Bell& bell) {
  for (;;) {
    std::optional<T> found;
    for (auto& event : side.Poll()) {
      if (auto* failed = std::get_if<typename Side::Failed>(&event)) {
        LOG(FATAL) << "the transfer failed: " << failed->detail;
      }
      if (auto* refused = std::get_if<PeerRefused>(&event)) {
        LOG(FATAL) << "not paired: " << refused->reason;
      }
      if (auto* wanted = std::get_if<T>(&event)) found = std::move(*wanted);
    }
    if (found.has_value()) return *std::move(found);
    bell.Await();
  }
}

// The shape and number of blocks of both processes, as arguments.
struct Plan {
  const Shape* shape = nullptr;
  int32_t num_blocks = 0;
  bool scattered = false;

  std::vector<std::string> Args() const {
    return {shape == &kStoriesShape ? "stories" : "bench",
            absl::StrCat(num_blocks), scattered ? "scattered" : "in-order"};
  }
  static Plan Parse(char** args) {
    Plan plan;
    plan.shape =
        std::string(args[0]) == "stories" ? &kStoriesShape : &kBenchShape;
    plan.num_blocks = std::atoi(args[1]);
    plan.scattered = std::string(args[2]) == "scattered";
    return plan;
  }
};

// The sender's process: does what standard input says, one line each, and
// answers with one line. `args`: transport, data address, TCP port, plan.
int RunSender(char** args) {
  const std::string kind = args[0];
  const std::string address = args[1];
  const auto port = static_cast<uint16_t>(std::atoi(args[2]));
  const Plan plan = Plan::Parse(args + 3);
  const Shape& shape = *plan.shape;
  auto arena = MemoryArena::AllocateShared(
      shape.layers * shape.page_bytes * plan.num_blocks, "KV memory");
  CHECK(arena.ok()) << arena.status();
  auto transport = CreateTransport(kind, {.listen = false});
  CHECK(transport.ok()) << transport.status();
  Bell bell;
  HandoffOptions options;
  options.self = Hello(v1::WORKER_ROLE_PREFILL, shape);
  options.kv = GeometryOf(shape, plan.num_blocks, *arena);
  options.wake = [&bell] { bell.Ring(); };
  const KvGeometry kv = options.kv;
  auto sender = HandoffSender::Create(transport->get(), options);
  CHECK(sender.ok()) << sender.status();
  CHECK((*sender)->Pair(address).ok());
  AwaitEvent<PeerReady>(**sender, bell);

  const ScopedFd stream(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  PCHECK(connect(stream.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) ==
         0);
  const int on = 1;
  setsockopt(stream.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));

  std::cout << "ready " << arena->descriptor() << std::endl;
  const std::vector<BlockId> blocks =
      Blocks(plan.num_blocks, plan.scattered, 1);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command;
    int64_t n = 0;
    uint64_t id = 0;
    words >> command >> n >> id;
    if (command == "write") {
      // All pages of the first n blocks.
      for (int32_t layer = 0; layer < shape.layers; ++layer) {
        for (int64_t i = 0; i < n; ++i) {
          std::memset(kv.memory.data() + kv.PageOffset(layer, blocks[i]),
                      static_cast<int>(id + layer + i), kv.page_bytes);
        }
      }
      std::cout << "written" << std::endl;
    } else if (command == "transfer") {
      HandoffSender::Grant grant;
      grant.transfer = TransferId{id};
      grant.generation = 1;
      grant.receiver = Incarnation{2};
      grant.num_blocks = static_cast<int32_t>(n);
      CHECK(
          (*sender)
              ->Start(grant, absl::MakeConstSpan(blocks).first(n), InAMinute())
              .ok());
      for (int32_t layer = 0; layer < shape.layers; ++layer) {
        (*sender)->SendLayer(grant.transfer, layer, grant.num_blocks);
      }
      (*sender)->Commit(grant.transfer, {.first_token = 1});
      const auto acked = AwaitEvent<HandoffSender::Acked>(**sender, bell);
      std::cout << absl::ToDoubleSeconds(acked.duration) << std::endl;
    } else if (command == "stream") {
      const absl::Time start = Now();
      for (int64_t sent = 0; sent < n;) {
        const ssize_t more =
            send(stream.get(), kv.memory.data() + sent,
                 std::min<int64_t>(n - sent, int64_t{1} << 20), MSG_NOSIGNAL);
        PCHECK(more > 0);
        sent += more;
      }
      char ack;
      PCHECK(recv(stream.get(), &ack, 1, 0) == 1);
      std::cout << absl::ToDoubleSeconds(Now() - start) << std::endl;
    }
  }
  return 0;
}

// Keeps this process to the `index`th of the CPUs that it had at first.
void KeepToCpu(int index) {
  static const cpu_set_t all = [] {
    cpu_set_t set;
    PCHECK(sched_getaffinity(0, sizeof(set), &set) == 0);
    return set;
  }();
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all) || index-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof(one), &one);
    return;
  }
}

// The sender's process, seen from here.
class SenderProcess final {
 public:
  explicit SenderProcess(std::vector<std::string> args) {
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
  ~SenderProcess() {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }

  void Say(const std::string& line) {
    const std::string bytes = line + "\n";
    PCHECK(write(in_.get(), bytes.data(), bytes.size()) ==
           static_cast<ssize_t>(bytes.size()));
  }
  std::string Hear() {
    std::string line;
    char c;
    ssize_t n;
    while ((n = read(out_.get(), &c, 1)) == 1 && c != '\n') line += c;
    CHECK(n == 1) << "the sender's process ended";
    return line;
  }
  std::string Ask(const std::string& line) {
    Say(line);
    return Hear();
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  ScopedFd in_, out_;
};

double Seconds(const std::string& text) {
  double seconds = 0;
  CHECK(absl::SimpleAtod(text, &seconds)) << text;
  return seconds;
}

struct Result {
  std::string transport;
  int64_t bytes = 0;
  double seconds = 0;
  // Of the same bytes, by the limit that belongs to the transport.
  double limit_seconds = 0;
  // Of hashing them, once, on one thread.
  double hash_seconds = 0;
};

// A receiver and a sender's process, for one plan and one transport.
class Pair final {
 public:
  Pair(const std::string& kind, const Plan& plan)
      : plan_(plan), blocks_(Blocks(plan.num_blocks, plan.scattered, 2)) {
    const Shape& shape = *plan.shape;
    auto arena = MemoryArena::Allocate(
        shape.layers * shape.page_bytes * plan.num_blocks, "KV memory");
    CHECK(arena.ok()) << arena.status();
    arena_ = *std::move(arena);
    // A decode worker's blocks have been used before.
    std::memset(arena_.memory().data(), 1, arena_.memory().size());
    auto transport = CreateTransport(kind, {});
    CHECK(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
    HandoffOptions options;
    options.self = Hello(v1::WORKER_ROLE_DECODE, shape);
    options.kv = GeometryOf(shape, plan.num_blocks, arena_);
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
    PCHECK(getsockname(door.get(), reinterpret_cast<sockaddr*>(&at), &size) ==
           0);
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

  int64_t BytesOf(int32_t n) const {
    return n * plan_.shape->layers * plan_.shape->page_bytes;
  }

  // One hand-off of n blocks; seconds.
  double Transfer(int32_t n) {
    Write(n);
    HandoffReceiver::OpenTransfer open;
    open.transfer = TransferId{++last_transfer_};
    open.generation = 1;
    open.blocks.assign(blocks_.begin(), blocks_.begin() + n);
    open.deadline = InAMinute();
    CHECK(receiver_->Open(open).ok());
    sender_->Say(absl::StrCat("transfer ", n, " ", last_transfer_));
    AwaitEvent<HandoffReceiver::Landed>(*receiver_, bell_);
    return Seconds(sender_->Hear());
  }

  // The same bytes by memcpy.
  double Copy(int32_t n) {
    Write(n);
    const std::vector<BlockId> from =
        Blocks(plan_.num_blocks, plan_.scattered, 1);
    const absl::Time start = Now();
    for (int32_t layer = 0; layer < kv_.num_layers; ++layer) {
      // As long runs as there are on both sides.
      for (int32_t i = 0; i < n;) {
        int32_t run = 1;
        while (i + run < n && from[i + run] == from[i] + run &&
               blocks_[i + run] == blocks_[i] + run) {
          ++run;
        }
        std::memcpy(kv_.memory.data() + kv_.PageOffset(layer, blocks_[i]),
                    view_->memory().data() + kv_.PageOffset(layer, from[i]),
                    run * kv_.page_bytes);
        i += run;
      }
    }
    return absl::ToDoubleSeconds(Now() - start);
  }

  // The same bytes by TCP.
  double Stream(int32_t n) {
    Write(n);
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

  // Hashing what just landed.
  double Hash(int32_t n) {
    const absl::Time start = Now();
    uint64_t sum = 0;
    for (int32_t layer = 0; layer < kv_.num_layers; ++layer) {
      sum +=
          PagesChecksum(kv_, layer, 0, absl::MakeConstSpan(blocks_).first(n));
    }
    const absl::Time end = Now();
    sink_ = sum;
    return absl::ToDoubleSeconds(end - start);
  }

 private:
  // Has the sender write its pages anew.
  void Write(int32_t n) {
    CHECK_EQ(sender_->Ask(absl::StrCat("write ", n, " ", ++writes_)),
             "written");
  }

  const Plan plan_;
  const std::vector<BlockId> blocks_;
  MemoryArena arena_;
  KvGeometry kv_;
  Bell bell_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<HandoffReceiver> receiver_;
  std::unique_ptr<SenderProcess> sender_;
  ScopedFd stream_;
  std::unique_ptr<SharedMemoryView> view_;
  uint64_t last_transfer_ = 0;
  uint64_t writes_ = 0;
  volatile uint64_t sink_ = 0;
};

Result Measure(Pair& pair, const std::string& kind, int32_t num_blocks,
               int repeat) {
  std::vector<double> transfers, limits, hashes;
  // Rounds of all, so that a disturbance hits all of them alike. The first two
  // are for warming up.
  for (int i = 0; i < repeat + 2; ++i) {
    const double transfer = pair.Transfer(num_blocks);
    const double hash = pair.Hash(num_blocks);
    const double limit =
        kind == "ucx" ? pair.Stream(num_blocks) : pair.Copy(num_blocks);
    if (i < 2) continue;
    transfers.push_back(transfer);
    limits.push_back(limit);
    hashes.push_back(hash);
  }
  return {kind, pair.BytesOf(num_blocks), Median(transfers), Median(limits),
          Median(hashes)};
}

double GigabytesPerSecond(int64_t bytes, double seconds) {
  return static_cast<double>(bytes) / seconds / 1e9;
}

void Print(const std::vector<Result>& results) {
  std::cout << "| transport | MB | ms | GB/s | limit, GB/s | ratio | hashing, "
               "GB/s |\n|---|---|---|---|---|---|---|\n";
  for (const Result& r : results) {
    std::cout << absl::StrFormat(
        "| %s | %.1f | %.3f | %.2f | %.2f | %.2f | %.1f |\n", r.transport,
        static_cast<double>(r.bytes) / 1e6, r.seconds * 1e3,
        GigabytesPerSecond(r.bytes, r.seconds),
        GigabytesPerSecond(r.bytes, r.limit_seconds),
        r.limit_seconds / r.seconds,
        GigabytesPerSecond(r.bytes, r.hash_seconds));
  }
}

void WriteJson(const std::string& path, const std::vector<Result>& results,
               const std::vector<Result>& latencies) {
  std::ofstream out(path);
  const auto write = [&](const char* name, const std::vector<Result>& rows) {
    out << "  \"" << name << "\": [\n";
    for (size_t i = 0; i < rows.size(); ++i) {
      const Result& r = rows[i];
      out << absl::StrFormat(
          "    {\"transport\": \"%s\", \"bytes\": %d, \"seconds\": %.9f, "
          "\"limit_seconds\": %.9f, \"hash_seconds\": %.9f}%s\n",
          r.transport, r.bytes, r.seconds, r.limit_seconds, r.hash_seconds,
          i + 1 < rows.size() ? "," : "");
    }
    out << "  ]";
  };
  out << "{\n";
  write("bandwidth", results);
  out << ",\n";
  write("stories_128_tokens", latencies);
  out << "\n}\n";
}

int Run(int argc, char** argv) {
  std::string json;
  std::vector<std::string> sizes = {"1", "8", "64", "512"};
  std::vector<std::string> kinds = {"local", "ucx"};
  int repeat = 15;
  bool scattered = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--scattered") {
      scattered = true;
    } else if (i + 1 == argc) {
      std::cerr << "see the top of handoff_benchmark.cc\n";
      return 2;
    } else if (flag == "--json") {
      json = argv[++i];
    } else if (flag == "--sizes") {
      sizes = absl::StrSplit(argv[++i], ',');
    } else if (flag == "--transports") {
      kinds = absl::StrSplit(argv[++i], ',');
    } else if (flag == "--repeat") {
      repeat = std::atoi(argv[++i]);
    }
  }
  const int64_t block_bytes = kBenchShape.layers * kBenchShape.page_bytes;
  std::vector<int32_t> counts;
  for (const std::string& size : sizes) {
    const auto blocks = static_cast<int64_t>(
        (std::atof(size.c_str()) * 1e6 + block_bytes - 1) / block_bytes);
    counts.push_back(static_cast<int32_t>(std::max<int64_t>(1, blocks)));
  }
  KeepToCpu(0);
  std::vector<Result> results, latencies;
  for (const std::string& kind : kinds) {
    for (int32_t count : counts) {
      // The pool is as large as the largest hand-off.
      Pair pair(kind, {&kBenchShape, count, scattered});
      results.push_back(Measure(pair, kind, count, repeat));
    }
    constexpr int32_t kStoriesBlocks = 128 / 16;
    Pair pair(kind, {&kStoriesShape, kStoriesBlocks, scattered});
    latencies.push_back(Measure(pair, kind, kStoriesBlocks, 10 * repeat));
  }
  std::cout << "KV of " << kBenchShape.name << ", blocks "
            << (scattered ? "scattered" : "in order") << ":\n";
  Print(results);
  std::cout << "\nKV of 128 tokens of " << kStoriesShape.name << ":\n";
  Print(latencies);
  std::cout << "\nUCX by itself: ucx_perftest -t ucp_am_bw -s 1048576 & then "
               "ucx_perftest 127.0.0.1 -t ucp_am_bw -s 1048576, both with "
               "UCX_TLS=tcp UCX_TCP_TX_SEG_SIZE=64K UCX_TCP_RX_SEG_SIZE=128K\n";
  if (!json.empty()) WriteJson(json, results, latencies);
  return 0;
}

}  // namespace
}  // namespace baton::kv_transfer

int main(int argc, char** argv) {
  baton::kv_transfer::PrepareUcxEnvironment();
  baton::InitLogging("handoff_benchmark");
  if (argc == 8 && std::string(argv[1]) == "--sender") {
    return baton::kv_transfer::RunSender(argv + 2);
  }
  return baton::kv_transfer::Run(argc, argv);
}
