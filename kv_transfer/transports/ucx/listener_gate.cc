#include "kv_transfer/transports/ucx/listener_gate.h"

#include <dirent.h>
#include <linux/filter.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"

namespace baton::kv_transfer {
namespace {

// The only instruction of a filter: takes no byte of a packet.
bool DropAll(int socket) {
  sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program = {1, &drop};
  return setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program,
                    sizeof(program)) == 0;
}

bool DropNothing(int socket) {
  const int unused = 0;
  return setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &unused,
                    sizeof(unused)) == 0;
}

// Whether a socket of its own is bound to `address`, or came in by a listener
// that is. Another socket may have the same port of another address.
bool IsAt(int socket, const SocketAddress& address) {
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return false;
  }
  return IsAnyAddress(address) ? PortOf(bound) == PortOf(address.storage)
                               : FormatSocketAddress(bound) ==
                                     FormatSocketAddress(address.storage);
}

bool Listens(int socket) {
  int listens = 0;
  socklen_t length = sizeof(listens);
  return getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) ==
             0 &&
         listens != 0;
}

// The process's sockets at `address`.
std::vector<int> SocketsAt(const SocketAddress& address) {
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir("/proc/self/fd"),
                                                 &closedir);
  std::vector<int> sockets;
  if (open == nullptr) return sockets;
  while (const dirent* entry = readdir(open.get())) {
    int descriptor = 0;
    if (absl::SimpleAtoi(entry->d_name, &descriptor) &&
        IsAt(descriptor, address)) {
      sockets.push_back(descriptor);
    }
  }
  return sockets;
}

}  // namespace

absl::Status ListenerGate::Attach(const SocketAddress& address) {
  *this = ListenerGate();
  const std::string name = FormatSocketAddress(address.storage);
  for (const int socket : SocketsAt(address)) {
    if (Listens(socket)) socket_ = socket;
  }
  if (socket_ < 0) {
    return absl::NotFoundError(
        absl::StrCat("no socket of this process listens on ", name));
  }
  address_ = address;
  filters_ = DropAll(socket_) && DropNothing(socket_);
  if (!filters_) {
    return absl::UnimplementedError(absl::StrCat("a filter for the socket on ",
                                                 name, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

void ListenerGate::Open() {
  if (!filters_ || !closed_) return;
  PCHECK(DropNothing(socket_)) << "SO_DETACH_FILTER";
  closed_ = false;
}

void ListenerGate::Close() {
  if (!filters_ || closed_) return;
  closed_ = DropAll(socket_);
  if (closed_ || std::exchange(refused_, true)) return;
  // It has no memory for filters at the moment, say.
  LOG(WARNING) << "kv_transfer: UCX's port stays open to anybody for now: "
               << "a filter for the socket on "
               << FormatSocketAddress(address_.storage) << ": "
               << strerror(errno);
}

bool ListenerGate::EndConnections(absl::Duration patience,
                                  absl::FunctionRef<void()> progress) const {
  if (socket_ < 0) return true;
  const Clock& clock = *Clock::Monotonic();
  const absl::Time deadline = clock.Now() + patience;
  // One that is being accepted may be on neither side for a moment.
  constexpr int kLooks = 2;
  for (int none = 0; none < kLooks;) {
    pollfd waiting = {socket_, POLLIN, 0};
    bool any = poll(&waiting, 1, 0) != 0;  // somebody is yet to be accepted
    for (const int socket : SocketsAt(address_)) {
      if (socket == socket_) continue;
      shutdown(socket, SHUT_RDWR);
      any = true;
    }
    none = any ? 0 : none + 1;
    if (none == kLooks) break;
    if (clock.Now() >= deadline) return false;
    progress();
    poll(nullptr, 0, /*ms=*/1);  // the owner's own thread closes them
  }
  return true;
}

}  // namespace baton::kv_transfer
