// The sockets of local connections: whole datagrams, descriptors passed along,
// names that exist only in this network namespace of this host, so that nobody
// elsewhere can reach them. Both ends belong to the same user, or are hung up
// on.
//
// Nothing blocks. Any thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/scoped_fd.h"

namespace baton::kv_transfer {

// Listens under the name that belongs to the data address `address`
// ("127.0.0.1:4000"). AlreadyExists when somebody does.
absl::StatusOr<ScopedFd> ListenLocally(const std::string& address);

// Connects to whoever listens for `address` on this host. Unavailable when
// nobody does, or another user.
absl::StatusOr<ScopedFd> ConnectLocally(const std::string& address);

// The process at the other end of a connection. PermissionDenied when another
// user owns it.
absl::StatusOr<pid_t> CheckedPeerProcess(int socket);

// One datagram with descriptors. False when the other end must read first.
absl::StatusOr<bool> SendDatagram(int socket, absl::string_view datagram,
                                  absl::Span<const int> descriptors = {});

// Reads one datagram into `buffer`; its size, or none when there is none now.
// Descriptors that come along go to `descriptors`, or are closed when it is
// null. Unavailable: the other end is gone. InvalidArgument: more bytes or
// descriptors than there is room for.
absl::StatusOr<std::optional<size_t>> ReceiveDatagram(
    int socket, absl::Span<std::byte> buffer,
    std::vector<ScopedFd>* descriptors);

// Reads as many datagrams as there are, up to sizes.size(), the i-th into the
// i-th of as many equal parts of `buffer`; how many, and the size of each.
// Descriptors that come along are closed. Errors as above, and of a datagram
// that is empty among others.
absl::StatusOr<size_t> ReceiveDatagrams(int socket,
                                        absl::Span<std::byte> buffer,
                                        absl::Span<size_t> sizes);

}  // namespace baton::kv_transfer
