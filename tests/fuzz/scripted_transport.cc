#include "tests/fuzz/scripted_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <google/protobuf/stubs/logging.h>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "kv_transfer/wire.h"
#include "tests/fuzz/fuzz_input.h"

namespace baton::fuzz {
namespace {

// Of strings that are no UTF-8, whenever a peer says one.
[[maybe_unused]] const auto kNoProtobufLog =
    google::protobuf::SetLogHandler(nullptr);

}  // namespace

using kv_transfer::ByteSpan;
using kv_transfer::Extent;
using kv_transfer::Landing;
using kv_transfer::PeerId;
using kv_transfer::RegionId;

ScriptedTransport::ScriptedTransport() {
  properties_.name = "scripted";
  properties_.address = "127.0.0.1:1";
  properties_.max_header_bytes = 4096;
  properties_.max_payload_bytes = uint64_t{1} << 20;
  properties_.good_payload_bytes = 512;
  properties_.max_payload_extents = 8;
  properties_.max_sends_in_flight = 4;
  properties_.max_sends_outstanding = kMaxSends;
}

ScriptedTransport::Peer* ScriptedTransport::Find(uint32_t number) {
  return number < peers_.size() ? &peers_[number] : nullptr;
}

void ScriptedTransport::PeerArrives() {
  if (peers_.size() >= kMaxPeers) return;
  const auto number = static_cast<uint32_t>(peers_.size());
  peers_.push_back({.state = State::kUp,
                    .address = absl::StrCat("127.0.0.1:", 9000 + number)});
  handler_->OnPeerUp(IdOf(number), peers_[number].address);
}

void ScriptedTransport::PeerUp(uint32_t number) {
  Peer* const peer = Find(number);
  if (peer == nullptr || peer->state != State::kConnecting || peer->closing) {
    return;
  }
  peer->state = State::kUp;
  const std::string address = peer->address;
  handler_->OnPeerUp(IdOf(number), address);
}

void ScriptedTransport::PeerDown(uint32_t number) {
  Peer* const peer = Find(number);
  if (peer == nullptr || peer->state == State::kDown) return;
  peer->state = State::kDown;
  const PeerId id = IdOf(number);
  handler_->OnPeerDown(id, absl::UnavailableError("the connection ended"));
  for (size_t i = 0; i < sends_.size();) {
    if (sends_[i].peer == id) {
      CompleteSend(static_cast<uint32_t>(i), /*ok=*/false);
    } else {
      ++i;
    }
  }
  for (size_t i = 0; i < landings_.size();) {
    if (landings_[i].peer == id) {
      CompleteLanding(static_cast<uint32_t>(i), /*ok=*/false, std::byte{0},
                      /*says_so=*/false);
    } else {
      ++i;
    }
  }
}

void ScriptedTransport::Message(uint32_t number, absl::string_view header) {
  Peer* const peer = Find(number);
  if (peer == nullptr || peer->state != State::kUp || header.empty() ||
      header.size() > properties_.max_header_bytes) {
    return;
  }
  handler_->OnMessage(IdOf(number), AsBytes(header));
}

void ScriptedTransport::Payload(uint32_t number, absl::string_view header,
                                uint64_t bytes) {
  Peer* const peer = Find(number);
  if (peer == nullptr || peer->state != State::kUp || header.empty() ||
      header.size() > properties_.max_header_bytes || bytes == 0 ||
      bytes > properties_.max_payload_bytes) {
    return;
  }
  std::optional<Landing> landing =
      handler_->OnPayload(IdOf(number), AsBytes(header), bytes);
  if (!landing.has_value()) return;
  CheckExtents(landing->extents, bytes);
  landings_.push_back({IdOf(number), *std::move(landing), bytes});
}

void ScriptedTransport::CompleteSend(uint32_t index, bool ok) {
  if (index >= sends_.size()) return;
  const Sending send = std::move(sends_[index]);
  sends_.erase(sends_.begin() + index);
  handler_->OnSent(send.peer, send.cookie,
                   ok ? absl::OkStatus() : absl::UnavailableError("not sent"));
}

void ScriptedTransport::CompleteLanding(uint32_t index, bool ok, std::byte fill,
                                        bool says_so) {
  if (index >= landings_.size()) return;
  const OpenLanding open = std::move(landings_[index]);
  if (ok) {
    for (const Extent& extent : open.landing.extents) {
      const absl::Span<std::byte> to =
          regions_.at(extent.region).subspan(extent.offset, extent.length);
      if (!says_so) {
        std::memset(to.data(), static_cast<int>(fill), to.size());
        continue;
      }
      const std::string bytes(to.size(), static_cast<char>(fill));
      const size_t half = bytes.size() / 2;
      const uint64_t cookie = open.landing.cookie;
      handler_->CopyLanding(open.peer, cookie, AsBytes(bytes).first(half),
                            to.first(half), kv_transfer::Stores::kCached);
      handler_->CopyLanding(open.peer, cookie, AsBytes(bytes).subspan(half),
                            to.subspan(half), kv_transfer::Stores::kStreaming);
    }
  }
  // Until here, the transport may write to it.
  landings_.erase(landings_.begin() + index);
  handler_->OnLanded(
      open.peer, open.landing.cookie,
      ok ? absl::OkStatus() : absl::UnavailableError("did not land"));
}

void ScriptedTransport::Tick() { handler_->OnTick(); }

void ScriptedTransport::Settle() {
  for (uint32_t number = 0; number < peers_.size(); ++number) {
    if (peers_[number].closing) PeerDown(number);
  }
  while (!sends_.empty()) CompleteSend(0, /*ok=*/true);
}

absl::StatusOr<RegionId> ScriptedTransport::RegisterRegion(
    absl::Span<std::byte> memory, int descriptor) {
  const RegionId id{static_cast<uint32_t>(regions_.size()) + 1};
  regions_[id] = memory;
  return id;
}

void ScriptedTransport::Start(kv_transfer::TransportHandler* handler) {
  handler_ = handler;
}

void ScriptedTransport::Stop() {
  if (handler_ == nullptr) return;
  for (uint32_t number = 0; number < peers_.size(); ++number) PeerDown(number);
  CHECK(sends_.empty() && landings_.empty());
  handler_ = nullptr;
}

absl::StatusOr<PeerId> ScriptedTransport::Connect(const std::string& address) {
  if (peers_.size() >= kMaxPeers) {
    return absl::ResourceExhaustedError("too many peers");
  }
  peers_.push_back({.address = address});
  return IdOf(static_cast<uint32_t>(peers_.size()) - 1);
}

absl::Status ScriptedTransport::Send(PeerId peer, ByteSpan header,
                                     absl::Span<const Extent> payload,
                                     uint64_t cookie) {
  CHECK(!header.empty());
  CHECK_LE(header.size(), properties_.max_header_bytes);
  uint64_t bytes = 0;
  for (const Extent& extent : payload) bytes += extent.length;
  CheckExtents(payload, bytes);
  const auto number = static_cast<uint32_t>(static_cast<uint64_t>(peer)) - 1;
  const Peer* const to = Find(number);
  CHECK(to != nullptr) << "nobody has that number";
  if (to->closing || to->state == State::kDown) {
    return absl::UnavailableError("it is down");
  }
  if (to->state == State::kConnecting) {
    return absl::FailedPreconditionError("it is not up yet");
  }
  if (sends_.size() >= kMaxSends) {
    return absl::ResourceExhaustedError("max_sends_outstanding");
  }
  CHECK(kv_transfer::wire::Decode(header).ok()) << "nobody could read that";
  last_header_.assign(reinterpret_cast<const char*>(header.data()),
                      header.size());
  sends_.push_back(
      {peer, last_header_, {payload.begin(), payload.end()}, cookie});
  return absl::OkStatus();
}

void ScriptedTransport::ClosePeer(PeerId peer) {
  const auto number = static_cast<uint32_t>(static_cast<uint64_t>(peer)) - 1;
  if (Peer* const found = Find(number)) found->closing = true;
}

void ScriptedTransport::CheckExtents(absl::Span<const Extent> extents,
                                     uint64_t bytes) const {
  CHECK_LE(extents.size(), properties_.max_payload_extents);
  uint64_t sum = 0;
  for (const Extent& extent : extents) {
    const auto region = regions_.find(extent.region);
    CHECK(region != regions_.end());
    CHECK_LE(extent.length, region->second.size());
    CHECK_LE(extent.offset, region->second.size() - extent.length);
    CHECK_GT(extent.length, 0u);
    sum += extent.length;
  }
  CHECK_EQ(sum, bytes);
}

}  // namespace baton::fuzz
