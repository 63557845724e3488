#include "kv_transfer/transports/local/local_transport.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/region_table.h"
#include "kv_transfer/transports/local/local_loop.h"
#include "kv_transfer/transports/mailbox.h"
#include "kv_transfer/transports/socket_address.h"

namespace baton::kv_transfer {
namespace {

class LocalTransport final : public Transport {
 public:
  explicit LocalTransport(const LocalOptions& options)
      : mailbox_(options.max_peers, options.max_sends_outstanding),
        loop_(options, &mailbox_, &regions_) {}
  ~LocalTransport() override { Stop(); }

  absl::Status Launch() {
    BATON_RETURN_IF_ERROR(loop_.Open(&properties_));
    thread_ = std::thread([this] { loop_.Run(); });
    return absl::OkStatus();
  }

  const TransportProperties& properties() const override { return properties_; }

  absl::StatusOr<RegionId> RegisterRegion(absl::Span<std::byte> memory,
                                          int descriptor) override {
    absl::MutexLock lock(&start_mu_);
    if (started_) {
      return absl::FailedPreconditionError(
          "a local transport takes no region after Start");
    }
    return regions_.Add({memory, descriptor});
  }

  void Start(TransportHandler* handler) override {
    CHECK(handler != nullptr);
    {
      absl::MutexLock lock(&start_mu_);
      started_ = true;
    }
    mailbox_.PostStart(handler);
  }

  void Stop() override {
    absl::MutexLock lock(&stop_mu_);
    if (!thread_.joinable()) return;
    CHECK(std::this_thread::get_id() != thread_.get_id())
        << "Stop on the progress thread";
    mailbox_.PostStop();
    thread_.join();
  }

  absl::StatusOr<PeerId> Connect(const std::string& address) override {
    BATON_ASSIGN_OR_RETURN(const SocketAddress socket_address,
                           ParseSocketAddress(address));
    return mailbox_.PostConnect(address, socket_address);
  }

  absl::Status Send(PeerId peer, ByteSpan header,
                    absl::Span<const Extent> payload,
                    uint64_t cookie) override {
    BATON_ASSIGN_OR_RETURN(SendOp op,
                           MakeSendOp(regions_, peer, header, payload, cookie));
    BATON_RETURN_IF_ERROR(CheckShared(payload));
    if (payload.empty() || !loop_.OnThread()) {
      return mailbox_.PostSend(std::move(op));
    }
    BATON_RETURN_IF_ERROR(mailbox_.BeginSend(peer));
    loop_.SendPayload(std::move(op));
    return absl::OkStatus();
  }

  void ClosePeer(PeerId peer) override { mailbox_.PostClose(peer); }

  void Wake() override { mailbox_.PostWake(); }

 private:
  // Whether peers can read it.
  absl::Status CheckShared(absl::Span<const Extent> payload) const {
    if (payload.empty()) return absl::OkStatus();
    const std::vector<RegionTable::Region> regions = regions_.List();
    for (const Extent& extent : payload) {
      const auto index = static_cast<uint32_t>(extent.region);
      if (regions[index].descriptor == kNoDescriptor) {
        return absl::FailedPreconditionError(absl::StrCat(
            "region ", index, " was registered without a descriptor"));
      }
    }
    return absl::OkStatus();
  }

  TransportProperties properties_;  // constant after Launch
  RegionTable regions_;
  Mailbox mailbox_;
  LocalLoop loop_;
  absl::Mutex start_mu_;
  bool started_ ABSL_GUARDED_BY(start_mu_) = false;
  absl::Mutex stop_mu_;  // held while joining: Stop may be called twice
  std::thread thread_;
};

absl::Status Check(const LocalOptions& options) {
  if (options.max_peers == 0 || options.max_sends_in_flight == 0 ||
      options.max_sends_outstanding == 0) {
    return absl::InvalidArgumentError(
        "max_peers, max_sends_in_flight and max_sends_outstanding must be > 0");
  }
  if (options.max_sends_in_flight > LocalLoop::kMaxPayloadsWaiting) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_sends_in_flight must be at most ",
                     LocalLoop::kMaxPayloadsWaiting));
  }
  if (options.tick_interval < absl::Milliseconds(1)) {
    return absl::InvalidArgumentError("tick_interval must be at least 1 ms");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateLocalTransport(
    const LocalOptions& options) {
  BATON_RETURN_IF_ERROR(Check(options));
  auto transport = std::make_unique<LocalTransport>(options);
  BATON_RETURN_IF_ERROR(transport->Launch());
  return transport;
}

}  // namespace baton::kv_transfer
