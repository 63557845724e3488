#include "kv_transfer/transports/nccl/nccl_transport.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/region_table.h"
#include "kv_transfer/transports/mailbox.h"
#include "kv_transfer/transports/nccl/nccl_peer.h"
#include "kv_transfer/transports/nccl/nccl_wire.h"
#include "kv_transfer/transports/socket_address.h"

namespace baton::kv_transfer {
namespace {

// Not measured: large enough that starting a kernel does not count.
constexpr uint64_t kGoodNcclPayloadBytes = uint64_t{8} << 20;
// What is left for the user; less is of no use.
constexpr uint64_t kMinHeaderBytes = 1024;

TransportProperties PropertiesOver(const TransportProperties& control,
                                   const NcclOptions& options) {
  TransportProperties out;
  out.name = "nccl";
  if (!control.address.empty()) {
    out.address = absl::StrCat(kNcclScheme, control.address);
  }
  out.detects_peer_death = control.detects_peer_death;
  SetLimits(options.max_sends_in_flight, options.max_sends_outstanding, &out);
  out.max_payload_extents = nccl_wire::kMaxExtents;
  out.max_header_bytes = std::min(control.max_header_bytes, kMaxHeaderBytes) -
                         nccl_wire::kMaxOverheadBytes;
  out.good_payload_bytes = kGoodNcclPayloadBytes;
  return out;
}

// Peers have the ids that the control transport gives them. A peer's gate
// exists from Connect, or from when it connected to us; its NcclPeer from when
// the control transport is connected.
//
// Lock order: locks of communicators, then mu_, then those of the control
// transport. mu_ is not held while the handler or a communicator is called.
class NcclTransport final : public Transport, private TransportHandler {
 public:
  NcclTransport(const NcclOptions& options, std::unique_ptr<Transport> control,
                std::unique_ptr<Communicators> communicators)
      : options_(options),
        communicators_(std::move(communicators)),
        control_(std::move(control)),
        properties_(PropertiesOver(control_->properties(), options)) {}
  ~NcclTransport() override { Stop(); }

  const TransportProperties& properties() const override { return properties_; }
  absl::StatusOr<RegionId> RegisterRegion(absl::Span<std::byte> memory,
                                          int descriptor) override {
    return regions_.Add({memory, descriptor});
  }
  void Start(TransportHandler* handler) override;
  void Stop() override ABSL_LOCKS_EXCLUDED(stop_mu_, mu_);
  absl::StatusOr<PeerId> Connect(const std::string& address) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Send(PeerId peer, ByteSpan header,
                    absl::Span<const Extent> payload, uint64_t cookie) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void ClosePeer(PeerId peer) override { control_->ClosePeer(peer); }
  bool AllTicked() override { return control_->AllTicked(); }
  void Wake() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class GateState { kConnecting, kUp, kDown };
  struct Gate {
    GateState state = GateState::kConnecting;
    bool connected_by_us = false;
    uint32_t sends_outstanding = 0;
  };

  // TransportHandler, of the control transport.
  void OnPeerUp(PeerId id, const std::string& address) override;
  void OnPeerDown(PeerId id, const absl::Status& why) override;
  void OnMessage(PeerId id, ByteSpan bytes) override;
  std::optional<Landing> OnPayload(PeerId id, ByteSpan header,
                                   uint64_t payload_bytes) override;
  void OnLanded(PeerId id, uint64_t cookie,
                const absl::Status& status) override;
  void OnSent(PeerId id, uint64_t cookie, const absl::Status& status) override;
  void OnTick() override;

  // Progress thread.
  NcclPeer* FindPeer(PeerId id);
  // Does what there is to do: for `touched`, and for whoever has mail or news.
  void Pump(std::optional<PeerId> touched);
  void ServeAll();
  void Serve(PeerId id);
  NcclPeer::Surroundings Around();

  // Has Pump called soon.
  void WakeControl() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !news_.empty();
  }

  const NcclOptions options_;
  // Destroyed after control_ and peers_.
  const std::unique_ptr<Communicators> communicators_;
  const std::unique_ptr<Transport> control_;
  const TransportProperties properties_;
  RegionTable regions_;

  // Of the progress thread; after the control transport's Stop, of our Stop.
  TransportHandler* handler_ = nullptr;  // constant after Start
  NcclPeer::Surroundings around_;        // constant after Start
  absl::flat_hash_map<PeerId, std::unique_ptr<NcclPeer>> peers_;
  absl::Time next_tick_ = absl::InfinitePast();

  absl::Mutex stop_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  bool stopped_ ABSL_GUARDED_BY(stop_mu_) = false;

  absl::Mutex mu_;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<PeerId, Gate> gates_ ABSL_GUARDED_BY(mu_);
  // Bounded by the gates.
  std::vector<SendOp> mail_ ABSL_GUARDED_BY(mu_);
  // Peers whose communicators have something to say.
  absl::flat_hash_set<PeerId> news_ ABSL_GUARDED_BY(mu_);
  bool tick_asked_ ABSL_GUARDED_BY(mu_) = false;
  // Whether the control transport was woken and OnTick has not come since.
  bool wake_pending_ ABSL_GUARDED_BY(mu_) = false;
};

NcclPeer::Surroundings NcclTransport::Around() {
  NcclPeer::Surroundings around;
  around.control = control_.get();
  around.communicators = communicators_.get();
  around.regions = &regions_;
  around.handler = handler_;
  around.max_sends_in_flight = options_.max_sends_in_flight;
  around.set_up = [this](PeerId id) {
    absl::MutexLock lock(&mu_);
    gates_.at(id).state = GateState::kUp;
  };
  around.set_down = [this](PeerId id) {
    absl::MutexLock lock(&mu_);
    gates_.at(id).state = GateState::kDown;
  };
  around.end_send = [this](PeerId id) {
    absl::MutexLock lock(&mu_);
    Gate& gate = gates_.at(id);
    CHECK_GT(gate.sends_outstanding, 0u);
    --gate.sends_outstanding;
  };
  around.on_news = [this](PeerId id) {
    absl::MutexLock lock(&mu_);
    news_.insert(id);
    WakeControl();
  };
  return around;
}

void NcclTransport::Start(TransportHandler* handler) {
  CHECK(handler != nullptr);
  CHECK(handler_ == nullptr) << "a transport starts once";
  handler_ = handler;
  around_ = Around();
  {
    absl::MutexLock lock(&mu_);
    started_ = true;
  }
  control_->Start(this);
}

void NcclTransport::Stop() {
  absl::MutexLock stop_lock(&stop_mu_);
  if (stopped_) return;
  stopped_ = true;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  control_->Stop();
  // The progress thread has ended: it is this one from here on.
  for (auto& [id, peer] : peers_) peer->OnControlStopped();
  for (;;) {
    Pump(std::nullopt);
    ServeAll();
    if (peers_.empty()) return;
    absl::MutexLock lock(&mu_);
    if (!mu_.AwaitWithTimeout(absl::Condition(this, &NcclTransport::HasNews),
                              options_.stop_timeout)) {
      LOG(FATAL) << "kv_transfer: " << peers_.size()
                 << " communicators did not become quiet in "
                 << options_.stop_timeout
                 << "; their memory may still be written";
    }
  }
}

absl::StatusOr<PeerId> NcclTransport::Connect(const std::string& address) {
  // Held, so that what is heard of the peer finds its gate.
  absl::MutexLock lock(&mu_);
  if (stopping_) return absl::UnavailableError("the transport is stopped");
  absl::string_view control_address = address;
  if (!absl::ConsumePrefix(&control_address, kNcclScheme)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer at ", address, " does not speak nccl"));
  }
  BATON_ASSIGN_OR_RETURN(const PeerId id,
                         control_->Connect(std::string(control_address)));
  gates_[id].connected_by_us = true;
  return id;
}

absl::Status NcclTransport::Send(PeerId peer, ByteSpan header,
                                 absl::Span<const Extent> payload,
                                 uint64_t cookie) {
  if (header.size() > properties_.max_header_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("header of ", header.size(), " bytes, allowed are ",
                     properties_.max_header_bytes));
  }
  BATON_ASSIGN_OR_RETURN(SendOp op, MakeSendOp(regions_, peer, header, payload,
                                               cookie, nccl_wire::kMaxExtents));
  absl::MutexLock lock(&mu_);
  auto it = gates_.find(peer);
  if (stopping_ || it == gates_.end() || it->second.state == GateState::kDown) {
    return absl::UnavailableError("the peer is down");
  }
  Gate& gate = it->second;
  if (gate.state == GateState::kConnecting) {
    return absl::FailedPreconditionError("the peer is not up yet");
  }
  if (gate.sends_outstanding >= options_.max_sends_outstanding) {
    return absl::ResourceExhaustedError(
        absl::StrCat("max_sends_outstanding (", options_.max_sends_outstanding,
                     ") to one peer"));
  }
  ++gate.sends_outstanding;
  mail_.push_back(std::move(op));
  WakeControl();
  return absl::OkStatus();
}

void NcclTransport::Wake() {
  absl::MutexLock lock(&mu_);
  tick_asked_ = true;
  WakeControl();
}

void NcclTransport::WakeControl() {
  // Once it stops, Stop() looks by itself.
  if (!started_ || stopping_ || wake_pending_) return;
  wake_pending_ = true;
  control_->Wake();
}

void NcclTransport::OnPeerUp(PeerId id, const std::string& address) {
  bool connected_by_us = false;
  {
    absl::MutexLock lock(&mu_);
    connected_by_us = gates_[id].connected_by_us;
  }
  peers_[id] = std::make_unique<NcclPeer>(
      &around_, id,
      // As Connect was given it.
      connected_by_us ? absl::StrCat(kNcclScheme, address) : address,
      connected_by_us, options_.clock->Now() + options_.create_timeout);
  Pump(id);
}

void NcclTransport::OnPeerDown(PeerId id, const absl::Status& why) {
  if (NcclPeer* peer = FindPeer(id); peer != nullptr) {
    peer->OnControlDown(why);
    Pump(id);
    return;
  }
  // It never came up, so that nothing was sent.
  {
    absl::MutexLock lock(&mu_);
    gates_.erase(id);
  }
  handler_->OnPeerDown(id, why);
}

void NcclTransport::OnMessage(PeerId id, ByteSpan bytes) {
  if (NcclPeer* peer = FindPeer(id); peer != nullptr) {
    peer->OnControlMessage(bytes);
  }
  Pump(id);
}

std::optional<Landing> NcclTransport::OnPayload(PeerId id, ByteSpan, uint64_t) {
  if (NcclPeer* peer = FindPeer(id); peer != nullptr) {
    peer->Fail(absl::InvalidArgumentError(
        "the peer sent a payload over the control transport"));
  }
  Pump(id);
  return std::nullopt;
}

void NcclTransport::OnLanded(PeerId, uint64_t, const absl::Status&) {
  LOG(FATAL) << "every payload was refused";
}

void NcclTransport::OnSent(PeerId id, uint64_t cookie,
                           const absl::Status& status) {
  NcclPeer* peer = FindPeer(id);
  CHECK(peer != nullptr);  // it does not finish before
  peer->OnControlSent(cookie, status);
  Pump(id);
}

void NcclTransport::OnTick() {
  const absl::Time now = options_.clock->Now();
  bool tick = false;
  {
    // What we woke for is no tick.
    absl::MutexLock lock(&mu_);
    tick = tick_asked_ || !wake_pending_ || now >= next_tick_;
    tick_asked_ = false;
    wake_pending_ = false;
  }
  Pump(std::nullopt);
  if (!tick) return;
  next_tick_ = now + options_.tick_interval;
  // Deadlines.
  ServeAll();
  handler_->OnTick();
}

NcclPeer* NcclTransport::FindPeer(PeerId id) {
  auto it = peers_.find(id);
  return it == peers_.end() ? nullptr : it->second.get();
}

void NcclTransport::Pump(std::optional<PeerId> touched) {
  std::vector<SendOp> mail;
  absl::flat_hash_set<PeerId> due;
  {
    absl::MutexLock lock(&mu_);
    mail = std::exchange(mail_, {});
    due = std::exchange(news_, {});
  }
  if (touched.has_value()) due.insert(*touched);
  for (SendOp& op : mail) {
    NcclPeer* peer = FindPeer(op.peer);
    CHECK(peer != nullptr);  // it does not finish before
    due.insert(op.peer);
    peer->Send(std::move(op));
  }
  for (PeerId id : due) Serve(id);
}

void NcclTransport::ServeAll() {
  std::vector<PeerId> ids;
  for (const auto& [id, peer] : peers_) ids.push_back(id);
  for (PeerId id : ids) Serve(id);
}

void NcclTransport::Serve(PeerId id) {
  NcclPeer* peer = FindPeer(id);
  if (peer == nullptr) return;
  peer->Serve(options_.clock->Now());
  if (!peer->finished()) return;
  absl::MutexLock lock(&mu_);
  auto gate = gates_.find(id);
  // Sends that are still in the mail find it.
  if (gate->second.sends_outstanding > 0) return;
  gates_.erase(gate);
  peers_.erase(id);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateNcclTransport(
    const NcclOptions& options, std::unique_ptr<Transport> control,
    std::unique_ptr<Communicators> communicators) {
  if (options.max_sends_in_flight == 0 ||
      options.max_sends_in_flight > NcclPeer::kMaxLandings) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_sends_in_flight is ", options.max_sends_in_flight,
                     ", allowed are 1 to ", NcclPeer::kMaxLandings));
  }
  if (options.max_sends_outstanding == 0) {
    return absl::InvalidArgumentError("max_sends_outstanding must be > 0");
  }
  if (options.create_timeout <= absl::ZeroDuration() ||
      options.stop_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        "create_timeout and stop_timeout must be > 0");
  }
  const uint64_t least = kMinHeaderBytes + nccl_wire::kMaxOverheadBytes;
  if (control->properties().max_header_bytes < least) {
    return absl::InvalidArgumentError(
        absl::StrCat(control->properties().name, " takes headers of ",
                     control->properties().max_header_bytes,
                     " bytes; a transport over nccl needs ", least));
  }
  return std::make_unique<NcclTransport>(options, std::move(control),
                                         std::move(communicators));
}

}  // namespace baton::kv_transfer
