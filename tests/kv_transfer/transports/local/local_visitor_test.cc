// What visitors of the same user may do to a local transport, whoever they are:
// wrong bytes, wrong files, wrong extents, silence, floods. The transport hangs
// up on them, touches nothing, and goes on to serve its peers.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "kv_transfer/transports/local/local_socket.h"
#include "kv_transfer/transports/local/local_transport.h"
#include "kv_transfer/transports/local/local_wire.h"
#include "tests/kv_transfer/transports/local/local_node.h"

namespace baton::kv_transfer::local_visitor_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

// A connection that says what a test wants.
class Visitor final {
 public:
  explicit Visitor(const std::string& address)
      : socket_(*ConnectLocally(address)) {}

  void Say(const std::string& datagram, const std::vector<int>& files = {}) {
    for (;;) {
      const auto sent = SendDatagram(socket_.get(), datagram, files);
      if (!sent.ok() || *sent) return;  // hung up on, or said
      pollfd room = {socket_.get(), POLLOUT, 0};
      poll(&room, 1, 1000);
    }
  }
  void Offer(const SharedMemory& memory) {
    Say(local_wire::EncodeOffer({{RegionId{0}, memory.memory().size()}}),
        {memory.descriptor()});
  }
  // The next datagram; empty when hung up on.
  std::string Hear() {
    std::vector<std::byte> buffer(local_wire::kMaxDatagramBytes);
    for (;;) {
      std::vector<ScopedFd> files;
      const auto size =
          ReceiveDatagram(socket_.get(), absl::MakeSpan(buffer), &files);
      if (!size.ok()) return "";
      if (size->has_value()) {
        return std::string(reinterpret_cast<char*>(buffer.data()), **size);
      }
      pollfd fd = {socket_.get(), POLLIN, 0};
      if (poll(&fd, 1, 20000) <= 0) return "nothing came";
    }
  }
  // Whether it was hung up on, after any datagrams.
  bool AwaitEnd() {
    for (;;) {
      const std::string heard = Hear();
      if (heard.empty()) return true;
      if (heard == "nothing came") return false;
    }
  }

 private:
  const ScopedFd socket_;
};

class LocalVisitorTest : public ::testing::Test {
 protected:
  void Start(LocalOptions options = {}, int64_t bytes = 1 << 16) {
    memory_ = *SharedMemory::Create(bytes, "a test");
    server_ = *CreateLocalTransport(options);
    region_ = *server_->RegisterRegion(memory_.memory(), memory_.descriptor());
    server_->Start(&journal_);
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Stop();
  }
  const std::string& address() { return server_->properties().address; }

  // One that is up.
  std::unique_ptr<Visitor> Welcome(const SharedMemory& memory) {
    const int before = journal_.Count("up");
    auto visitor = std::make_unique<Visitor>(address());
    visitor->Offer(memory);
    EXPECT_TRUE(journal_.Await("up", before + 1));
    EXPECT_THAT(visitor->Hear(), HasSubstr("baton kv local 1"));
    return visitor;
  }

  SharedMemory memory_;
  // For payloads that wait: asked for, and to be answered.
  absl::Notification asked_, go_on_;
  Journal journal_;
  RegionId region_{};
  std::unique_ptr<Transport> server_;
};

TEST_F(LocalVisitorTest, WrongFirstWordsDoNoHarm) {
  Start();
  const std::string offer = local_wire::EncodeOffer({{RegionId{0}, 4096}});
  const std::string wrong[] = {
      "x",
      "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
      std::string(64, '\0'),
      std::string(64, '\xff'),
      std::string(100000, 'a'),
      "baton kv local 2" + offer.substr(16),
      offer.substr(0, offer.size() - 1),
      offer + "x",
      offer,  // without a descriptor
      local_wire::EncodeOffer(local_wire::Offer(17)),
      local_wire::EncodeMessage("before the offer"),
  };
  for (const std::string& words : wrong) {
    Visitor visitor(address());
    visitor.Say(words);
    EXPECT_TRUE(visitor.AwaitEnd()) << words.substr(0, 20);
  }
  { Visitor silent(address()); }
  EXPECT_EQ(journal_.Count("up"), 0);
  auto made = SharedMemory::Create(4096, "a test");
  Welcome(*made);
}

TEST_F(LocalVisitorTest, WrongFilesAreNotMapped) {
  Start();
  const auto refused = [&](const local_wire::Offer& offer,
                           const std::vector<int>& files) {
    Visitor visitor(address());
    visitor.Say(local_wire::EncodeOffer(offer), files);
    return visitor.AwaitEnd() && journal_.Count("up") == 0;
  };
  const ScopedFd unsealed(memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  EXPECT_TRUE(refused({{RegionId{0}, 4096}}, {unsealed.get()}));
  const ScopedFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(refused({{RegionId{0}, 4096}}, {file.get()}));
  const ScopedFd folder(open("/", O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(refused({{RegionId{0}, 4096}}, {folder.get()}));
  auto good = SharedMemory::Create(4096, "a test");
  ASSERT_TRUE(good.ok());
  const int sealed = good->descriptor();
  EXPECT_TRUE(refused({{RegionId{0}, 8192}}, {sealed}));
  EXPECT_TRUE(refused({{RegionId{0}, 0}}, {sealed}));
  EXPECT_TRUE(refused({{RegionId{0}, ~uint64_t{0}}}, {sealed}));
  EXPECT_TRUE(refused({{RegionId{0}, 4096}}, {sealed, sealed}));
  EXPECT_TRUE(
      refused({{RegionId{0}, 4096}, {RegionId{0}, 4096}}, {sealed, sealed}));
  EXPECT_TRUE(refused({}, {sealed}));
  Welcome(*good);
}

TEST_F(LocalVisitorTest, WrongDatagramsCloseTheirSender) {
  Start();
  auto theirs = SharedMemory::Create(8192, "a test");
  ASSERT_TRUE(theirs.ok());
  const auto payload = [](uint32_t region, uint64_t offset, uint64_t length) {
    return local_wire::EncodePayload("h", {{RegionId{region}, offset, length}});
  };
  const std::string wrong[] = {
      "x",
      std::string(8, '\0'),
      std::string(100000, 'a'),
      local_wire::EncodeMessage(""),
      local_wire::EncodeMessage(std::string(kMaxHeaderBytes + 1, 'x')),
      local_wire::EncodeMessage("longer").substr(0, 10),
      payload(1, 0, 64),
      payload(0, 8192, 1),
      payload(0, 0, 8193),
      payload(0, 1, 8192),
      payload(0, ~uint64_t{0}, 1),
      payload(0, ~uint64_t{0} - 63, 64),
      payload(0, 0, 0),
      payload(0, 0, ~uint64_t{0}),
      local_wire::EncodePayload(
          "h", std::vector<Extent>(65, Extent{RegionId{0}, 0, 1})),
      local_wire::EncodeDone(0),
      local_wire::EncodeDone(1),  // of nothing
      local_wire::EncodeOffer({}),
  };
  int downs = 0;
  for (const std::string& datagram : wrong) {
    auto visitor = Welcome(*theirs);
    visitor->Say(datagram);
    EXPECT_TRUE(visitor->AwaitEnd());
    EXPECT_TRUE(journal_.Await("down", ++downs));
  }
  EXPECT_EQ(journal_.Count("payload h"), 0);
  auto visitor = Welcome(*theirs);
  visitor->Say(local_wire::EncodeMessage("hello"));
  EXPECT_TRUE(journal_.Await("message hello"));
}

TEST_F(LocalVisitorTest, PayloadsAreReadAndSaidToBeDone) {
  journal_.on_payload = [this](uint64_t bytes) {
    return bytes == 64
               ? std::optional<Landing>(Landing{{{region_, 1000, bytes}}, 1})
               : std::nullopt;
  };
  Start();
  auto theirs = SharedMemory::Create(8192, "a test");
  ASSERT_TRUE(theirs.ok());
  theirs->memory()[8191] = std::byte{9};
  auto visitor = Welcome(*theirs);
  visitor->Say(local_wire::EncodePayload("h", {{RegionId{0}, 8128, 64}}));
  EXPECT_EQ(visitor->Hear(), local_wire::EncodeDone(1));
  EXPECT_TRUE(journal_.Await("landed"));
  EXPECT_EQ(memory_.memory()[1063], std::byte{9});
  // One that is refused is done as well.
  visitor->Say(local_wire::EncodePayload("i", {{RegionId{0}, 0, 65}}));
  EXPECT_EQ(visitor->Hear(), local_wire::EncodeDone(1));
  EXPECT_EQ(journal_.Count("landed"), 1);
}

TEST_F(LocalVisitorTest, SilentVisitorIsHungUpOn) {
  Start({.connect_timeout = absl::Milliseconds(100)});
  Visitor visitor(address());
  EXPECT_TRUE(visitor.AwaitEnd());
  EXPECT_EQ(journal_.Count("up"), 0);
  // Nobody hears of one that never came up.
  EXPECT_EQ(journal_.Count("down"), 0);
}

// The visitor's memory goes away while it is being read: what was mapped stays.
TEST_F(LocalVisitorTest, VisitorThatLeavesInTheMiddle) {
  journal_.on_payload = [this](uint64_t bytes) {
    asked_.Notify();
    go_on_.WaitForNotification();
    return Landing{{{region_, 0, bytes}}, 1};
  };
  Start({}, 64 * kMiB);
  auto theirs = std::make_unique<SharedMemory>(
      *SharedMemory::Create(64 * kMiB, "a test"));
  auto visitor = Welcome(*theirs);
  visitor->Say(local_wire::EncodePayload(
      "h", {{RegionId{0}, 0, static_cast<uint64_t>(64 * kMiB)}}));
  asked_.WaitForNotification();
  visitor.reset();
  theirs.reset();
  go_on_.Notify();
  EXPECT_TRUE(journal_.Await("down"));
  EXPECT_TRUE(journal_.Await("not landed"));
  EXPECT_EQ(journal_.Count("landed"), 0);
}

// So that an abort counts for what still waits.
TEST_F(LocalVisitorTest, MessagesOvertakePayloadsThatWait) {
  journal_.on_payload = [this](uint64_t bytes) -> std::optional<Landing> {
    if (!asked_.HasBeenNotified()) {
      asked_.Notify();
      go_on_.WaitForNotification();
    }
    return Landing{{{region_, 0, bytes}}, 1};
  };
  Start({}, 4 * kMiB);
  auto theirs = SharedMemory::Create(4 * kMiB, "a test");
  auto visitor = Welcome(*theirs);
  const uint64_t bytes = 4 * kMiB;
  visitor->Say(local_wire::EncodePayload("a", {{RegionId{0}, 0, bytes}}));
  asked_.WaitForNotification();
  visitor->Say(local_wire::EncodePayload("b", {{RegionId{0}, 0, bytes}}));
  visitor->Say(local_wire::EncodeMessage("m"));
  go_on_.Notify();
  ASSERT_TRUE(journal_.Await("landed", 2));
  EXPECT_THAT(journal_.lines(), ElementsAre("up", "payload a", "message m",
                                            "landed", "payload b", "landed"));
}

TEST_F(LocalVisitorTest, FloodOfPayloadsIsEnded) {
  journal_.on_payload = [this](uint64_t bytes) -> std::optional<Landing> {
    return Landing{{{region_, 0, bytes}}, 1};
  };
  Start({}, 64 * kMiB);
  auto theirs = SharedMemory::Create(kMiB, "a test");
  auto visitor = Welcome(*theirs);
  // 64 MB each, of 1 MB.
  const std::string payload = local_wire::EncodePayload(
      "h", std::vector<Extent>(
               64, Extent{RegionId{0}, 0, static_cast<uint64_t>(kMiB)}));
  for (int i = 0; i < 1200; ++i) visitor->Say(payload);
  EXPECT_TRUE(journal_.Await("down"));
  EXPECT_EQ(journal_.why().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(journal_.Await("not landed"));
}

// Sends to a peer that does not read are bounded, and end with it.
TEST_F(LocalVisitorTest, VisitorThatNeverReads) {
  Start({.max_sends_in_flight = 4, .max_sends_outstanding = 600});
  auto theirs = SharedMemory::Create(4096, "a test");
  auto visitor = Welcome(*theirs);
  const std::string header(kMaxHeaderBytes, 'x');
  const PeerId peer = journal_.peer();
  uint64_t accepted = 0;
  absl::Status status;
  // Some complete, as long as the socket takes them.
  while (accepted < 5000 &&
         (status = server_->Send(peer, AsBytes(header), {}, accepted)).ok()) {
    ++accepted;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GE(accepted, 600u);
  server_->ClosePeer(peer);
  EXPECT_TRUE(journal_.Await("not sent " + std::to_string(accepted - 1)));
}

}  // namespace
}  // namespace baton::kv_transfer::local_visitor_test
