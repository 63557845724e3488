// FakeNetwork: how connections and processes end, stand still, and what is left
// of their messages.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/log.h"
#include "tests/support/fake_transport.h"
#include "tests/support/fake_transport_end.h"

namespace baton::kv_transfer {
namespace {

absl::Status WhyDown(bool by_itself) {
  return by_itself ? absl::CancelledError("closed by us")
                   : absl::UnavailableError("connection lost");
}

}  // namespace

void FakeNetwork::Kill(Transport* transport) {
  auto* fake = static_cast<FakeTransport*>(transport);
  fake->handler_ = nullptr;
  Stop(fake);
}

void FakeNetwork::Stop(FakeTransport* transport) {
  std::vector<std::pair<Link*, int>> links;
  {
    absl::MutexLock lock(&mu_);
    if (transport->stopped_) return;
    transport->stopped_ = true;
    for (const auto& link : links_) {
      for (int i = 0; i < 2; ++i) {
        if (link->ends[i].transport == transport)
          links.push_back({link.get(), i});
      }
    }
  }
  for (const auto& [link, end] : links) {
    if (!notice_apart) {
      TakeDown(link, transport);
      continue;
    }
    {
      absl::MutexLock lock(&mu_);
      Break(link, transport);
    }
    if (!link->ends[end].over) Notice(link, end, /*by_itself=*/true);
    absl::MutexLock lock(&mu_);
    Detach(link, end);
    DropIfOver(link);
  }
  absl::MutexLock lock(&mu_);
  transport->handler_ = nullptr;
  std::erase(transports_, transport);
  std::erase_if(events_, [&](const Event& event) {
    return event.closer == transport && (event.kind == Event::Kind::kWake ||
                                         event.kind == Event::Kind::kClose);
  });
}

void FakeNetwork::TakeDown(Link* link, FakeTransport* closer) {
  std::unique_ptr<Link> owned;
  std::vector<std::shared_ptr<Flight>> flights;
  {
    absl::MutexLock lock(&mu_);
    if (notice_apart) {
      Break(link, closer);
      DropIfOver(link);
      return;
    }
    for (Event& event : events_) {
      if (event.link == link && event.flight != nullptr) {
        flights.push_back(event.flight);
      }
    }
    owned = Extract(link);
  }
  for (int i = 0; i < 2; ++i) {
    const End& end = link->ends[i];
    if (end.transport == nullptr || end.transport->handler_ == nullptr)
      continue;
    if (i == 1 && !end.up) continue;  // never heard of it
    end.transport->handler_->OnPeerDown(end.peer,
                                        WhyDown(end.transport == closer));
  }
  for (const std::shared_ptr<Flight>& flight : flights) {
    FailLanding(link, *flight);
    Complete(link, *flight, WhyDown(/*by_itself=*/false));
  }
}

void FakeNetwork::FailLanding(Link* link, Flight& flight) {
  const End& to = link->ends[1 - flight.from];
  if (!flight.landing.has_value() || flight.landed) return;
  flight.landed = true;
  if (to.transport == nullptr || to.transport->handler_ == nullptr) return;
  // Until it says so, a transport may write to a landing.
  auto target = to.transport->regions_.Resolve(flight.landing->extents);
  CHECK(target.ok()) << target.status();
  for (absl::Span<std::byte> span : *target) {
    std::memset(span.data(), 0xEE, span.size() / 2);
  }
  to.transport->handler_->OnLanded(to.peer, flight.landing->cookie,
                                   WhyDown(/*by_itself=*/false));
}

std::unique_ptr<FakeNetwork::Link> FakeNetwork::Extract(Link* link) {
  auto it = std::find_if(links_.begin(), links_.end(),
                         [&](const auto& l) { return l.get() == link; });
  CHECK(it != links_.end());
  std::unique_ptr<Link> owned = std::move(*it);
  links_.erase(it);
  const auto of_link = [&](const Event& event) { return event.link == link; };
  std::erase_if(events_, of_link);
  std::erase_if(copies_, of_link);
  return owned;
}

void FakeNetwork::Break(Link* link, const FakeTransport* closer) {
  if (link->broken) return;
  link->broken = true;
  for (int i = 0; i < 2; ++i) {
    End& end = link->ends[i];
    if (end.over) continue;
    if (end.transport == nullptr || end.transport->handler_ == nullptr ||
        (i == 1 && !end.up)) {
      end.over = true;  // it will never hear of it
      continue;
    }
    events_.push_back({.kind = Event::Kind::kNotice,
                       .link = link,
                       .end = i,
                       .by_itself = end.transport == closer});
  }
}

void FakeNetwork::Notice(Link* link, int i, bool by_itself) {
  std::vector<std::shared_ptr<Flight>> landings;
  std::vector<std::shared_ptr<Flight>> sends;
  {
    absl::MutexLock lock(&mu_);
    link->ends[i].over = true;
    std::erase_if(events_, [&](const Event& event) {
      return event.kind == Event::Kind::kNotice && event.link == link &&
             event.end == i;
    });
    for (const Event& event : events_) {
      if (event.link != link || event.flight == nullptr) continue;
      (event.flight->from == i ? sends : landings).push_back(event.flight);
    }
  }
  const End& end = link->ends[i];
  if (end.transport->handler_ == nullptr) return;
  end.transport->handler_->OnPeerDown(end.peer, WhyDown(by_itself));
  for (const std::shared_ptr<Flight>& flight : landings) {
    FailLanding(link, *flight);
  }
  for (const std::shared_ptr<Flight>& flight : sends) {
    Complete(link, *flight, WhyDown(/*by_itself=*/false));
  }
}

void FakeNetwork::Detach(Link* link, int i) {
  End& end = link->ends[i];
  end.over = true;
  end.transport = nullptr;
  std::erase_if(events_, [&](const Event& event) {
    return event.kind == Event::Kind::kNotice && event.link == link &&
           event.end == i;
  });
}

void FakeNetwork::DropIfOver(Link* link) {
  if (link->ends[0].over && link->ends[1].over) Extract(link);
}

bool FakeNetwork::IsHeldByItsLink(const Event& event) const {
  if (event.kind == Event::Kind::kWake) return event.closer->stalled_;
  const Link& link = *event.link;
  const auto stalled = [&](int end) {
    const FakeTransport* transport = link.ends[end].transport;
    return transport != nullptr && transport->stalled_;
  };
  switch (event.kind) {
    case Event::Kind::kConnect:
    case Event::Kind::kLand:
      return link.broken || stalled(0) || stalled(1);
    case Event::Kind::kNotice:
      return stalled(event.end);
    case Event::Kind::kArrive: {
      const int to = 1 - event.flight->from;
      return event.flight->lost || link.ends[to].over || stalled(to) ||
             (!event.flight->source.empty() && stalled(event.flight->from));
    }
    case Event::Kind::kClose:
    case Event::Kind::kWake:
      return false;
  }
  LOG(FATAL) << "not an event of a link";
}

void FakeNetwork::ReleaseCopies() {
  absl::MutexLock lock(&mu_);
  events_.insert(events_.begin(), copies_.begin(), copies_.end());
  copies_.clear();
}

void FakeNetwork::SetStalled(Transport* transport, bool stalled) {
  absl::MutexLock lock(&mu_);
  static_cast<FakeTransport*>(transport)->stalled_ = stalled;
}

bool FakeNetwork::BreakConnection() {
  CHECK(notice_apart);
  absl::MutexLock lock(&mu_);
  std::vector<Link*> whole;
  for (const auto& link : links_) {
    if (!link->broken && link->ends[0].up) whole.push_back(link.get());
  }
  if (whole.empty()) return false;
  Break(whole[random_() % whole.size()], /*closer=*/nullptr);
  return true;
}

std::vector<absl::Span<const std::byte>> FakeNetwork::OpenLandings(
    const Transport* transport) const {
  absl::MutexLock lock(&mu_);
  std::vector<absl::Span<const std::byte>> open;
  for (const Event& event : events_) {
    if (event.flight == nullptr || !event.flight->landing.has_value() ||
        event.flight->landed ||
        event.link->ends[1 - event.flight->from].transport != transport) {
      continue;
    }
    const auto target =
        static_cast<const FakeTransport*>(transport)->regions_.Resolve(
            event.flight->landing->extents);
    CHECK(target.ok()) << target.status();
    open.insert(open.end(), target->begin(), target->end());
  }
  return open;
}

std::vector<absl::Span<const std::byte>> FakeNetwork::OpenSends(
    const Transport* transport) const {
  absl::MutexLock lock(&mu_);
  std::vector<absl::Span<const std::byte>> open;
  for (const Event& event : events_) {
    if (event.flight == nullptr || event.flight->is_copy ||
        event.flight->sent ||
        event.link->ends[event.flight->from].transport != transport) {
      continue;
    }
    const auto source =
        static_cast<const FakeTransport*>(transport)->regions_.Resolve(
            event.flight->source);
    CHECK(source.ok()) << source.status();
    open.insert(open.end(), source->begin(), source->end());
  }
  return open;
}

}  // namespace baton::kv_transfer
