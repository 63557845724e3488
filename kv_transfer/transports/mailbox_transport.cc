#include "kv_transfer/transports/mailbox_transport.h"

#include <utility>

#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/transports/socket_address.h"

namespace baton::kv_transfer {

absl::StatusOr<RegionId> MailboxTransport::RegisterRegion(
    absl::Span<std::byte> memory, int descriptor) {
  return regions_.Add({memory, descriptor});
}

void MailboxTransport::Start(TransportHandler* handler) {
  CHECK(handler != nullptr);
  mailbox_.PostStart(handler);
}

void MailboxTransport::Stop() {
  absl::MutexLock lock(&stop_mu_);
  if (!thread_.joinable()) return;
  CHECK(std::this_thread::get_id() != thread_.get_id())
      << "Stop on the progress thread";
  mailbox_.PostStop();
  thread_.join();
}

absl::StatusOr<PeerId> MailboxTransport::Connect(const std::string& address) {
  BATON_ASSIGN_OR_RETURN(const SocketAddress socket_address,
                         ParseSocketAddress(address));
  return mailbox_.PostConnect(address, socket_address);
}

absl::Status MailboxTransport::Send(PeerId peer, ByteSpan header,
                                    absl::Span<const Extent> payload,
                                    uint64_t cookie) {
  BATON_ASSIGN_OR_RETURN(SendOp op,
                         MakeSendOp(regions_, peer, header, payload, cookie));
  return mailbox_.PostSend(std::move(op));
}

absl::Status CheckLimits(uint32_t max_peers, uint32_t max_sends_in_flight,
                         uint32_t max_sends_outstanding,
                         absl::Duration tick_interval) {
  if (max_peers == 0 || max_sends_in_flight == 0 ||
      max_sends_outstanding == 0) {
    return absl::InvalidArgumentError(
        "max_peers, max_sends_in_flight and max_sends_outstanding must be > 0");
  }
  if (tick_interval < absl::Milliseconds(1)) {
    return absl::InvalidArgumentError("tick_interval must be at least 1 ms");
  }
  return absl::OkStatus();
}

}  // namespace baton::kv_transfer
