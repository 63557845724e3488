#include "kv_transfer/transports/ucx/ucx_transport.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/synchronization/notification.h"
#include "common/status_macros.h"
#include "kv_transfer/transports/mailbox_transport.h"
#include "kv_transfer/transports/ucx/ucx_context.h"
#include "kv_transfer/transports/ucx/ucx_environment.h"
#include "kv_transfer/transports/ucx/ucx_loop.h"

namespace baton::kv_transfer {
namespace {

class ThreadedUcxTransport final : public UcxTransport {
 public:
  explicit ThreadedUcxTransport(const UcxOptions& options)
      : UcxTransport(options.max_peers, options.max_sends_outstanding),
        options_(options) {}
  ~ThreadedUcxTransport() override { Stop(); }

  // Starts the progress thread and waits until it can serve.
  absl::Status Launch() {
    absl::Notification opened;
    absl::Status status;
    RunThread([this, &opened, &status] {
      if (options_.select_device) options_.select_device();
      UcxLoop loop(options_, &mailbox_, &regions_);
      status = loop.Open(&properties_);
      const bool ok = status.ok();
      opened.Notify();
      if (ok) loop.Run();
    });
    opened.WaitForNotification();
    return status;
  }

  // A device's memory is made known to network cards and devices once, and not
  // for each payload.
  absl::StatusOr<RegionId> RegisterRegion(absl::Span<std::byte> memory,
                                          int descriptor) override {
    if (options_.memory == UcxMemory::kCuda) {
      absl::Notification mapped;
      absl::Status status;
      BATON_RETURN_IF_ERROR(
          mailbox_.PostMap({memory, [&mapped, &status](absl::Status result) {
                              status = std::move(result);
                              mapped.Notify();
                            }}));
      mapped.WaitForNotification();
      BATON_RETURN_IF_ERROR(status);
    }
    return UcxTransport::RegisterRegion(memory, descriptor);
  }

  void Admit(ScopedFd visitor, std::string said) override {
    mailbox_.PostVisitor({std::move(visitor), std::move(said)});
  }

 private:
  const UcxOptions options_;
};

}  // namespace

void PrepareUcxEnvironment() {
  static absl::once_flag once;
  absl::call_once(once, SetUcxEnvironment);
}

absl::Status CheckUcx(const std::string& tls, UcxMemory memory) {
  PrepareUcxEnvironment();
  UcxOptions options;
  options.tls = tls;
  options.memory = memory;
  return OpenUcxContext(options).status();
}

absl::StatusOr<std::unique_ptr<UcxTransport>> CreateUcxTransport(
    const UcxOptions& options) {
  BATON_RETURN_IF_ERROR(
      CheckLimits(options.max_peers, options.max_sends_in_flight,
                  options.max_sends_outstanding, options.tick_interval));
  PrepareUcxEnvironment();
  auto transport = std::make_unique<ThreadedUcxTransport>(options);
  BATON_RETURN_IF_ERROR(transport->Launch());
  return transport;
}

}  // namespace baton::kv_transfer
