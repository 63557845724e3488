// The decode worker's side of the hand-off: peers that say anything whatever,
// in any order, while the worker opens and aborts transfers and time passes.
// What must hold, besides not crashing:
//   1. a payload lands in blocks of transfers that are open or in quarantine,
//      and in nothing else;
//   2. each opened transfer ends with one of Landed and Quiesced, and then
//      nothing can write to its blocks.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/log.h"
#include "kv_transfer/checksum.h"
#include "kv_transfer/handoff_receiver.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/peer_frames.h"
#include "tests/fuzz/scripted_transport.h"

namespace baton::fuzz {
namespace {

using kv_transfer::HandoffReceiver;
using kv_transfer::WireEncoding;
namespace wire = kv_transfer::wire;

constexpr std::byte kFill{0x11};

class ReceiverTarget final {
 public:
  explicit ReceiverTarget(FuzzInput& input) : input_(input) {
    kv_transfer::HandoffOptions options;
    options.self = kv_transfer::MakeHello(v1::WORKER_ROLE_DECODE,
                                          static_cast<uint64_t>(kSelf), "self");
    options.kv = cache_.geometry();
    options.clock = &clock_;
    options.probe_links = input_.Bool();
    options.max_transfers = 3;
    options.max_waiting_events = 24;
    auto receiver = HandoffReceiver::Create(&transport_, options);
    CHECK(receiver.ok()) << receiver.status();
    receiver_ = *std::move(receiver);
    for (BlockId block = 0; block < kBlocks; ++block) free_.insert(block);
  }

  void Run() {
    for (int i = 0; i < kMaxActions && !input_.empty(); ++i) {
      Act();
      CheckLandings();
    }
    // Everything ends.
    for (auto& [id, blocks] : open_) receiver_->Abort(id);
    transport_.Stop();
    Poll();
    CHECK(open_.empty()) << open_.size() << " transfers never ended";
  }

 private:
  void Act() {
    const uint32_t peer = input_.Below(4);
    switch (input_.Below(16)) {
      case 0:
        transport_.PeerArrives();
        break;
      case 1:
      case 2:
        transport_.Message(
            peer, DrawFrame(input_, peer,
                            DrawHello(input_, v1::WORKER_ROLE_PREFILL, peer)));
        break;
      case 3:
      case 4:
        Open();
        break;
      case 5:
        Payload(peer, /*right=*/false);
        break;
      case 6:
      case 7:
        Payload(peer, /*right=*/true);
        break;
      case 8:
      case 9:
        CompleteLanding();
        break;
      case 10:
        Commit(peer);
        break;
      case 11:
        Odd(peer);
        break;
      case 12:
        transport_.Message(peer, Exactly(input_.Take(input_.Byte())));
        break;
      case 13:
        receiver_->Abort(DrawTransfer(input_));
        break;
      case 14:
        Pass();
        break;
      case 15:
        Poll();
        break;
    }
  }

  void Open() {
    HandoffReceiver::OpenTransfer open;
    open.transfer = DrawTransfer(input_);
    if (open_.count(open.transfer) > 0) return;
    open.generation = input_.Below(2);
    const size_t wanted = input_.Below(4);
    while (open.blocks.size() < wanted && !free_.empty()) {
      auto it = free_.lower_bound(input_.Below(kBlocks));
      if (it == free_.end()) it = free_.begin();
      open.blocks.push_back(*it);
      free_.erase(it);
    }
    if (input_.Below(4) == 0) {
      open.num_tokens = static_cast<int32_t>(
          open.blocks.size() * kv_transfer::kBlockTokens * input_.Below(5) / 4);
    }
    if (input_.Bool()) open.sender = LifeOf(input_.Below(4));
    open.deadline = clock_.Now() + absl::Seconds(1 + input_.Below(8));
    const std::vector<BlockId> blocks = open.blocks;
    const TransferId id = open.transfer;
    if (receiver_->Open(std::move(open)).ok()) {
      open_[id] = blocks;
    } else {
      free_.insert(blocks.begin(), blocks.end());
    }
  }

  void Payload(uint32_t peer, bool right) {
    wire::Kv kv;
    kv.transfer = DrawTransfer(input_);
    kv.generation = input_.Below(2);
    uint64_t bytes = kPageBytes;
    if (right) {
      kv.pages = {input_.Below(kLayers), input_.Below(4),
                  static_cast<uint32_t>(1 + input_.Below(2))};
      bytes = kv.pages.num_pages * kPageBytes;
    } else {
      kv.pages = {input_.Number<uint32_t>(), input_.Number<uint32_t>(),
                  input_.Number<uint32_t>()};
      kv.encoding = static_cast<WireEncoding>(input_.Below(3));
      bytes = input_.Number<uint16_t>();
    }
    transport_.Payload(peer, DrawFrame(input_, peer, kv), bytes);
  }

  void CompleteLanding() {
    const uint32_t index = input_.Below(8);
    const bool ok = input_.Below(8) != 0;
    const std::byte fill =
        input_.Below(8) != 0 ? kFill : std::byte{input_.Byte()};
    transport_.CompleteLanding(index, ok, fill, /*says_so=*/input_.Bool());
  }

  // That of a transfer whose pages all came as kFill, or another one.
  void Commit(uint32_t peer) {
    wire::Commit commit;
    commit.transfer = DrawTransfer(input_);
    commit.generation = input_.Below(2);
    commit.num_layers = kLayers;
    const auto open = open_.find(commit.transfer);
    commit.num_pages =
        open == open_.end() ? input_.Byte() : open->second.size();
    commit.total_bytes = uint64_t{kLayers} * commit.num_pages * kPageBytes;
    commit.record = {.first_token = input_.Byte(), .num_tokens = 5};
    switch (input_.Below(8)) {
      case 0:
        commit.num_layers = input_.Number<uint32_t>();
        break;
      case 1:
        commit.num_pages = input_.Number<uint32_t>();
        break;
      case 2:
        commit.total_bytes = input_.Number<uint64_t>();
        break;
      case 3:
        commit.record.first_token = input_.Number<int32_t>();
        break;
      case 4:
        commit.encoding = static_cast<WireEncoding>(input_.Below(3));
        break;
      default:
        break;
    }
    const std::vector<std::byte> page(kPageBytes, kFill);
    commit.checksum = kv_transfer::RecordChecksum(commit.record);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint32_t i = 0; i < std::min(commit.num_pages, 4u); ++i) {
        commit.checksum += kv_transfer::PageChecksum(page, layer, i);
      }
    }
    transport_.Message(peer, DrawFrame(input_, peer, commit));
  }

  // What a receiver is seldom or never told.
  void Odd(uint32_t peer) {
    const TransferId id = DrawTransfer(input_);
    const uint32_t generation = input_.Below(2);
    const auto outcome =
        static_cast<kv_transfer::TransferOutcome>(1 + input_.Below(10));
    wire::Body body;
    switch (input_.Below(7)) {
      case 0:
        body = wire::Abort{id, generation, outcome};
        break;
      case 1:
        body = wire::AbortAck{id, generation};
        break;
      case 2:
        body = wire::CommitAck{id, generation, outcome};
        break;
      case 3:
        body = wire::ProbeReply{input_.Byte(), input_.Byte()};
        break;
      case 4: {
        v1::PeerHelloReply reply;
        *reply.mutable_hello() =
            DrawHello(input_, v1::WORKER_ROLE_PREFILL, peer);
        reply.set_accepted(input_.Bool());
        body = reply;
        break;
      }
      case 5:
        body = wire::Probe{input_.Byte(), input_.Byte()};
        break;
      case 6: {
        const auto bytes = input_.Number<uint32_t>();
        const wire::Probe probe{input_.Byte(), input_.Byte()};
        transport_.Payload(peer, DrawFrame(input_, peer, probe), bytes);
        return;
      }
    }
    transport_.Message(peer, DrawFrame(input_, peer, std::move(body)));
  }

  void Pass() {
    clock_.Advance(absl::Milliseconds(100) * input_.Below(40));
    switch (input_.Below(4)) {
      case 0:
        transport_.PeerDown(input_.Below(4));
        break;
      case 1:
        transport_.Settle();
        break;
      default:
        transport_.Tick();
        break;
    }
  }

  void Poll() {
    for (const HandoffReceiver::Event& event : receiver_->Poll()) {
      if (const auto* landed = std::get_if<HandoffReceiver::Landed>(&event)) {
        End(landed->transfer);
      } else if (const auto* quiet =
                     std::get_if<HandoffReceiver::Quiesced>(&event)) {
        End(quiet->transfer);
      }
    }
  }

  void End(TransferId id) {
    const auto it = open_.find(id);
    CHECK(it != open_.end()) << "a transfer ended twice";
    free_.insert(it->second.begin(), it->second.end());
    open_.erase(it);
  }

  // No byte is on its way into a block that is free.
  void CheckLandings() {
    // What is free is known from events only.
    Poll();
    for (const ScriptedTransport::OpenLanding& open : transport_.landings()) {
      for (const kv_transfer::Extent& extent : open.landing.extents) {
        if (extent.region != kv_transfer::RegionId{1}) continue;  // a probe's
        for (const BlockId block : Cache::BlocksOf(extent)) {
          CHECK_EQ(free_.count(block), 0u) << "block " << block;
        }
      }
    }
  }

  FuzzInput& input_;
  ScriptedClock clock_;
  Cache cache_;
  ScriptedTransport transport_;
  std::unique_ptr<HandoffReceiver> receiver_;
  std::set<BlockId> free_;
  std::map<TransferId, std::vector<BlockId>> open_;
};

}  // namespace
}  // namespace baton::fuzz

FUZZ_TARGET(handoff_receiver)(const uint8_t* data, size_t size) {
  baton::fuzz::FuzzInput input(data, size);
  baton::fuzz::ReceiverTarget(input).Run();
  return 0;
}
