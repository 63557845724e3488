#include "kv_transfer/transports/ucx/listener_gate.h"

#include <dirent.h>
#include <linux/filter.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "kv_transfer/transports/socket_address.h"

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

bool ListensOn(int socket, uint16_t port) {
  int listens = 0;
  socklen_t length = sizeof(listens);
  if (getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 ||
      listens == 0) {
    return false;
  }
  sockaddr_storage bound{};
  length = sizeof(bound);
  return getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &length) ==
             0 &&
         PortOf(bound) == port;
}

std::optional<int> FindListening(uint16_t port) {
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir("/proc/self/fd"),
                                                 &closedir);
  if (open == nullptr) return std::nullopt;
  while (const dirent* entry = readdir(open.get())) {
    int descriptor = 0;
    if (absl::SimpleAtoi(entry->d_name, &descriptor) &&
        ListensOn(descriptor, port)) {
      return descriptor;
    }
  }
  return std::nullopt;
}

}  // namespace

absl::Status ListenerGate::Attach(uint16_t port) {
  socket_ = -1;
  closed_ = false;
  const std::optional<int> found = FindListening(port);
  if (!found.has_value()) {
    return absl::NotFoundError(
        absl::StrCat("no socket of this process listens on port ", port));
  }
  if (!DropAll(*found) || !DropNothing(*found)) {
    return absl::UnimplementedError(absl::StrCat(
        "a filter for the socket on port ", port, ": ", strerror(errno)));
  }
  socket_ = *found;
  return absl::OkStatus();
}

void ListenerGate::Open() {
  if (socket_ < 0 || !closed_) return;
  PCHECK(DropNothing(socket_)) << "SO_DETACH_FILTER";
  closed_ = false;
}

void ListenerGate::Close() {
  if (socket_ < 0 || closed_) return;
  PCHECK(DropAll(socket_)) << "SO_ATTACH_FILTER";
  closed_ = true;
}

}  // namespace baton::kv_transfer
