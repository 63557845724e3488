// Workers that pair, or should not: other caches, nobody there, no answer, a
// second connection.
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "common/log.h"
#include "tests/kv_transfer/handoff_pair.h"

namespace baton::kv_transfer {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Collects what is logged while it lives.
class LogLines final : public google::LogSink {
 public:
  LogLines() { google::AddLogSink(this); }
  ~LogLines() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity, const char*, const char*, int,
            const google::LogMessageTime&, const char* message,
            size_t length) override {
    lines.emplace_back(message, length);
  }
  std::vector<std::string> lines;
};

class HandoffPairingTest : public HandoffPairTest {};

TEST_F(HandoffPairingTest, AnotherFingerprintIsRefusedByName) {
  HandoffOptions options =
      Options(sender_memory_, v1::WORKER_ROLE_PREFILL, 555);
  options.self.set_worker_name("prefill-odd");
  options.self.mutable_fingerprint()->set_num_layers(8);
  options.self.mutable_fingerprint()->set_kv_dtype("int8");
  auto transport = network_.CreateTransport(false);
  auto odd = *Sender::Create(transport.get(), options);
  LogLines log;
  ASSERT_TRUE(odd->Pair(receiver_transport_->properties().address).ok());
  network_.RunUntilIdle();

  const auto mine = Only<PeerRefused>(odd->Poll());
  ASSERT_THAT(mine, SizeIs(1));
  EXPECT_EQ(mine[0].worker_name, "decode-0");
  EXPECT_THAT(mine[0].reason, AllOf(HasSubstr("num_layers (8 here, 4 there)"),
                                    HasSubstr("kv_dtype")));
  const auto theirs = Only<PeerRefused>(PollReceiver());
  ASSERT_THAT(theirs, SizeIs(1));
  EXPECT_EQ(theirs[0].worker_name, "prefill-odd");
  EXPECT_THAT(theirs[0].reason, HasSubstr("num_layers (4 here, 8 there)"));
  EXPECT_FALSE(odd->IsReady(Incarnation{kDecode}));
  EXPECT_EQ(receiver_->stats().peers_ready, 1u);
  EXPECT_THAT(log.lines, Contains(AllOf(HasSubstr("'decode-0'"),
                                        HasSubstr("num_layers (8 here"))));
  EXPECT_THAT(log.lines, Contains(AllOf(HasSubstr("'prefill-odd'"),
                                        HasSubstr("num_layers (4 here"))));
}

TEST_F(HandoffPairingTest, NobodyThereIsRefused) {
  ASSERT_TRUE(sender_->Pair("fake:99").ok());
  network_.RunUntilIdle();
  const auto refused = Only<PeerRefused>(PollSender());
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].address, "fake:99");
  EXPECT_EQ(sender_->Pair("nonsense").code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(HandoffPairingTest, UnansweredHelloIsRefusedInTime) {
  network_.judge = [](ByteSpan, bool) { return FakeNetwork::Fate::kDrop; };
  auto transport = network_.CreateTransport(false);
  auto other = MakeSender(transport.get(), sender_memory_, 666);
  ASSERT_TRUE(other->Pair(receiver_transport_->properties().address).ok());
  network_.RunUntilIdle();
  EXPECT_THAT(other->Poll(), IsEmpty());
  AdvanceAndTick(absl::Seconds(5));
  const auto refused = Only<PeerRefused>(other->Poll());
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_THAT(refused[0].reason, HasSubstr("no hello in time"));
}

TEST_F(HandoffPairingTest, SecondConnectionOfOneLifeReplacesTheFirst) {
  auto transport = network_.CreateTransport(false);
  auto again = MakeSender(transport.get(), sender_memory_, kPrefill);
  ASSERT_TRUE(receiver_->Open(OpenOf({1})).ok());
  ASSERT_TRUE(again->Pair(receiver_transport_->properties().address).ok());
  network_.RunUntilIdle();
  EXPECT_TRUE(again->IsReady(Incarnation{kDecode}));
  EXPECT_THAT(Only<PeerLost>(PollSender()), SizeIs(1));
  const auto received = PollReceiver();
  EXPECT_THAT(Only<PeerReady>(received), SizeIs(1));
  EXPECT_THAT(Only<PeerLost>(received), SizeIs(1));
  // That life is there, so a transfer that waits for it goes on waiting.
  EXPECT_THAT(Only<Receiver::Failed>(received), IsEmpty());
}

TEST_F(HandoffPairingTest, HelloThatIsTooLongIsAnError) {
  HandoffOptions options =
      Options(receiver_memory_, v1::WORKER_ROLE_DECODE, 999);
  options.self.set_worker_name(std::string(5000, 'x'));
  auto transport = network_.CreateTransport(true);
  const auto receiver = Receiver::Create(transport.get(), options);
  EXPECT_EQ(receiver.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(receiver.status().message()),
              HasSubstr("worker_name"));
}

}  // namespace
}  // namespace baton::kv_transfer
