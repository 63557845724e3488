#include "kv_transfer/transports/tcp/tcp_transport.h"

#include <utility>

#include "common/status_macros.h"
#include "kv_transfer/transports/mailbox_transport.h"
#include "kv_transfer/transports/tcp/tcp_loop.h"

namespace baton::kv_transfer {
namespace {

class TcpTransport final : public MailboxTransport {
 public:
  explicit TcpTransport(const TcpOptions& options)
      : MailboxTransport(options.max_peers, options.max_sends_outstanding),
        loop_(options, &mailbox_, &regions_) {}
  ~TcpTransport() override { Stop(); }

  absl::Status Launch() {
    BATON_RETURN_IF_ERROR(loop_.Open(&properties_));
    encrypted_ = properties_;
    encrypted_.name = kTcpTlsName;
    RunThread([this] { loop_.Run(); });
    return absl::OkStatus();
  }

  const TransportProperties& PeerProperties(PeerId peer) const override {
    return loop_.IsEncryptedAsItWished(peer) ? encrypted_ : properties_;
  }

  absl::Status Send(PeerId peer, ByteSpan header,
                    absl::Span<const Extent> payload,
                    uint64_t cookie) override {
    if (!loop_.OnThread()) {
      return MailboxTransport::Send(peer, header, payload, cookie);
    }
    BATON_ASSIGN_OR_RETURN(SendOp op,
                           MakeSendOp(regions_, peer, header, payload, cookie));
    BATON_RETURN_IF_ERROR(mailbox_.BeginSend(peer));
    loop_.Send(std::move(op));
    return absl::OkStatus();
  }

 private:
  TransportProperties encrypted_;
  TcpLoop loop_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateTcpTransport(
    const TcpOptions& options) {
  BATON_RETURN_IF_ERROR(
      CheckLimits(options.max_peers, options.max_sends_in_flight,
                  options.max_sends_outstanding, options.tick_interval));
  auto transport = std::make_unique<TcpTransport>(options);
  BATON_RETURN_IF_ERROR(transport->Launch());
  return transport;
}

}  // namespace baton::kv_transfer
