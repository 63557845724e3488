// A transport that writes as late as it may. What arrives through the transport
// inside goes to memory aside; the bytes reach the landing's own memory only
// right before OnLanded, which comes later than it could: after the transfer
// was aborted, after its deadline, after its peer was closed. Whoever takes a
// landing's memory back before OnLanded will have it overwritten.
//
// For tests of who stands on a Transport, over any other. Deterministic as the
// one inside: it waits by counting OnTick.
//
// Threads: as Transport. judge and on_write are called where the handler is.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

class LateWriteTransport final : public Transport {
 public:
  // How long the bytes of one payload are held back once they have arrived.
  struct Hold {
    int ticks = 0;
    // First until its peer is down, however long that takes.
    bool until_peer_down = false;
    // Whether it is the handler that writes them then (CopyLanding).
    bool show = false;
  };
  using Spans = std::vector<absl::Span<std::byte>>;

  struct Options {
    // Most payloads held at once, and most bytes of each; what is more is not
    // held.
    uint32_t max_held = 64;
    uint64_t max_held_bytes = 64 << 10;
    // Decides about each payload that was accepted, by the header that
    // announced it. Null: none is held.
    std::function<Hold(ByteSpan header)> judge;
    // Right before bytes that were held are written to `memory`.
    std::function<void(ByteSpan header, const Spans& memory)> on_write;
  };
  // Totals since the start.
  struct Stats {
    uint64_t held = 0;
    uint64_t written_after_peer_down = 0;
    uint64_t not_held = 0;  // for want of room
  };

  LateWriteTransport(std::unique_ptr<Transport> inside, Options options);
  ~LateWriteTransport() override;

  const TransportProperties& properties() const override {
    return inside_->properties();
  }
  const TransportProperties& PeerProperties(PeerId peer) const override {
    return inside_->PeerProperties(peer);
  }
  absl::StatusOr<RegionId> RegisterRegion(absl::Span<std::byte> memory,
                                          int descriptor) override;
  void Start(TransportHandler* handler) override;
  void Stop() override;
  absl::StatusOr<PeerId> Connect(const std::string& address) override {
    return inside_->Connect(address);
  }
  absl::Status Send(PeerId peer, ByteSpan header,
                    absl::Span<const Extent> payload,
                    uint64_t cookie) override {
    return inside_->Send(peer, header, payload, cookie);
  }
  void ClosePeer(PeerId peer) override { inside_->ClosePeer(peer); }
  void Wake() override { inside_->Wake(); }

  // Any thread.
  Stats stats() const;
  // The landings whose memory it may still write: to be read where the handler
  // is called, or after Stop().
  size_t num_open() const { return open_.size(); }

 private:
  // What the transport inside talks to.
  class Between;
  struct Open {
    PeerId peer{};
    std::string header;
    Landing landing;  // the handler's
    uint64_t bytes = 0;
    // Where they are held; empty: they went straight to the landing.
    absl::Span<std::byte> aside;
    Hold hold;
    bool arrived = false;
    absl::Status status;  // how
    bool peer_down = false;
  };

  std::optional<Landing> Accept(PeerId peer, ByteSpan header, uint64_t bytes);
  void Arrived(uint64_t cookie, const absl::Status& status);
  void PeerDown(PeerId peer);
  void Tick();
  void Finish(uint64_t cookie);
  Spans MemoryOf(const Landing& landing) const;

  const std::unique_ptr<Transport> inside_;
  const Options options_;
  std::unique_ptr<Between> between_;
  // Where what is held lies, and which places are free.
  std::vector<std::byte> aside_;
  RegionId aside_region_{};
  std::vector<uint64_t> free_places_;  // offsets
  std::map<RegionId, absl::Span<std::byte>> regions_;
  TransportHandler* handler_ = nullptr;
  bool stopped_ = false;

  // The handler's side from here on. By the cookie that the transport inside
  // is given; ordered, so that a seed is one run.
  std::map<uint64_t, Open> open_;
  uint64_t next_cookie_ = 1;

  std::atomic<uint64_t> num_held_{0};
  std::atomic<uint64_t> num_after_peer_down_{0};
  std::atomic<uint64_t> num_not_held_{0};
};

}  // namespace baton::kv_transfer
