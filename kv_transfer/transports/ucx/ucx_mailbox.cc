#include "kv_transfer/transports/ucx/ucx_mailbox.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::kv_transfer {

void UcxMailbox::PostStart(TransportHandler* handler) {
  absl::MutexLock lock(&mu_);
  CHECK(!started_) << "a transport starts once";
  started_ = true;
  if (stopped_) return;
  mail_.ops.push_back(UcxStartOp{handler});
  Signal();
}

absl::StatusOr<PeerId> UcxMailbox::PostConnect(
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
  mail_.ops.push_back(UcxConnectOp{peer, address, socket_address});
  Signal();
  return peer;
}

absl::Status UcxMailbox::PostSend(UcxSendOp op) {
  absl::MutexLock lock(&mu_);
  auto it = gates_.find(op.peer);
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
  mail_.ops.push_back(std::move(op));
  Signal();
  return absl::OkStatus();
}

void UcxMailbox::PostClose(PeerId peer) {
  absl::MutexLock lock(&mu_);
  auto it = gates_.find(peer);
  if (stopped_ || it == gates_.end() || it->second.close_posted ||
      it->second.state == GateState::kDown) {
    return;
  }
  it->second.close_posted = true;
  mail_.ops.push_back(UcxCloseOp{peer});
  Signal();
}

void UcxMailbox::PostWake() {
  absl::MutexLock lock(&mu_);
  if (stopped_ || mail_.wake) return;
  mail_.wake = true;
  Signal();
}

void UcxMailbox::PostStop() {
  absl::MutexLock lock(&mu_);
  stopped_ = true;
  mail_.stop = true;
  Signal();
}

void UcxMailbox::Attach(ucp_worker_h worker) {
  absl::MutexLock lock(&mu_);
  worker_ = worker;
}

void UcxMailbox::Detach() {
  absl::MutexLock lock(&mu_);
  worker_ = nullptr;
}

UcxMailbox::Mail UcxMailbox::Take() {
  absl::MutexLock lock(&mu_);
  return std::exchange(mail_, {});
}

bool UcxMailbox::HasMail() const {
  absl::MutexLock lock(&mu_);
  return !mail_.ops.empty() || mail_.wake || mail_.stop;
}

bool UcxMailbox::HasPlace() const {
  absl::MutexLock lock(&mu_);
  return !stopped_ && gates_.size() < max_peers_;
}

std::optional<PeerId> UcxMailbox::AddIncoming() {
  absl::MutexLock lock(&mu_);
  if (gates_.size() >= max_peers_) return std::nullopt;
  const PeerId peer{next_peer_++};
  gates_[peer] = Gate{};
  return peer;
}

void UcxMailbox::SetUp(PeerId peer) {
  absl::MutexLock lock(&mu_);
  gates_.at(peer).state = GateState::kUp;
}

void UcxMailbox::SetDown(PeerId peer) {
  absl::MutexLock lock(&mu_);
  gates_.at(peer).state = GateState::kDown;
}

void UcxMailbox::EndSend(PeerId peer) {
  absl::MutexLock lock(&mu_);
  Gate& gate = gates_.at(peer);
  CHECK_GT(gate.sends_outstanding, 0u);
  --gate.sends_outstanding;
}

bool UcxMailbox::TryRemove(PeerId peer) {
  absl::MutexLock lock(&mu_);
  auto it = gates_.find(peer);
  CHECK(it->second.state == GateState::kDown);
  if (it->second.sends_outstanding > 0) return false;
  gates_.erase(it);
  return true;
}

void UcxMailbox::Signal() {
  if (worker_ != nullptr) ucp_worker_signal(worker_);
}

}  // namespace baton::kv_transfer
