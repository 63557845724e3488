// The prefill worker's side of the hand-off: decode workers that say anything
// whatever, in any order, while the worker starts, feeds, commits and aborts
// transfers and time passes. What must hold, besides not crashing:
//   1. what is sent is read from blocks of transfers that have not quiesced;
//   2. each started transfer ends with one Quiesced, and then nothing of its
//      blocks is on the wire.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/log.h"
#include "kv_transfer/handoff_sender.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/peer_frames.h"
#include "tests/fuzz/scripted_transport.h"

namespace baton::fuzz {
namespace {

using kv_transfer::HandoffSender;
using kv_transfer::WireEncoding;
namespace wire = kv_transfer::wire;

class SenderTarget final {
 public:
  explicit SenderTarget(FuzzInput& input) : input_(input) {
    kv_transfer::HandoffOptions options;
    options.self = kv_transfer::MakeHello(v1::WORKER_ROLE_PREFILL,
                                          static_cast<uint64_t>(kSelf), "self");
    options.kv = cache_.geometry();
    options.clock = &clock_;
    options.max_transfers = 3;
    options.max_waiting_events = 24;
    options.stall_timeout = absl::Seconds(3);
    options.probe_links = input_.Bool();
    if (options.probe_links && input_.Bool()) {
      options.wire = {.encoding = WireEncoding::kInt8,
                      .below_bytes_per_second = 1e12};
    }
    auto sender = HandoffSender::Create(&transport_, options);
    CHECK(sender.ok()) << sender.status();
    sender_ = *std::move(sender);
  }

  void Run() {
    for (int i = 0; i < kMaxActions && !input_.empty(); ++i) {
      Act();
      CheckSends();
    }
    // Everything ends.
    for (auto& [id, transfer] : started_) sender_->Abort(id);
    transport_.Stop();
    Poll();
    CHECK(started_.empty()) << started_.size() << " transfers never ended";
  }

 private:
  struct Transfer {
    std::vector<BlockId> blocks;
    std::array<int32_t, kLayers> ready = {};
    bool committed = false;
  };

  void Act() {
    const uint32_t peer = input_.Below(3);
    switch (input_.Below(16)) {
      case 0:
        static_cast<void>(
            sender_->Pair(absl::StrCat("127.0.0.1:", 1 + input_.Below(3))));
        break;
      case 1:
        transport_.PeerUp(peer);
        break;
      case 2:
      case 3:
        Answer(peer);
        break;
      case 4:
      case 5:
        Start();
        break;
      case 6:
      case 7:
        SendLayer();
        break;
      case 8:
        Commit();
        break;
      case 9:
      case 10:
        CompleteSend();
        break;
      case 11:
      case 12:
        Say(peer);
        break;
      case 13:
        transport_.Message(peer, Exactly(input_.Take(input_.Byte())));
        break;
      case 14:
        sender_->Abort(DrawTransfer(input_));
        break;
      case 15:
        Pass();
        break;
    }
  }

  void Answer(uint32_t peer) {
    v1::PeerHelloReply reply;
    *reply.mutable_hello() = DrawHello(input_, v1::WORKER_ROLE_DECODE, peer);
    reply.set_accepted(input_.Below(8) != 0);
    if (!reply.accepted()) {
      reply.set_reason(std::string(input_.Take(input_.Byte())));
    }
    transport_.Message(peer, DrawFrame(input_, peer, reply));
  }

  void Start() {
    HandoffSender::Grant grant;
    grant.transfer = DrawTransfer(input_);
    grant.generation = input_.Below(2);
    grant.receiver = LifeOf(input_.Below(3));
    Transfer transfer;
    const int32_t wanted = input_.Below(5);
    const int32_t first = input_.Below(kBlocks);
    for (int32_t i = 0; i < wanted; ++i) {
      transfer.blocks.push_back((first + 3 * i) % kBlocks);
    }
    if (wanted > 0) {
      grant.first_token = input_.Below(static_cast<uint8_t>(wanted)) *
                          kv_transfer::kBlockTokens;
    }
    grant.num_tokens =
        std::max(0, wanted * kv_transfer::kBlockTokens - grant.first_token -
                        input_.Below(kv_transfer::kBlockTokens));
    const absl::Status status =
        sender_->Start(grant, transfer.blocks,
                       clock_.Now() + absl::Seconds(1 + input_.Below(8)));
    if (!status.ok()) return;
    Poll();
    CHECK(started_.emplace(grant.transfer, std::move(transfer)).second)
        << "started twice";
  }

  void SendLayer() {
    const TransferId id = DrawTransfer(input_);
    const int32_t layer = input_.Below(kLayers);
    const int32_t more = input_.Below(5);
    const auto it = started_.find(id);
    if (it == started_.end() || it->second.committed) return;
    int32_t& ready = it->second.ready[layer];
    ready =
        std::min(ready + more, static_cast<int32_t>(it->second.blocks.size()));
    sender_->SendLayer(id, layer, ready);
    transport_.Tick();
  }

  void CompleteSend() {
    const uint32_t index = input_.Below(8);
    transport_.CompleteSend(index, /*ok=*/input_.Below(8) != 0);
  }

  // All layers that are missing, and the commit.
  void Commit() {
    const TransferId id = DrawTransfer(input_);
    const auto it = started_.find(id);
    if (it == started_.end() || it->second.committed) return;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      sender_->SendLayer(id, layer,
                         static_cast<int32_t>(it->second.blocks.size()));
    }
    sender_->Commit(id, {.first_token = 3, .num_tokens = 5});
    it->second.committed = true;
    transport_.Tick();
  }

  void Say(uint32_t peer) {
    const TransferId id = DrawTransfer(input_);
    const uint32_t generation = input_.Below(2);
    wire::Body body;
    switch (input_.Below(8)) {
      case 0:
        body = wire::Abort{
            id, generation,
            static_cast<kv_transfer::TransferOutcome>(1 + input_.Below(10))};
        break;
      case 1:
        body = wire::AbortAck{id, generation};
        break;
      case 2:
      case 3:
        body = wire::CommitAck{
            id, generation,
            static_cast<kv_transfer::TransferOutcome>(input_.Below(11))};
        break;
      case 4:
        AnswerProbe(peer);
        return;
      case 5:
        body = wire::ProbeReply{input_.Byte(), input_.Byte()};
        break;
      case 6:
        body = DrawHello(input_, v1::WORKER_ROLE_DECODE, peer);
        break;
      case 7: {
        wire::Kv kv{id, generation, {0, 0, 1}};
        transport_.Payload(peer, DrawFrame(input_, peer, kv), kPageBytes);
        return;
      }
    }
    transport_.Message(peer, DrawFrame(input_, peer, std::move(body)));
  }

  // The right answer to the last message, if that was a probe.
  void AnswerProbe(uint32_t peer) {
    const auto message = wire::Decode(AsBytes(transport_.last_header()));
    if (!message.ok()) return;
    const auto* probe = std::get_if<wire::Probe>(&message->body);
    if (probe == nullptr) return;
    clock_.Advance(absl::Microseconds(100) * input_.Byte());
    transport_.Message(
        peer, DrawFrame(input_, peer,
                        wire::ProbeReply{probe->probe, probe->sequence}));
  }

  void Pass() {
    clock_.Advance(absl::Milliseconds(100) * input_.Below(40));
    switch (input_.Below(8)) {
      case 0:
        transport_.PeerDown(input_.Below(3));
        break;
      case 1:
      case 2:
        transport_.Settle();
        break;
      default:
        transport_.Tick();
        break;
    }
  }

  void Poll() {
    for (const HandoffSender::Event& event : sender_->Poll()) {
      const auto* quiet = std::get_if<HandoffSender::Quiesced>(&event);
      if (quiet == nullptr) continue;
      CHECK_EQ(started_.erase(quiet->transfer), 1u) << "a transfer ended twice";
    }
  }

  // Nothing is read from a block that belongs to no transfer any more.
  void CheckSends() {
    Poll();
    for (const ScriptedTransport::Sending& send : transport_.sends()) {
      for (const kv_transfer::Extent& extent : send.payload) {
        if (extent.region != kv_transfer::RegionId{1}) continue;  // staged
        if (send.cookie == kProbeCookie) continue;
        for (const BlockId block : Cache::BlocksOf(extent)) {
          CHECK(std::any_of(started_.begin(), started_.end(),
                            [&](const auto& entry) {
                              const auto& blocks = entry.second.blocks;
                              return std::find(blocks.begin(), blocks.end(),
                                               block) != blocks.end();
                            }))
              << "block " << block;
        }
      }
    }
  }

  // Of payloads that only measure the link, whatever they are read from.
  static constexpr uint64_t kProbeCookie = ~uint64_t{0};

  FuzzInput& input_;
  ScriptedClock clock_;
  Cache cache_;
  ScriptedTransport transport_;
  std::unique_ptr<HandoffSender> sender_;
  std::map<TransferId, Transfer> started_;
};

}  // namespace
}  // namespace baton::fuzz

FUZZ_TARGET(handoff_sender)(const uint8_t* data, size_t size) {
  baton::fuzz::FuzzInput input(data, size);
  baton::fuzz::SenderTarget(input).Run();
  return 0;
}
