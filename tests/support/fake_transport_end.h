// One process's end of a FakeNetwork. Only the files of FakeNetwork include it.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "common/log.h"
#include "tests/support/fake_transport.h"

namespace baton::kv_transfer {

class FakeTransport final : public Transport {
 public:
  FakeTransport(FakeNetwork* network, std::string address) : network_(network) {
    properties_.name = "fake";
    properties_.address = std::move(address);
    properties_.detects_peer_death = true;
    properties_.max_header_bytes = FakeNetwork::kMaxHeaderBytes;
    properties_.max_payload_bytes = FakeNetwork::kMaxPayloadBytes;
    properties_.good_payload_bytes = FakeNetwork::kMaxPayloadBytes;
    properties_.prefers_runs = network->prefers_runs;
    properties_.max_payload_extents = FakeNetwork::kMaxPayloadExtents;
    properties_.max_sends_in_flight = FakeNetwork::kMaxSendsInFlight;
    properties_.max_sends_outstanding = FakeNetwork::kMaxSendsOutstanding;
  }
  ~FakeTransport() override { Stop(); }

  const TransportProperties& properties() const override { return properties_; }
  absl::StatusOr<RegionId> RegisterRegion(absl::Span<std::byte> memory,
                                          int descriptor) override {
    return regions_.Add({memory, descriptor});
  }
  void Start(TransportHandler* handler) override {
    CHECK(handler_ == nullptr) << "a transport starts once";
    handler_ = handler;
  }
  void Stop() override { network_->Stop(this); }
  absl::StatusOr<PeerId> Connect(const std::string& address) override {
    return network_->Connect(this, address);
  }
  absl::Status Send(PeerId peer, ByteSpan header,
                    absl::Span<const Extent> payload,
                    uint64_t cookie) override {
    return network_->Send(this, peer, header, payload, cookie);
  }
  void ClosePeer(PeerId peer) override { network_->Close(this, peer); }
  void Wake() override { network_->Wake(this); }

 private:
  friend class FakeNetwork;

  FakeNetwork* const network_;
  TransportProperties properties_;
  RegionTable regions_;
  TransportHandler* handler_ = nullptr;
  bool stopped_ = false;
  bool stalled_ = false;
};

}  // namespace baton::kv_transfer
