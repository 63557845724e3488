#include "kv_transfer/transports/mailbox.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton::kv_transfer {

void SetLimits(uint32_t max_sends_in_flight, uint32_t max_sends_outstanding,
               TransportProperties* properties) {
  properties->max_header_bytes = kMaxHeaderBytes;
  properties->max_payload_bytes = kMaxPayloadBytes;
  properties->max_payload_extents = kMaxPayloadExtents;
  properties->max_sends_in_flight = max_sends_in_flight;
  properties->max_sends_outstanding = max_sends_outstanding;
}

absl::StatusOr<SendOp> MakeSendOp(const RegionTable& regions, PeerId peer,
                                  ByteSpan header,
                                  absl::Span<const Extent> payload,
                                  uint64_t cookie, uint32_t max_extents) {
  if (header.empty() || header.size() > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("header of ", header.size(),
                                                   " bytes, allowed are 1 to ",
                                                   kMaxHeaderBytes));
  }
  if (payload.size() > max_extents) {
    return absl::InvalidArgumentError(absl::StrCat(
        "payload of ", payload.size(), " extents, allowed are ", max_extents));
  }
  BATON_ASSIGN_OR_RETURN(const auto spans, regions.Resolve(payload));
  uint64_t payload_bytes = 0;
  for (absl::Span<std::byte> span : spans) {
    payload_bytes += span.size();
    if (payload_bytes > kMaxPayloadBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("payload of more than ", kMaxPayloadBytes, " bytes"));
    }
  }
  SendOp op;
  op.peer = peer;
  op.header.assign(reinterpret_cast<const char*>(header.data()), header.size());
  op.payload.assign(payload.begin(), payload.end());
  op.cookie = cookie;
  return op;
}

void Mailbox::PostStart(TransportHandler* handler) {
  absl::MutexLock lock(&mu_);
  CHECK(!started_) << "a transport starts once";
  started_ = true;
  if (stopped_) return;
  SignalIfEmpty();
  mail_.ops.push_back(StartOp{handler});
}

absl::StatusOr<PeerId> Mailbox::PostConnect(
    const std::string& address, const SocketAddress& socket_address) {
  absl::MutexLock lock(&mu_);
  CHECK(started_) << "Connect before Start";
  if (stopped_) return absl::UnavailableError("the transport is stopped");
  if (gates_.size() >= max_peers_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("max_peers (", max_peers_, ") are connected"));
  }
  const PeerId peer{next_peer_++};
  gates_[peer] = Gate{};
  SignalIfEmpty();
  mail_.ops.push_back(ConnectOp{peer, address, socket_address});
  return peer;
}

absl::Status Mailbox::PostSend(SendOp op) {
  absl::MutexLock lock(&mu_);
  BATON_RETURN_IF_ERROR(CountSend(op.peer));
  SignalIfEmpty();
  mail_.ops.push_back(std::move(op));
  return absl::OkStatus();
}

absl::Status Mailbox::BeginSend(PeerId peer) {
  absl::MutexLock lock(&mu_);
  return CountSend(peer);
}

absl::Status Mailbox::CountSend(PeerId peer) {
  auto it = gates_.find(peer);
  if (stopped_ || it == gates_.end()) {
    return absl::UnavailableError("the peer is down");
  }
  Gate& gate = it->second;
  switch (gate.state) {
    case GateState::kConnecting:
      return absl::FailedPreconditionError("the peer is not up yet");
    case GateState::kDown:
      return absl::UnavailableError("the peer is down");
    case GateState::kUp:
      break;
  }
  if (gate.sends_outstanding >= max_sends_outstanding_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "max_sends_outstanding (", max_sends_outstanding_, ") to one peer"));
  }
  ++gate.sends_outstanding;
  return absl::OkStatus();
}

void Mailbox::PostClose(PeerId peer) {
  absl::MutexLock lock(&mu_);
  auto it = gates_.find(peer);
  if (stopped_ || it == gates_.end() || it->second.close_posted ||
      it->second.state == GateState::kDown) {
    return;
  }
  it->second.close_posted = true;
  SignalIfEmpty();
  mail_.ops.push_back(CloseOp{peer});
}

absl::Status Mailbox::PostMap(MapOp op) {
  absl::MutexLock lock(&mu_);
  if (stopped_) return absl::UnavailableError("the transport is stopped");
  SignalIfEmpty();
  mail_.ops.push_back(std::move(op));
  return absl::OkStatus();
}

void Mailbox::PostWake() {
  absl::MutexLock lock(&mu_);
  if (stopped_ || mail_.wake) return;
  SignalIfEmpty();
  mail_.wake = true;
}

void Mailbox::PostVisitor(VisitorOp op) {
  constexpr int kMaxVisitors = 256;
  absl::MutexLock lock(&mu_);
  if (stopped_ || mail_.visitors >= kMaxVisitors) return;
  SignalIfEmpty();
  ++mail_.visitors;
  mail_.ops.push_back(std::move(op));
}

void Mailbox::PostStop() {
  absl::MutexLock lock(&mu_);
  stopped_ = true;
  SignalIfEmpty();
  mail_.stop = true;
}

void Mailbox::Attach(std::function<void()> signal) {
  absl::MutexLock lock(&mu_);
  signal_ = std::move(signal);
}

void Mailbox::Detach() {
  absl::MutexLock lock(&mu_);
  signal_ = nullptr;
}

Mailbox::Mail Mailbox::Take() {
  absl::MutexLock lock(&mu_);
  return std::exchange(mail_, {});
}

bool Mailbox::HasMail() const {
  absl::MutexLock lock(&mu_);
  return !mail_.ops.empty() || mail_.wake || mail_.stop;
}

bool Mailbox::HasPlace() const {
  absl::MutexLock lock(&mu_);
  return !stopped_ && gates_.size() < max_peers_;
}

std::optional<PeerId> Mailbox::AddIncoming() {
  absl::MutexLock lock(&mu_);
  if (gates_.size() >= max_peers_) return std::nullopt;
  const PeerId peer{next_peer_++};
  gates_[peer] = Gate{};
  return peer;
}

void Mailbox::SetUp(PeerId peer) {
  absl::MutexLock lock(&mu_);
  gates_.at(peer).state = GateState::kUp;
}

void Mailbox::SetDown(PeerId peer) {
  absl::MutexLock lock(&mu_);
  gates_.at(peer).state = GateState::kDown;
}

void Mailbox::EndSend(PeerId peer) {
  absl::MutexLock lock(&mu_);
  Gate& gate = gates_.at(peer);
  CHECK_GT(gate.sends_outstanding, 0u);
  --gate.sends_outstanding;
}

bool Mailbox::TryRemove(PeerId peer) {
  absl::MutexLock lock(&mu_);
  auto it = gates_.find(peer);
  CHECK(it->second.state == GateState::kDown);
  if (it->second.sends_outstanding > 0) return false;
  gates_.erase(it);
  return true;
}

void Mailbox::SignalIfEmpty() {
  if (mail_.ops.empty() && !mail_.wake && !mail_.stop && signal_) signal_();
}

}  // namespace baton::kv_transfer
