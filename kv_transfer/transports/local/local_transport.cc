#include "kv_transfer/transports/local/local_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/status_macros.h"
#include "kv_transfer/region_table.h"
#include "kv_transfer/transports/local/local_loop.h"
#include "kv_transfer/transports/mailbox_transport.h"

namespace baton::kv_transfer {
namespace {

class LocalTransport final : public MailboxTransport {
 public:
  explicit LocalTransport(const LocalOptions& options)
      : MailboxTransport(options.max_peers, options.max_sends_outstanding),
        loop_(options, &mailbox_, &regions_) {}
  ~LocalTransport() override { Stop(); }

  absl::Status Launch() {
    BATON_RETURN_IF_ERROR(loop_.Open(&properties_));
    RunThread([this] { loop_.Run(); });
    return absl::OkStatus();
  }

  absl::StatusOr<RegionId> RegisterRegion(absl::Span<std::byte> memory,
                                          int descriptor) override {
    absl::MutexLock lock(&start_mu_);
    if (started_) {
      return absl::FailedPreconditionError(
          "a local transport takes no region after Start");
    }
    return MailboxTransport::RegisterRegion(memory, descriptor);
  }

  void Start(TransportHandler* handler) override {
    {
      absl::MutexLock lock(&start_mu_);
      started_ = true;
    }
    MailboxTransport::Start(handler);
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
    loop_.Send(std::move(op));
    return absl::OkStatus();
  }

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

  LocalLoop loop_;
  absl::Mutex start_mu_;
  bool started_ ABSL_GUARDED_BY(start_mu_) = false;
};

absl::Status Check(const LocalOptions& options) {
  BATON_RETURN_IF_ERROR(
      CheckLimits(options.max_peers, options.max_sends_in_flight,
                  options.max_sends_outstanding, options.tick_interval));
  if (options.max_sends_in_flight > LocalLoop::kMaxPayloadsWaiting) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_sends_in_flight must be at most ",
                     LocalLoop::kMaxPayloadsWaiting));
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
