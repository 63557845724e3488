#include "kv_transfer/transports/ucx/ucx_transport.h"

#include <thread>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/region_table.h"
#include "kv_transfer/transports/mailbox.h"
#include "kv_transfer/transports/ucx/ucx_environment.h"
#include "kv_transfer/transports/ucx/ucx_loop.h"

namespace baton::kv_transfer {
namespace {

class UcxTransport final : public Transport {
 public:
  explicit UcxTransport(const UcxOptions& options)
      : options_(options),
        mailbox_(options.max_peers, options.max_sends_outstanding) {}
  ~UcxTransport() override { Stop(); }

  // Starts the progress thread and waits until it can serve.
  absl::Status Launch() {
    absl::Notification opened;
    absl::Status status;
    thread_ = std::thread([this, &opened, &status] {
      UcxLoop loop(options_, &mailbox_, &regions_);
      status = loop.Open(&properties_);
      const bool ok = status.ok();
      opened.Notify();
      if (ok) loop.Run();
    });
    opened.WaitForNotification();
    return status;
  }

  const TransportProperties& properties() const override { return properties_; }

  absl::StatusOr<RegionId> RegisterRegion(absl::Span<std::byte> memory,
                                          int descriptor) override {
    // UCX pins pages itself where a transport needs that (tcp does not).
    return regions_.Add({memory, descriptor});
  }

  void Start(TransportHandler* handler) override {
    CHECK(handler != nullptr);
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
    return mailbox_.PostSend(std::move(op));
  }

  void ClosePeer(PeerId peer) override { mailbox_.PostClose(peer); }

  void Wake() override { mailbox_.PostWake(); }

 private:
  const UcxOptions options_;
  TransportProperties properties_;  // constant after Launch
  RegionTable regions_;
  Mailbox mailbox_;
  absl::Mutex stop_mu_;  // held while joining: Stop may be called twice
  std::thread thread_;
};

absl::Status Check(const UcxOptions& options) {
  if (options.max_peers == 0 || options.max_sends_in_flight == 0 ||
      options.max_sends_outstanding == 0) {
    return absl::InvalidArgumentError(
        "max_peers, max_sends_in_flight and max_sends_outstanding must be > 0");
  }
  if (options.tick_interval < absl::Milliseconds(1)) {
    return absl::InvalidArgumentError("tick_interval must be at least 1 ms");
  }
  return absl::OkStatus();
}

}  // namespace

void PrepareUcxEnvironment() {
  static absl::once_flag once;
  absl::call_once(once, SetUcxEnvironment);
}

absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(
    const UcxOptions& options) {
  BATON_RETURN_IF_ERROR(Check(options));
  PrepareUcxEnvironment();
  auto transport = std::make_unique<UcxTransport>(options);
  BATON_RETURN_IF_ERROR(transport->Launch());
  return transport;
}

}  // namespace baton::kv_transfer
