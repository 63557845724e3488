#include "kv_transfer/pairing.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "proto/fingerprint.h"

namespace baton::kv_transfer {
namespace {

// A peer's words, for our log: bounded and on one line.
std::string Shorten(const std::string& s, size_t max_bytes) {
  std::string out = s.size() <= max_bytes ? s : s.substr(0, max_bytes) + "...";
  for (char& c : out) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = '?';
  }
  return out;
}
constexpr size_t kMaxNameBytes = 128;
constexpr size_t kMaxReasonBytes = 1024;

}  // namespace

Pairing::Pairing(Transport* transport, const HandoffOptions* options,
                 v1::WorkerRole other_role)
    : transport_(transport),
      options_(*options),
      other_role_(other_role),
      self_(Incarnation{options->self.incarnation()}) {}

absl::Status Pairing::Pair(const std::string& address) {
  for (const auto& [id, entry] : peers_) {
    if (entry.asked_by_us && entry.address == address &&
        entry.state != State::kLeaving) {
      return absl::OkStatus();
    }
  }
  absl::StatusOr<PeerId> peer = transport_->Connect(address);
  if (!peer.ok()) return peer.status();
  Peer& entry = peers_[*peer];
  entry.address = address;
  entry.asked_by_us = true;
  // The transport gives up connecting by itself; ours is the longer wait.
  entry.greeting_deadline = absl::InfiniteFuture();
  return absl::OkStatus();
}

void Pairing::OnUp(PeerId peer, const std::string& address) {
  Peer& entry = peers_[peer];
  if (entry.state == State::kLeaving) return;
  entry.address = address;
  entry.state = State::kGreeting;
  entry.greeting_deadline = options_.clock->Now() + options_.hello_timeout;
  if (entry.asked_by_us) {
    SendRaw(peer,
            wire::Encode({.from = self_, .to = {}, .body = options_.self}));
  }
}

std::optional<Incarnation> Pairing::OnDown(PeerId peer,
                                           const absl::Status& why) {
  auto it = peers_.find(peer);
  if (it == peers_.end()) return std::nullopt;
  Peer entry = std::move(it->second);
  peers_.erase(it);
  const std::string reason = entry.leaving_reason.empty()
                                 ? std::string(why.message())
                                 : entry.leaving_reason;
  if (entry.was_ready) {
    LOG(WARNING) << "kv_transfer: lost peer '" << entry.worker_name << "' ("
                 << entry.address << "): " << reason;
    events_.push_back(PeerLost{peer, entry.incarnation, entry.worker_name,
                               entry.address, reason});
    return entry.incarnation;
  }
  if (entry.state == State::kLeaving) return std::nullopt;  // reported already
  LOG(WARNING) << "kv_transfer: not paired with " << entry.address << ": "
               << reason;
  // What connects to us and never says hello may be anything; it is no event.
  if (entry.asked_by_us) {
    events_.push_back(PeerRefused{entry.address, "", reason});
  }
  return std::nullopt;
}

bool Pairing::Authorize(PeerId peer, const wire::Message& message) {
  Peer* entry = Find(peer);
  if (entry == nullptr || entry->state == State::kLeaving) return false;
  if (entry->state != State::kReady) {
    Distrust(peer, "sent a message before it was paired");
    return false;
  }
  if (message.from != entry->incarnation || message.to != self_) {
    Distrust(peer, "sent a message of another incarnation");
    return false;
  }
  return true;
}

void Pairing::OnHello(PeerId peer, const wire::Message& message) {
  Peer* entry = Find(peer);
  if (entry == nullptr || entry->state == State::kLeaving) return;
  if (entry->state != State::kGreeting || entry->asked_by_us) {
    Distrust(peer, "said hello out of turn");
    return;
  }
  const auto& hello = std::get<v1::PeerHello>(message.body);
  entry->worker_name = Shorten(hello.worker_name(), kMaxNameBytes);
  const std::string unfit = Unfit(peer, *entry, hello, message.from);
  v1::PeerHelloReply reply;
  *reply.mutable_hello() = options_.self;
  reply.set_accepted(unfit.empty());
  reply.set_reason(Shorten(unfit, kMaxReasonBytes));
  if (unfit.empty()) {
    // A worker has one connection; whatever it had before is stale.
    const Incarnation life{hello.incarnation()};
    if (std::optional<PeerId> old = FindReady(life); old.has_value()) {
      Distrust(*old, "replaced by a new connection");
    }
    MakeReady(peer, *entry, hello);
  } else {
    Refuse(peer, *entry, unfit);
  }
  SendRaw(peer, wire::Encode({.from = self_,
                              .to = Incarnation{hello.incarnation()},
                              .body = std::move(reply)}));
}

void Pairing::OnHelloReply(PeerId peer, const wire::Message& message) {
  Peer* entry = Find(peer);
  if (entry == nullptr || entry->state == State::kLeaving) return;
  if (entry->state != State::kGreeting || !entry->asked_by_us ||
      message.to != self_) {
    Distrust(peer, "answered a hello out of turn");
    return;
  }
  const auto& reply = std::get<v1::PeerHelloReply>(message.body);
  entry->worker_name = Shorten(reply.hello().worker_name(), kMaxNameBytes);
  std::string unfit = Unfit(peer, *entry, reply.hello(), message.from);
  if (unfit.empty() && !reply.accepted()) {
    unfit = absl::StrCat("the peer says: ",
                         Shorten(reply.reason(), kMaxReasonBytes));
  }
  if (unfit.empty()) {
    MakeReady(peer, *entry, reply.hello());
    return;
  }
  Refuse(peer, *entry, unfit);
  Leave(peer, *entry, "does not fit");
}

void Pairing::Distrust(PeerId peer, const std::string& why) {
  Peer* entry = Find(peer);
  if (entry == nullptr || entry->state == State::kLeaving) return;
  LOG(WARNING) << "kv_transfer: closing peer '" << entry->worker_name << "' ("
               << entry->address << "): " << why;
  if (!entry->was_ready && entry->asked_by_us) {
    events_.push_back(PeerRefused{entry->address, entry->worker_name, why});
  }
  Leave(peer, *entry, why);
}

void Pairing::Tick(absl::Time now) {
  std::vector<PeerId> late;
  for (auto& [id, entry] : peers_) {
    if (now < entry.greeting_deadline) continue;
    late.push_back(id);
  }
  for (PeerId id : late) {
    Peer& entry = *Find(id);
    if (entry.state == State::kLeaving) {
      Leave(id, entry, entry.leaving_reason);
    } else {
      Distrust(id, "no hello in time");
    }
  }
}

void Pairing::Send(PeerId peer, wire::Body body) {
  if (FindReadyPeer(peer) == nullptr) return;
  SendRaw(peer, EncodeFor(peer, std::move(body)));
}

std::string Pairing::EncodeFor(PeerId peer, wire::Body body) const {
  return wire::Encode(
      {.from = self_, .to = IncarnationOf(peer), .body = std::move(body)});
}

std::optional<PeerId> Pairing::FindReady(Incarnation incarnation) const {
  for (const auto& [id, entry] : peers_) {
    if (entry.state == State::kReady && entry.incarnation == incarnation) {
      return id;
    }
  }
  return std::nullopt;
}

Incarnation Pairing::IncarnationOf(PeerId peer) const {
  const Peer* entry = FindReadyPeer(peer);
  CHECK(entry != nullptr);
  return entry->incarnation;
}

bool Pairing::TakesExactOnly(PeerId peer) const {
  const Peer* entry = FindReadyPeer(peer);
  CHECK(entry != nullptr);
  return entry->exact_kv;
}

const std::string& Pairing::NameOf(PeerId peer) const {
  const Peer* entry = FindReadyPeer(peer);
  CHECK(entry != nullptr);
  return entry->worker_name;
}

const std::shared_ptr<const PageMap>& Pairing::MapOf(PeerId peer) const {
  const Peer* entry = FindReadyPeer(peer);
  CHECK(entry != nullptr);
  return entry->pages;
}

uint32_t Pairing::num_ready() const {
  uint32_t n = 0;
  for (const auto& [id, entry] : peers_) n += entry.state == State::kReady;
  return n;
}

std::vector<Pairing::Event> Pairing::TakeEvents() {
  return std::exchange(events_, {});
}

Pairing::Peer* Pairing::Find(PeerId peer) {
  auto it = peers_.find(peer);
  return it == peers_.end() ? nullptr : &it->second;
}

const Pairing::Peer* Pairing::FindReadyPeer(PeerId peer) const {
  auto it = peers_.find(peer);
  if (it == peers_.end() || it->second.state != State::kReady) return nullptr;
  return &it->second;
}

std::string Pairing::Unfit(PeerId peer, Peer& entry, const v1::PeerHello& other,
                           Incarnation from) const {
  if (Incarnation{other.incarnation()} != from) {
    return "incarnation (its hello and its message header differ)";
  }
  if (other.role() != other_role_) {
    return absl::StrCat("role (", v1::WorkerRole_Name(other_role_),
                        " expected, ", v1::WorkerRole_Name(other.role()),
                        " there)");
  }
  std::string difference = proto::DescribeDifference(
      options_.self.fingerprint(), other.fingerprint());
  if (!difference.empty()) return difference;
  absl::StatusOr<PageMap> pages =
      PageMap::Create(options_.kv, ShapeOf(options_.self), ShapeOf(other));
  if (!pages.ok()) return std::string(pages.status().message());
  if (!pages->Fits(transport_->PeerProperties(peer))) {
    return absl::StrCat("a page of ", pages->page_bytes(),
                        " bytes is more than the transport sends at once");
  }
  entry.pages = std::make_shared<const PageMap>(*std::move(pages));
  return "";
}

void Pairing::Refuse(PeerId peer, Peer& entry, const std::string& reason) {
  LOG(WARNING) << "kv_transfer: refused to pair with '" << entry.worker_name
               << "' (" << entry.address
               << "): " << Shorten(reason, kMaxReasonBytes);
  events_.push_back(PeerRefused{entry.address, entry.worker_name, reason});
  // The reply must still get out: the one who asked closes. When it does not,
  // Tick does.
  entry.state = State::kLeaving;
  entry.leaving_reason = reason;
  entry.greeting_deadline = options_.clock->Now() + options_.hello_timeout;
}

void Pairing::MakeReady(PeerId peer, Peer& entry, const v1::PeerHello& hello) {
  entry.exact_kv = hello.exact_kv();
  entry.state = State::kReady;
  entry.was_ready = true;
  entry.greeting_deadline = absl::InfiniteFuture();
  entry.incarnation = Incarnation{hello.incarnation()};
  LOG(INFO) << "kv_transfer: paired with '" << entry.worker_name << "' ("
            << entry.address << ") over "
            << transport_->PeerProperties(peer).name;
  events_.push_back(
      PeerReady{peer, entry.incarnation, entry.worker_name, entry.address});
}

void Pairing::Leave(PeerId peer, Peer& entry, const std::string& why) {
  entry.state = State::kLeaving;
  entry.greeting_deadline = absl::InfiniteFuture();
  if (entry.leaving_reason.empty()) entry.leaving_reason = why;
  ++num_closed_by_force_;
  transport_->ClosePeer(peer);
}

void Pairing::SendRaw(PeerId peer, const std::string& bytes) {
  const absl::Status status =
      transport_->Send(peer, AsBytes(bytes), {}, kControlCookie);
  if (!status.ok()) {
    Distrust(peer, absl::StrCat("takes no message: ", status.message()));
  }
}

}  // namespace baton::kv_transfer
