#include "tests/support/late_write_transport.h"

#include <cstring>
#include <optional>
#include <utility>

#include "common/log.h"

namespace baton::kv_transfer {

class LateWriteTransport::Between final : public TransportHandler {
 public:
  explicit Between(LateWriteTransport* late) : late_(late) {}

  void OnPeerUp(PeerId peer, const std::string& address) override {
    handler().OnPeerUp(peer, address);
  }
  void OnPeerDown(PeerId peer, const absl::Status& why) override {
    handler().OnPeerDown(peer, why);
    late_->PeerDown(peer);
  }
  void OnMessage(PeerId peer, ByteSpan header) override {
    handler().OnMessage(peer, header);
  }
  std::optional<Landing> OnPayload(PeerId peer, ByteSpan header,
                                   uint64_t payload_bytes) override {
    return late_->Accept(peer, header, payload_bytes);
  }
  void CopyLanding(PeerId peer, uint64_t cookie, ByteSpan from,
                   absl::Span<std::byte> to, Stores stores) override {
    const Open& open = late_->open_.at(cookie);
    if (open.aside.empty()) {
      handler().CopyLanding(peer, open.landing.cookie, from, to, stores);
    } else {
      // The handler copies once it is written, if at all.
      TransportHandler::CopyLanding(peer, cookie, from, to, stores);
    }
  }
  void OnLanded(PeerId, uint64_t cookie, const absl::Status& status) override {
    late_->Arrived(cookie, status);
  }
  void OnSent(PeerId peer, uint64_t cookie,
              const absl::Status& status) override {
    handler().OnSent(peer, cookie, status);
  }
  void OnTick() override {
    late_->Tick();
    handler().OnTick();
  }

 private:
  TransportHandler& handler() { return *late_->handler_; }
  LateWriteTransport* const late_;
};

LateWriteTransport::LateWriteTransport(std::unique_ptr<Transport> inside,
                                       Options options)
    : inside_(std::move(inside)),
      options_(std::move(options)),
      between_(std::make_unique<Between>(this)),
      aside_(options_.max_held * options_.max_held_bytes) {
  auto region = inside_->RegisterRegion(absl::MakeSpan(aside_), kNoDescriptor);
  CHECK(region.ok()) << region.status();
  aside_region_ = *region;
  for (uint32_t i = 0; i < options_.max_held; ++i) {
    free_places_.push_back(i * options_.max_held_bytes);
  }
}

LateWriteTransport::~LateWriteTransport() { Stop(); }

absl::StatusOr<RegionId> LateWriteTransport::RegisterRegion(
    absl::Span<std::byte> memory, int descriptor) {
  auto region = inside_->RegisterRegion(memory, descriptor);
  if (region.ok()) regions_[*region] = memory;
  return region;
}

LateWriteTransport::Stats LateWriteTransport::stats() const {
  return {num_held_, num_after_peer_down_, num_not_held_};
}

void LateWriteTransport::Start(TransportHandler* handler) {
  handler_ = handler;
  inside_->Start(between_.get());
}

void LateWriteTransport::Stop() {
  if (std::exchange(stopped_, true)) return;
  inside_->Stop();
  // Nobody else calls the handler any more. The last moment to write.
  while (!open_.empty()) {
    Open& open = open_.begin()->second;
    open.peer_down = true;
    Finish(open_.begin()->first);
  }
}

std::optional<Landing> LateWriteTransport::Accept(PeerId peer, ByteSpan header,
                                                  uint64_t bytes) {
  std::optional<Landing> landing = handler_->OnPayload(peer, header, bytes);
  if (!landing.has_value()) return std::nullopt;
  const uint64_t cookie = next_cookie_++;
  Open& open = open_[cookie];
  open.peer = peer;
  open.header.assign(reinterpret_cast<const char*>(header.data()),
                     header.size());
  open.bytes = bytes;
  open.landing = *std::move(landing);
  if (!options_.judge) return Landing{open.landing.extents, cookie};
  open.hold = options_.judge(header);
  if (bytes > options_.max_held_bytes || free_places_.empty()) {
    ++num_not_held_;
    return Landing{open.landing.extents, cookie};
  }
  ++num_held_;
  const uint64_t place = free_places_.back();
  free_places_.pop_back();
  open.aside = absl::MakeSpan(aside_).subspan(place, bytes);
  return Landing{{Extent{aside_region_, place, bytes}}, cookie};
}

void LateWriteTransport::Arrived(uint64_t cookie, const absl::Status& status) {
  Open& open = open_.at(cookie);
  CHECK(!open.arrived) << "landing " << cookie << " completed twice";
  open.arrived = true;
  open.status = status;
  const bool at_once =
      open.hold.ticks == 0 && (open.peer_down || !open.hold.until_peer_down);
  if (open.aside.empty() || at_once) Finish(cookie);
}

void LateWriteTransport::PeerDown(PeerId peer) {
  for (auto& [cookie, open] : open_) {
    if (open.peer == peer) open.peer_down = true;
  }
}

void LateWriteTransport::Tick() {
  std::vector<uint64_t> due;
  for (auto& [cookie, open] : open_) {
    if (!open.arrived || (open.hold.until_peer_down && !open.peer_down)) {
      continue;
    }
    if (--open.hold.ticks <= 0) due.push_back(cookie);
  }
  for (uint64_t cookie : due) Finish(cookie);
}

void LateWriteTransport::Finish(uint64_t cookie) {
  Open open = std::move(open_.extract(cookie).mapped());
  const uint64_t users = open.landing.cookie;
  if (!open.aside.empty()) {
    const ByteSpan header(
        reinterpret_cast<const std::byte*>(open.header.data()),
        open.header.size());
    const Spans memory = MemoryOf(open.landing);
    if (options_.on_write) options_.on_write(header, memory);
    const bool show = open.hold.show && open.status.ok() && !open.peer_down;
    // Bytes that did not arrive whole may be anything.
    uint64_t at = 0;
    for (absl::Span<std::byte> span : memory) {
      CHECK_LE(at + span.size(), open.bytes);
      const ByteSpan bytes = open.aside.subspan(at, span.size());
      if (show) {
        handler_->CopyLanding(open.peer, users, bytes, span, Stores::kCached);
      } else {
        std::memcpy(span.data(), bytes.data(), span.size());
      }
      at += span.size();
    }
    CHECK_EQ(at, open.bytes);
    num_after_peer_down_ += open.peer_down ? 1 : 0;
    free_places_.push_back(
        static_cast<uint64_t>(open.aside.data() - aside_.data()));
  }
  if (open.status.ok() && open.peer_down) {
    open.status = absl::UnavailableError("the peer is down");
  }
  handler_->OnLanded(open.peer, users, open.status);
}

LateWriteTransport::Spans LateWriteTransport::MemoryOf(
    const Landing& landing) const {
  Spans spans;
  for (const Extent& extent : landing.extents) {
    spans.push_back(
        regions_.at(extent.region).subspan(extent.offset, extent.length));
  }
  return spans;
}

}  // namespace baton::kv_transfer
