// A transport without a network: a fuzz target says what happens on it, within
// what transport.h promises to its user. Checks what its user asks for: sends
// and landings lie in registered memory and have the length that they say.
//
// One thread; the handler is called only by what is said to.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kv_transfer/transport.h"

namespace baton::fuzz {

class ScriptedTransport final : public kv_transfer::Transport {
 public:
  static constexpr uint32_t kMaxPeers = 6;
  static constexpr uint32_t kMaxSends = 64;

  struct Sending {
    kv_transfer::PeerId peer{};
    std::string header;
    std::vector<kv_transfer::Extent> payload;
    uint64_t cookie = 0;
  };
  struct OpenLanding {
    kv_transfer::PeerId peer{};
    kv_transfer::Landing landing;
    uint64_t bytes = 0;
  };

  ScriptedTransport();
  ~ScriptedTransport() override { Stop(); }

  // What happens. Peers are numbered as they came, from 0; what names none that
  // is there is nothing.
  //
  // Someone connects to us.
  void PeerArrives();
  // A connection that we asked for stands.
  void PeerUp(uint32_t number);
  // The connection ends, with all that is outstanding on it.
  void PeerDown(uint32_t number);
  void Message(uint32_t number, absl::string_view header);
  void Payload(uint32_t number, absl::string_view header, uint64_t bytes);
  // The oldest but `index` of what is under way completes. Bytes that land are
  // `fill`; `says_so`: by CopyLanding, in two pieces for each extent.
  void CompleteSend(uint32_t index, bool ok);
  void CompleteLanding(uint32_t index, bool ok, std::byte fill, bool says_so);
  void Tick();
  // Every peer that was asked to be closed goes down, and all sends complete.
  void Settle();

  const std::vector<Sending>& sends() const { return sends_; }
  const std::vector<OpenLanding>& landings() const { return landings_; }
  // What was sent last, to the end.
  const std::string& last_header() const { return last_header_; }
  uint32_t num_peers() const { return static_cast<uint32_t>(peers_.size()); }

  // kv_transfer::Transport
  const kv_transfer::TransportProperties& properties() const override {
    return properties_;
  }
  absl::StatusOr<kv_transfer::RegionId> RegisterRegion(
      absl::Span<std::byte> memory, int descriptor) override;
  void Start(kv_transfer::TransportHandler* handler) override;
  void Stop() override;
  absl::StatusOr<kv_transfer::PeerId> Connect(
      const std::string& address) override;
  absl::Status Send(kv_transfer::PeerId peer, kv_transfer::ByteSpan header,
                    absl::Span<const kv_transfer::Extent> payload,
                    uint64_t cookie) override;
  void ClosePeer(kv_transfer::PeerId peer) override;
  void Wake() override {}

 private:
  enum class State { kConnecting, kUp, kDown };
  struct Peer {
    State state = State::kConnecting;
    bool closing = false;
    std::string address;
  };

  Peer* Find(uint32_t number);
  static kv_transfer::PeerId IdOf(uint32_t number) {
    return kv_transfer::PeerId{number + 1};
  }
  void CheckExtents(absl::Span<const kv_transfer::Extent> extents,
                    uint64_t bytes) const;

  kv_transfer::TransportProperties properties_;
  kv_transfer::TransportHandler* handler_ = nullptr;
  std::map<kv_transfer::RegionId, absl::Span<std::byte>> regions_;
  std::vector<Peer> peers_;
  std::vector<Sending> sends_;
  std::vector<OpenLanding> landings_;
  std::string last_header_;
};

}  // namespace baton::fuzz
