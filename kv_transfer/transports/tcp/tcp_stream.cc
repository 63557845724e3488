#include "kv_transfer/transports/tcp/tcp_stream.h"

#include <sys/socket.h>

#include <cerrno>

#include "absl/status/status.h"
#include "kv_transfer/transports/tcp_socket.h"

namespace baton::kv_transfer {
namespace {

class PlainStream final : public TcpStream {
 public:
  absl::StatusOr<bool> Handshake(int socket) override { return true; }

  absl::StatusOr<uint64_t> Write(int socket,
                                 absl::Span<const iovec> pieces) override {
    msghdr message = MessageOf(pieces);
    return SentBytes(sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL));
  }

  absl::StatusOr<uint64_t> Read(int socket,
                                absl::Span<const iovec> pieces) override {
    msghdr message = MessageOf(pieces);
    return ReceivedBytes(recvmsg(socket, &message, MSG_DONTWAIT));
  }

  // The kernel throws it away.
  absl::StatusOr<uint64_t> Skip(int socket, uint64_t bytes) override {
    return ReceivedBytes(
        recv(socket, nullptr, bytes, MSG_DONTWAIT | MSG_TRUNC));
  }

 private:
  static msghdr MessageOf(absl::Span<const iovec> pieces) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = pieces.size();
    return message;
  }
};

}  // namespace

std::unique_ptr<TcpStream> MakePlainStream() {
  return std::make_unique<PlainStream>();
}

}  // namespace baton::kv_transfer
