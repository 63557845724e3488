// How a peer's bytes go over its socket: as they are, or encrypted. The socket
// is the caller's and does not block; nothing here does.
//
// One thread at a time. After an error the stream is of no use.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton::kv_transfer {

class TcpStream {
 public:
  virtual ~TcpStream() = default;

  // Goes on with what the ends have to say to each other before there are
  // bytes; whether that is over. Again when the socket can be read.
  // Unavailable, PermissionDenied: why it never will be.
  virtual absl::StatusOr<bool> Handshake(int socket) = 0;

  // Takes bytes from the front of `pieces`, which may then be changed; fewer
  // than there are: the socket is full. Unavailable: the connection broke.
  virtual absl::StatusOr<uint64_t> Write(int socket,
                                         absl::Span<const iovec> pieces) = 0;

  // Fills `pieces` from the front; less than all: there is no more for now.
  // Unavailable: the connection broke, or the peer hung up.
  virtual absl::StatusOr<uint64_t> Read(int socket,
                                        absl::Span<const iovec> pieces) = 0;

  // As Read, of bytes that nobody wants.
  virtual absl::StatusOr<uint64_t> Skip(int socket, uint64_t bytes) = 0;

  // Whether the socket was too full for something that was taken: it takes more
  // when it can be written to, by a Write of nothing or of more.
  virtual bool HasUnsent() const { return false; }

  // Whether there is something to read of which the socket knows nothing.
  virtual bool HasUnread() const { return false; }
};

std::unique_ptr<TcpStream> MakePlainStream();

}  // namespace baton::kv_transfer
