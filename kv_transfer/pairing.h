// The peers of one hand-off and how far each one is: connected, compared,
// ready, or on its way out. Both sides of the hand-off own one.
//
// Life of a peer:
//   1. connecting: Pair() asked the transport for a connection (asking side).
//   2. greeting: the connection is up. The asking side has sent PeerHello and
//      waits for the reply; the other side waits for the hello.
//   3. ready: roles, fingerprints and pages fit; how pages correspond is known.
//   4. leaving: refused, distrusted or replaced; nothing it sends counts, and
//      the connection is being closed. Never back from here.
//   5. gone: the transport reported the peer down.
//
// Threads: none of its own; every call is made with the owner's lock held.
// Never calls back.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/v1/peer.pb.h"
#include "common/ids.h"
#include "kv_transfer/handoff.h"
#include "kv_transfer/page_map.h"
#include "kv_transfer/peer_events.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/wire.h"

namespace baton::kv_transfer {

// Cookie of sends without payload: nothing waits for them.
inline constexpr uint64_t kControlCookie = 0;
// Cookie of payloads that only measure the link.
inline constexpr uint64_t kProbeCookie = ~uint64_t{0};

class Pairing final {
 public:
  using Event = std::variant<PeerReady, PeerRefused, PeerLost>;

  // `options` must outlive this. `other_role`: what the peers must be.
  Pairing(Transport* transport, const HandoffOptions* options,
          v1::WorkerRole other_role);

  // Asks for a connection. No-op while there is one to this address, or one on
  // its way.
  absl::Status Pair(const std::string& address);

  // The transport's news. OnDown returns the life of the peer that was ready.
  void OnUp(PeerId peer, const std::string& address);
  std::optional<Incarnation> OnDown(PeerId peer, const absl::Status& why);

  // Whether `message` may be acted on: its peer is ready and both incarnations
  // are those of the pairing. A peer that breaks this is distrusted.
  bool Authorize(PeerId peer, const wire::Message& message);

  // A hello or a reply to one, in the body of `message`.
  void OnHello(PeerId peer, const wire::Message& message);
  void OnHelloReply(PeerId peer, const wire::Message& message);

  // Latches the peer as bad and closes it by force.
  void Distrust(PeerId peer, const std::string& why);

  // Closes peers that did not greet in time.
  void Tick(absl::Time now);

  // Sends a message without payload to a peer that is ready. A peer that does
  // not take it is distrusted.
  void Send(PeerId peer, wire::Body body);

  // The header of a message to a ready peer.
  std::string EncodeFor(PeerId peer, wire::Body body) const;

  bool IsReady(PeerId peer) const { return FindReadyPeer(peer) != nullptr; }
  std::optional<PeerId> FindReady(Incarnation incarnation) const;
  // REQUIRES: the peer is ready.
  Incarnation IncarnationOf(PeerId peer) const;
  const std::string& NameOf(PeerId peer) const;
  const std::shared_ptr<const PageMap>& MapOf(PeerId peer) const;
  // Whether it takes KV in no other form than the cache has.
  bool TakesExactOnly(PeerId peer) const;
  uint32_t num_ready() const;
  uint64_t num_closed_by_force() const { return num_closed_by_force_; }

  // What happened since the last call, in order.
  std::vector<Event> TakeEvents();

 private:
  enum class State { kConnecting, kGreeting, kReady, kLeaving };
  struct Peer {
    std::string address;
    bool asked_by_us = false;
    State state = State::kConnecting;
    absl::Time greeting_deadline;
    // From its hello.
    Incarnation incarnation{};
    std::string worker_name;
    bool exact_kv = false;
    std::shared_ptr<const PageMap> pages;  // once it fits
    // Whether PeerReady was reported, so that PeerLost must be.
    bool was_ready = false;
    std::string leaving_reason;
  };

  Peer* Find(PeerId peer);
  const Peer* FindReadyPeer(PeerId peer) const;
  // Why `other` cannot be paired with; empty when it can, and `entry` then has
  // how pages correspond.
  std::string Unfit(PeerId peer, Peer& entry, const v1::PeerHello& other,
                    Incarnation from) const;
  void Refuse(PeerId peer, Peer& entry, const std::string& reason);
  void MakeReady(PeerId peer, Peer& entry, const v1::PeerHello& hello);
  void Leave(PeerId peer, Peer& entry, const std::string& why);
  void SendRaw(PeerId peer, const std::string& bytes);

  Transport* const transport_;
  const HandoffOptions& options_;
  const v1::WorkerRole other_role_;
  const Incarnation self_;

  // Ordered, so that the same events give the same messages in the same order.
  std::map<PeerId, Peer> peers_;
  std::vector<Event> events_;
  uint64_t num_closed_by_force_ = 0;
};

}  // namespace baton::kv_transfer
