#include "tests/support/fake_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"

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
};

std::unique_ptr<Transport> FakeNetwork::CreateTransport(bool listen) {
  absl::MutexLock lock(&mu_);
  auto transport = std::make_unique<FakeTransport>(
      this, listen ? absl::StrCat("fake:", next_port_++) : "");
  transports_.push_back(transport.get());
  return transport;
}

bool FakeNetwork::Step() {
  std::optional<Event> event = TakeEvent();
  if (!event.has_value()) return false;
  switch (event->kind) {
    case Event::Kind::kConnect:
      Connected(event->link);
      break;
    case Event::Kind::kClose:
      TakeDown(event->link, event->closer);
      break;
    case Event::Kind::kArrive:
      Arrive(event->link, std::move(event->flight));
      break;
    case Event::Kind::kLand:
      Land(event->link, *event->flight);
      break;
    case Event::Kind::kWake:
      if (event->closer->handler_ != nullptr) event->closer->handler_->OnTick();
      break;
  }
  return true;
}

void FakeNetwork::Tick() {
  std::vector<FakeTransport*> transports;
  {
    absl::MutexLock lock(&mu_);
    transports = transports_;
  }
  for (FakeTransport* transport : transports) {
    if (transport->handler_ != nullptr) transport->handler_->OnTick();
  }
}

void FakeNetwork::RunUntilIdle() {
  while (Step()) {
  }
}

void FakeNetwork::Release() {
  absl::MutexLock lock(&mu_);
  for (Event& event : events_) {
    if (event.flight != nullptr && event.flight->fate == Fate::kHold) {
      event.flight->fate = Fate::kDeliver;
    }
  }
}

void FakeNetwork::Kill(Transport* transport) {
  auto* fake = static_cast<FakeTransport*>(transport);
  fake->handler_ = nullptr;
  Stop(fake);
}

absl::StatusOr<PeerId> FakeNetwork::Connect(FakeTransport* from,
                                            const std::string& address) {
  if (!absl::StartsWith(address, "fake:")) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", address, "' is not fake:port"));
  }
  absl::MutexLock lock(&mu_);
  CHECK(from->handler_ != nullptr || from->stopped_) << "Connect before Start";
  auto link = std::make_unique<Link>();
  link->address = address;
  link->ends[0].transport = from;
  link->ends[0].peer = PeerId{next_peer_++};
  for (FakeTransport* other : transports_) {
    if (other->properties_.address != address) continue;
    link->ends[1].transport = other;
    link->ends[1].peer = PeerId{next_peer_++};
  }
  const PeerId peer = link->ends[0].peer;
  events_.push_back({.kind = Event::Kind::kConnect, .link = link.get()});
  links_.push_back(std::move(link));
  return peer;
}

absl::Status FakeNetwork::Send(FakeTransport* from, PeerId peer,
                               ByteSpan header,
                               absl::Span<const Extent> payload,
                               uint64_t cookie) {
  if (header.empty() || header.size() > kMaxHeaderBytes) {
    return absl::InvalidArgumentError("header size");
  }
  if (payload.size() > kMaxPayloadExtents) {
    return absl::InvalidArgumentError("payload extents");
  }
  BATON_RETURN_IF_ERROR(from->regions_.Resolve(payload).status());
  auto flight = std::make_shared<Flight>();
  flight->header.assign(reinterpret_cast<const char*>(header.data()),
                        header.size());
  flight->source.assign(payload.begin(), payload.end());
  flight->cookie = cookie;
  if (judge) flight->fate = judge(header, !payload.empty());

  absl::MutexLock lock(&mu_);
  int end = 0;
  Link* link = FindLink(from, peer, &end);
  if (from->stopped_ || link == nullptr) {
    return absl::UnavailableError("the peer is down");
  }
  if (!link->ends[end].up) {
    return absl::FailedPreconditionError("the peer is not up yet");
  }
  if (link->ends[end].sends_outstanding >= kMaxSendsOutstanding) {
    return absl::ResourceExhaustedError("max_sends_outstanding");
  }
  ++link->ends[end].sends_outstanding;
  flight->from = end;
  if (flight->fate == Fate::kDuplicate) {
    auto copy = std::make_shared<Flight>(*flight);
    copy->is_copy = true;
    events_.push_back(
        {.kind = Event::Kind::kArrive, .link = link, .flight = copy});
  }
  if (flight->fate == Fate::kCorruptHeader) {
    const size_t at = random_() % flight->header.size();
    flight->header[at] ^= static_cast<char>(1 + random_() % 255);
  }
  events_.push_back(
      {.kind = Event::Kind::kArrive, .link = link, .flight = flight});
  return absl::OkStatus();
}

void FakeNetwork::Close(FakeTransport* from, PeerId peer) {
  absl::MutexLock lock(&mu_);
  int end = 0;
  Link* link = FindLink(from, peer, &end);
  if (link == nullptr) return;
  events_.push_front(
      {.kind = Event::Kind::kClose, .link = link, .closer = from});
}

void FakeNetwork::Wake(FakeTransport* transport) {
  absl::MutexLock lock(&mu_);
  for (const Event& event : events_) {
    if (event.kind == Event::Kind::kWake && event.closer == transport) return;
  }
  events_.push_back({.kind = Event::Kind::kWake, .closer = transport});
}

void FakeNetwork::Stop(FakeTransport* transport) {
  std::vector<Link*> links;
  {
    absl::MutexLock lock(&mu_);
    if (transport->stopped_) return;
    transport->stopped_ = true;
    for (const auto& link : links_) {
      if (link->ends[0].transport == transport ||
          link->ends[1].transport == transport) {
        links.push_back(link.get());
      }
    }
  }
  for (Link* link : links) TakeDown(link, transport);
  absl::MutexLock lock(&mu_);
  transport->handler_ = nullptr;
  std::erase(transports_, transport);
  std::erase_if(events_, [&](const Event& event) {
    return event.kind == Event::Kind::kWake && event.closer == transport;
  });
}

std::optional<FakeNetwork::Event> FakeNetwork::TakeEvent() {
  absl::MutexLock lock(&mu_);
  std::vector<size_t> possible;
  for (size_t i = 0; i < events_.size(); ++i) {
    if (IsHeld(events_[i])) continue;
    possible.push_back(i);
    if (!reorder) break;
  }
  if (possible.empty()) return std::nullopt;
  const size_t index = possible[random_() % possible.size()];
  Event event = std::move(events_[index]);
  events_.erase(events_.begin() + index);
  return event;
}

bool FakeNetwork::IsHeld(const Event& event) const {
  if (event.kind == Event::Kind::kLand) return hold_landings;
  return event.flight != nullptr && event.flight->fate == Fate::kHold;
}

void FakeNetwork::Connected(Link* link) {
  FakeTransport* server = link->ends[1].transport;
  if (server == nullptr || server->handler_ == nullptr) {
    TakeDown(link, /*closer=*/nullptr);
    return;
  }
  {
    absl::MutexLock lock(&mu_);
    link->ends[0].up = link->ends[1].up = true;
  }
  server->handler_->OnPeerUp(link->ends[1].peer, "fake-client");
  link->ends[0].transport->handler_->OnPeerUp(link->ends[0].peer,
                                              link->address);
}

void FakeNetwork::Arrive(Link* link, std::shared_ptr<Flight> flight) {
  const End& to = link->ends[1 - flight->from];
  TransportHandler* handler = to.transport->handler_;
  const ByteSpan header(
      reinterpret_cast<const std::byte*>(flight->header.data()),
      flight->header.size());
  if (flight->fate != Fate::kDrop) {
    if (flight->source.empty()) {
      handler->OnMessage(to.peer, header);
    } else {
      uint64_t bytes = 0;
      for (const Extent& extent : flight->source) bytes += extent.length;
      flight->landing = handler->OnPayload(to.peer, header, bytes);
    }
  }
  if (!flight->landing.has_value()) {
    Complete(link, *flight, absl::OkStatus());
    return;
  }
  absl::MutexLock lock(&mu_);
  events_.push_back(
      {.kind = Event::Kind::kLand, .link = link, .flight = std::move(flight)});
}

void FakeNetwork::Land(Link* link, Flight& flight) {
  const End& from = link->ends[flight.from];
  const End& to = link->ends[1 - flight.from];
  auto source = from.transport->regions_.Resolve(flight.source);
  auto target = to.transport->regions_.Resolve(flight.landing->extents);
  CHECK(source.ok()) << source.status();
  CHECK(target.ok()) << target.status();
  std::string bytes;
  for (absl::Span<std::byte> span : *source) {
    bytes.append(reinterpret_cast<const char*>(span.data()), span.size());
  }
  if (flight.fate == Fate::kCorruptPayload) {
    absl::MutexLock lock(&mu_);
    bytes[random_() % bytes.size()] ^= 1 << (random_() % 8);
  }
  size_t at = 0;
  for (absl::Span<std::byte> span : *target) {
    CHECK_LE(at + span.size(), bytes.size()) << "landing larger than payload";
    std::memcpy(span.data(), bytes.data() + at, span.size());
    at += span.size();
  }
  CHECK_EQ(at, bytes.size()) << "landing smaller than payload";
  to.transport->handler_->OnLanded(to.peer, flight.landing->cookie,
                                   absl::OkStatus());
  Complete(link, flight, absl::OkStatus());
}

void FakeNetwork::Complete(Link* link, const Flight& flight,
                           const absl::Status& status) {
  if (flight.is_copy) return;
  End& from = link->ends[flight.from];
  {
    absl::MutexLock lock(&mu_);
    --from.sends_outstanding;
  }
  if (from.transport->handler_ == nullptr) return;
  from.transport->handler_->OnSent(from.peer, flight.cookie, status);
}

void FakeNetwork::TakeDown(Link* link, FakeTransport* closer) {
  std::unique_ptr<Link> owned;
  std::vector<std::shared_ptr<Flight>> flights;
  {
    absl::MutexLock lock(&mu_);
    auto it = std::find_if(links_.begin(), links_.end(),
                           [&](const auto& l) { return l.get() == link; });
    CHECK(it != links_.end());
    owned = std::move(*it);
    links_.erase(it);
    for (Event& event : events_) {
      if (event.link == link && event.flight != nullptr) {
        flights.push_back(event.flight);
      }
    }
    std::erase_if(events_, [&](const Event& e) { return e.link == link; });
  }
  for (int i = 0; i < 2; ++i) {
    const End& end = link->ends[i];
    if (end.transport == nullptr || end.transport->handler_ == nullptr)
      continue;
    if (i == 1 && !end.up) continue;  // never heard of it
    end.transport->handler_->OnPeerDown(
        end.peer, end.transport == closer
                      ? absl::CancelledError("closed by us")
                      : absl::UnavailableError("connection lost"));
  }
  const absl::Status lost = absl::UnavailableError("connection lost");
  for (const std::shared_ptr<Flight>& flight : flights) {
    const End& to = link->ends[1 - flight->from];
    if (flight->landing.has_value() && to.transport->handler_ != nullptr) {
      // Until it says so, a transport may write to a landing.
      auto target = to.transport->regions_.Resolve(flight->landing->extents);
      CHECK(target.ok()) << target.status();
      for (absl::Span<std::byte> span : *target) {
        std::memset(span.data(), 0xEE, span.size() / 2);
      }
      to.transport->handler_->OnLanded(to.peer, flight->landing->cookie, lost);
    }
    Complete(link, *flight, lost);
  }
}

FakeNetwork::Link* FakeNetwork::FindLink(const FakeTransport* transport,
                                         PeerId peer, int* end) {
  for (const auto& link : links_) {
    for (int i = 0; i < 2; ++i) {
      if (link->ends[i].transport == transport && link->ends[i].peer == peer) {
        *end = i;
        return link.get();
      }
    }
  }
  return nullptr;
}

}  // namespace baton::kv_transfer
