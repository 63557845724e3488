#include "tests/support/fake_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "tests/support/fake_transport_end.h"

namespace baton::kv_transfer {
namespace {

std::string BytesOf(const std::vector<absl::Span<std::byte>>& spans) {
  std::string bytes;
  for (absl::Span<std::byte> span : spans) {
    bytes.append(reinterpret_cast<const char*>(span.data()), span.size());
  }
  return bytes;
}

}  // namespace

std::unique_ptr<Transport> FakeNetwork::CreateTransport(
    bool listen, const std::string& address) {
  absl::MutexLock lock(&mu_);
  std::string own = address;
  if (listen && own.empty()) own = absl::StrCat("fake:", next_port_++);
  auto transport = std::make_unique<FakeTransport>(this, listen ? own : "");
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
    case Event::Kind::kNotice: {
      Notice(event->link, event->end, event->by_itself);
      absl::MutexLock lock(&mu_);
      DropIfOver(event->link);
      break;
    }
  }
  return true;
}

void FakeNetwork::Tick() {
  std::vector<FakeTransport*> transports;
  {
    absl::MutexLock lock(&mu_);
    transports = transports_;
  }
  for (FakeTransport* transport : transports) Tick(transport);
}

void FakeNetwork::Tick(Transport* transport) {
  auto* fake = static_cast<FakeTransport*>(transport);
  if (fake->handler_ != nullptr) fake->handler_->OnTick();
}

void FakeNetwork::RunUntilIdle() {
  while (Step()) {
  }
}

void FakeNetwork::Release() {
  absl::MutexLock lock(&mu_);
  for (Event& event : events_) {
    if (event.flight != nullptr && (event.flight->fate == Fate::kHold ||
                                    event.flight->fate == Fate::kHoldLanding)) {
      event.flight->fate = Fate::kDeliver;
    }
  }
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
  BATON_ASSIGN_OR_RETURN(const auto memory, from->regions_.Resolve(payload));
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
  flight->lost = link->broken;
  if (flight->fate == Fate::kDuplicate || flight->fate == Fate::kCopyLater) {
    auto copy = std::make_shared<Flight>(*flight);
    copy->is_copy = true;
    copy->is_late = flight->fate == Fate::kCopyLater;
    copy->payload = BytesOf(memory);
    Event arrival{.kind = Event::Kind::kArrive, .link = link, .flight = copy};
    if (copy->is_late) {
      copies_.push_back(std::move(arrival));
    } else {
      events_.push_back(std::move(arrival));
    }
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

std::optional<FakeNetwork::Event> FakeNetwork::TakeEvent() {
  absl::MutexLock lock(&mu_);
  std::vector<size_t> possible;
  for (size_t i = 0; i < events_.size(); ++i) {
    if (IsHeld(events_[i])) continue;
    possible.push_back(i);
    if (!reorder ||
        (events_[i].flight != nullptr && events_[i].flight->is_late &&
         events_[i].kind == Event::Kind::kArrive)) {
      possible = {i};
      break;
    }
  }
  if (possible.empty()) return std::nullopt;
  const size_t index = possible[random_() % possible.size()];
  Event event = std::move(events_[index]);
  events_.erase(events_.begin() + index);
  return event;
}

bool FakeNetwork::IsHeld(const Event& event) const {
  if (event.kind == Event::Kind::kLand &&
      (hold_landings || event.flight->fate == Fate::kHoldLanding)) {
    return true;
  }
  if (event.kind == Event::Kind::kArrive && event.flight->fate == Fate::kHold) {
    return true;
  }
  return IsHeldByItsLink(event);
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
    if (on_arrival) {
      on_arrival({.at = to.transport,
                  .header = header,
                  .has_payload = !flight->source.empty(),
                  .late_copy = flight->is_late,
                  .accepted = flight->landing.has_value()});
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
  auto target = to.transport->regions_.Resolve(flight.landing->extents);
  CHECK(target.ok()) << target.status();
  std::string bytes = flight.payload;
  if (!flight.is_copy) {
    auto source = from.transport->regions_.Resolve(flight.source);
    CHECK(source.ok()) << source.status();
    bytes = BytesOf(*source);
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
  flight.landed = true;
  to.transport->handler_->OnLanded(to.peer, flight.landing->cookie,
                                   absl::OkStatus());
  Complete(link, flight, absl::OkStatus());
}

void FakeNetwork::Complete(Link* link, Flight& flight,
                           const absl::Status& status) {
  if (flight.is_copy || flight.sent) return;
  flight.sent = true;
  End& from = link->ends[flight.from];
  {
    absl::MutexLock lock(&mu_);
    --from.sends_outstanding;
  }
  if (from.transport == nullptr || from.transport->handler_ == nullptr) return;
  from.transport->handler_->OnSent(from.peer, flight.cookie, status);
}

FakeNetwork::Link* FakeNetwork::FindLink(const FakeTransport* transport,
                                         PeerId peer, int* end) {
  for (const auto& link : links_) {
    for (int i = 0; i < 2; ++i) {
      if (link->ends[i].transport == transport && link->ends[i].peer == peer &&
          !link->ends[i].over) {
        *end = i;
        return link.get();
      }
    }
  }
  return nullptr;
}

}  // namespace baton::kv_transfer
