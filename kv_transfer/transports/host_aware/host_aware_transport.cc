#include "kv_transfer/transports/host_aware/host_aware_transport.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton::kv_transfer {
namespace {

enum Side { kFirst = 0, kSecond = 1 };

// Whether the first moves shared memory.
enum class First { kSharedMemory, kNetwork };

TransportProperties Combine(const TransportProperties& first,
                            const TransportProperties& second) {
  TransportProperties out;
  out.name = absl::StrCat(first.name, "+", second.name);
  out.address = second.address.empty() ? first.address : second.address;
  out.detects_peer_death =
      first.detects_peer_death && second.detects_peer_death;
  out.max_header_bytes =
      std::min(first.max_header_bytes, second.max_header_bytes);
  out.max_payload_bytes =
      std::min(first.max_payload_bytes, second.max_payload_bytes);
  out.good_payload_bytes =
      std::min(first.good_payload_bytes, second.good_payload_bytes);
  out.max_payload_extents =
      std::min(first.max_payload_extents, second.max_payload_extents);
  out.max_sends_in_flight =
      std::min(first.max_sends_in_flight, second.max_sends_in_flight);
  out.max_sends_outstanding =
      std::min(first.max_sends_outstanding, second.max_sends_outstanding);
  return out;
}

// Lock order: calls_mu_, then whatever the handler takes, then mu_, then the
// locks of the two transports.
class TransportPair final : public Transport {
 public:
  TransportPair(std::unique_ptr<Transport> first,
                std::unique_ptr<Transport> second, First kind, Silence silence)
      : by_memory_(kind == First::kSharedMemory),
        silence_(silence),
        sides_{std::move(first), std::move(second)},
        ears_{{this, kFirst}, {this, kSecond}},
        properties_(Combine(sides_[kFirst]->properties(),
                            sides_[kSecond]->properties())) {}
  ~TransportPair() override { Stop(); }

  const TransportProperties& properties() const override { return properties_; }
  const TransportProperties& PeerProperties(PeerId peer) const override;
  absl::StatusOr<RegionId> RegisterRegion(absl::Span<std::byte> memory,
                                          int descriptor) override;
  void Start(TransportHandler* handler) override;
  void Stop() override;
  absl::StatusOr<PeerId> Connect(const std::string& address) override;
  absl::Status Send(PeerId peer, ByteSpan header,
                    absl::Span<const Extent> payload, uint64_t cookie) override;
  void ClosePeer(PeerId peer) override;
  void Wake() override;
  bool AllTicked() override ABSL_NO_THREAD_SAFETY_ANALYSIS;

 private:
  // The handler of one of the two.
  class Ear final : public TransportHandler {
   public:
    Ear(TransportPair* owner, Side side) : owner_(owner), side_(side) {}
    void OnPeerUp(PeerId peer, const std::string& address) override;
    void OnPeerDown(PeerId peer, const absl::Status& why) override;
    void OnMessage(PeerId peer, ByteSpan header) override;
    std::optional<Landing> OnPayload(PeerId peer, ByteSpan header,
                                     uint64_t payload_bytes) override;
    void CopyLanding(PeerId peer, uint64_t cookie, ByteSpan from,
                     absl::Span<std::byte> to, Stores stores) override;
    void OnLanded(PeerId peer, uint64_t cookie,
                  const absl::Status& status) override;
    void OnSent(PeerId peer, uint64_t cookie,
                const absl::Status& status) override;
    void OnTick() override;

   private:
    TransportPair* const owner_;
    const Side side_;
    // Whose payload was copied last, by both names: pieces come many in a row.
    // Held: calls_mu_.
    std::optional<std::pair<PeerId, PeerId>> landing_;
  };

  // A peer as our user knows it.
  struct Peer {
    Side side = kFirst;
    PeerId inner{};
    // As given to Connect; empty for a peer that connected to us.
    std::string address;
    // Why it is not connected by the first; empty when nobody tried.
    std::string why_not_first;
    bool up = false;
    bool down = false;
    bool close_asked = false;
    // Sends and landings that have not completed.
    uint64_t outstanding = 0;
  };

  // Our name for `inner` of `side`, which is new or known.
  PeerId Outer(Side side, PeerId inner) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  PeerId Add(Side side, PeerId inner) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the peer goes on by the second, now that the first failed.
  bool FallBack(PeerId outer, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  PeerId Translate(Side side, PeerId inner) ABSL_LOCKS_EXCLUDED(mu_);
  // One send or landing less; forgets a peer that is down and quiet.
  void Complete(PeerId outer) ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveIfQuiet(PeerId outer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const bool by_memory_;
  const Silence silence_;
  std::unique_ptr<Transport> sides_[2];
  std::atomic<int> num_up_[2] = {0, 0};
  Ear ears_[2];
  const TransportProperties properties_;

  // Held during every call to the handler.
  absl::Mutex calls_mu_;
  bool ticked_[2] ABSL_GUARDED_BY(calls_mu_) = {false, false};
  TransportHandler* handler_ = nullptr;  // constant after Start

  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Whether peers can read all of our memory.
  bool all_shared_ ABSL_GUARDED_BY(mu_) = true;
  uint64_t next_peer_ ABSL_GUARDED_BY(mu_) = 1;
  absl::flat_hash_map<PeerId, Peer> peers_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<PeerId, PeerId> outer_[2] ABSL_GUARDED_BY(mu_);
};

const TransportProperties& TransportPair::PeerProperties(PeerId peer) const {
  absl::MutexLock lock(&mu_);
  auto it = peers_.find(peer);
  return it == peers_.end()
             ? properties_
             : sides_[it->second.side]->PeerProperties(it->second.inner);
}

absl::StatusOr<RegionId> TransportPair::RegisterRegion(
    absl::Span<std::byte> memory, int descriptor) {
  absl::MutexLock lock(&mu_);
  BATON_ASSIGN_OR_RETURN(const RegionId id,
                         sides_[kFirst]->RegisterRegion(memory, descriptor));
  BATON_ASSIGN_OR_RETURN(const RegionId other,
                         sides_[kSecond]->RegisterRegion(memory, descriptor));
  CHECK(id == other) << "two transports count regions differently";
  all_shared_ = all_shared_ && descriptor != kNoDescriptor;
  return id;
}

void TransportPair::Start(TransportHandler* handler) {
  handler_ = handler;
  sides_[kFirst]->Start(&ears_[kFirst]);
  sides_[kSecond]->Start(&ears_[kSecond]);
}

void TransportPair::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  sides_[kFirst]->Stop();
  sides_[kSecond]->Stop();
}

absl::StatusOr<PeerId> TransportPair::Connect(const std::string& address) {
  absl::MutexLock lock(&mu_);
  if (stopping_) return absl::UnavailableError("the transport is stopped");
  std::string why_not = "KV memory here is not shared";
  if (all_shared_ || !by_memory_) {
    // The lock is held, so that its news find the peer.
    absl::StatusOr<PeerId> inner = sides_[kFirst]->Connect(address);
    if (inner.ok()) {
      const PeerId outer = Add(kFirst, *inner);
      peers_[outer].address = address;
      return outer;
    }
    if (absl::IsInvalidArgument(inner.status())) return inner.status();
    why_not = std::string(inner.status().message());
  }
  BATON_ASSIGN_OR_RETURN(const PeerId inner, sides_[kSecond]->Connect(address));
  const PeerId outer = Add(kSecond, inner);
  peers_[outer].address = address;
  peers_[outer].why_not_first = why_not;
  return outer;
}

absl::Status TransportPair::Send(PeerId peer, ByteSpan header,
                                 absl::Span<const Extent> payload,
                                 uint64_t cookie) {
  Side side;
  PeerId inner;
  {
    absl::MutexLock lock(&mu_);
    auto it = peers_.find(peer);
    if (it == peers_.end() || it->second.down) {
      return absl::UnavailableError("the peer is down");
    }
    // Also while it changes sides.
    if (!it->second.up) {
      return absl::FailedPreconditionError("the peer is not up yet");
    }
    side = it->second.side;
    inner = it->second.inner;
    // Before the send, which may complete at once.
    ++it->second.outstanding;
  }
  const absl::Status status =
      sides_[side]->Send(inner, header, payload, cookie);
  if (!status.ok()) Complete(peer);
  return status;
}

void TransportPair::ClosePeer(PeerId peer) {
  absl::MutexLock lock(&mu_);
  auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  it->second.close_asked = true;
  sides_[it->second.side]->ClosePeer(it->second.inner);
}

void TransportPair::Wake() {
  // Whoever has peers, so that what is sent to them is prepared on its thread.
  const bool second = num_up_[kSecond] > 0;
  if (num_up_[kFirst] > 0 || !second) sides_[kFirst]->Wake();
  if (second) sides_[kSecond]->Wake();
}

bool TransportPair::AllTicked() {
  calls_mu_.AssertHeld();
  if (!ticked_[kFirst] || !ticked_[kSecond]) return false;
  ticked_[kFirst] = ticked_[kSecond] = false;
  return true;
}

PeerId TransportPair::Add(Side side, PeerId inner) {
  const PeerId outer{next_peer_++};
  Peer& peer = peers_[outer];
  peer.side = side;
  peer.inner = inner;
  outer_[side][inner] = outer;
  return outer;
}

PeerId TransportPair::Outer(Side side, PeerId inner) {
  auto it = outer_[side].find(inner);
  return it == outer_[side].end() ? Add(side, inner) : it->second;
}

PeerId TransportPair::Translate(Side side, PeerId inner) {
  absl::MutexLock lock(&mu_);
  return Outer(side, inner);
}

bool TransportPair::FallBack(PeerId outer, const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  Peer& peer = peers_.at(outer);
  if (peer.side != kFirst || peer.up || peer.address.empty() ||
      peer.close_asked || stopping_) {
    return false;
  }
  if (silence_ == Silence::kOfBoth && absl::IsDeadlineExceeded(why)) {
    return false;
  }
  // The peer speaks it, and says that it does not want us like this: the second
  // would hide that.
  if (silence_ == Silence::kOfBoth && absl::IsFailedPrecondition(why)) {
    return false;
  }
  absl::StatusOr<PeerId> inner = sides_[kSecond]->Connect(peer.address);
  if (!inner.ok()) return false;
  outer_[kFirst].erase(peer.inner);
  peer.side = kSecond;
  peer.inner = *inner;
  peer.why_not_first = std::string(why.message());
  outer_[kSecond][*inner] = outer;
  return true;
}

void TransportPair::Complete(PeerId outer) {
  absl::MutexLock lock(&mu_);
  Peer& peer = peers_.at(outer);
  CHECK_GT(peer.outstanding, 0u);
  --peer.outstanding;
  RemoveIfQuiet(outer);
}

void TransportPair::RemoveIfQuiet(PeerId outer) {
  auto it = peers_.find(outer);
  // A send that failed while the handler heard of the end was the last.
  if (it == peers_.end()) return;
  if (!it->second.down || it->second.outstanding > 0) return;
  outer_[it->second.side].erase(it->second.inner);
  peers_.erase(it);
}

void TransportPair::Ear::OnPeerUp(PeerId inner, const std::string& address) {
  absl::MutexLock calls(&owner_->calls_mu_);
  PeerId outer;
  std::string why_not_first;
  {
    absl::MutexLock lock(&owner_->mu_);
    outer = owner_->Outer(side_, inner);
    Peer& peer = owner_->peers_.at(outer);
    peer.up = true;
    ++owner_->num_up_[side_];
    why_not_first = peer.why_not_first;
  }
  if (!why_not_first.empty()) {
    const std::string line =
        absl::StrCat("kv_transfer: ", address, " is connected by ",
                     owner_->sides_[side_]->PeerProperties(inner).name,
                     ", not by ", owner_->sides_[kFirst]->properties().name,
                     ": ", why_not_first);
    // Most peers share no memory; but a network was meant to be the other one.
    LOG_IF(INFO, owner_->by_memory_) << line;
    LOG_IF(WARNING, !owner_->by_memory_) << line;
  }
  owner_->handler_->OnPeerUp(outer, address);
}

void TransportPair::Ear::OnPeerDown(PeerId inner, const absl::Status& why) {
  absl::MutexLock calls(&owner_->calls_mu_);
  const PeerId outer = owner_->Translate(side_, inner);
  if (owner_->FallBack(outer, why)) return;
  {
    absl::MutexLock lock(&owner_->mu_);
    Peer& peer = owner_->peers_.at(outer);
    peer.down = true;
    if (peer.up) --owner_->num_up_[side_];
  }
  owner_->handler_->OnPeerDown(outer, why);
  absl::MutexLock lock(&owner_->mu_);
  owner_->RemoveIfQuiet(outer);
}

void TransportPair::Ear::OnMessage(PeerId inner, ByteSpan header) {
  absl::MutexLock calls(&owner_->calls_mu_);
  owner_->handler_->OnMessage(owner_->Translate(side_, inner), header);
}

std::optional<Landing> TransportPair::Ear::OnPayload(PeerId inner,
                                                     ByteSpan header,
                                                     uint64_t payload_bytes) {
  absl::MutexLock calls(&owner_->calls_mu_);
  const PeerId outer = owner_->Translate(side_, inner);
  std::optional<Landing> landing =
      owner_->handler_->OnPayload(outer, header, payload_bytes);
  if (landing.has_value()) {
    absl::MutexLock lock(&owner_->mu_);
    ++owner_->peers_.at(outer).outstanding;
  }
  return landing;
}

void TransportPair::Ear::CopyLanding(PeerId inner, uint64_t cookie,
                                     ByteSpan from, absl::Span<std::byte> to,
                                     Stores stores) {
  absl::MutexLock calls(&owner_->calls_mu_);
  // Names are not used again, and do not change once a peer is up.
  if (!landing_.has_value() || landing_->first != inner) {
    landing_ = {inner, owner_->Translate(side_, inner)};
  }
  owner_->handler_->CopyLanding(landing_->second, cookie, from, to, stores);
}

void TransportPair::Ear::OnLanded(PeerId inner, uint64_t cookie,
                                  const absl::Status& status) {
  absl::MutexLock calls(&owner_->calls_mu_);
  const PeerId outer = owner_->Translate(side_, inner);
  owner_->handler_->OnLanded(outer, cookie, status);
  owner_->Complete(outer);
}

void TransportPair::Ear::OnSent(PeerId inner, uint64_t cookie,
                                const absl::Status& status) {
  absl::MutexLock calls(&owner_->calls_mu_);
  const PeerId outer = owner_->Translate(side_, inner);
  owner_->handler_->OnSent(outer, cookie, status);
  owner_->Complete(outer);
}

void TransportPair::Ear::OnTick() {
  absl::MutexLock calls(&owner_->calls_mu_);
  if (owner_->sides_[side_]->AllTicked()) owner_->ticked_[side_] = true;
  owner_->handler_->OnTick();
}

}  // namespace

std::unique_ptr<Transport> MakeHostAwareTransport(
    std::unique_ptr<Transport> local, std::unique_ptr<Transport> remote) {
  return std::make_unique<TransportPair>(std::move(local), std::move(remote),
                                         First::kSharedMemory,
                                         Silence::kOfTheFirst);
}

std::unique_ptr<Transport> MakeFallbackTransport(
    std::unique_ptr<Transport> first, std::unique_ptr<Transport> second,
    Silence silence) {
  return std::make_unique<TransportPair>(std::move(first), std::move(second),
                                         First::kNetwork, silence);
}

}  // namespace baton::kv_transfer
