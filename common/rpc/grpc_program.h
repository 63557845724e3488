// How a program that uses gRPC begins and ends.
#pragma once

#include "absl/time/time.h"

namespace baton::rpc {

// The first variable of a program's main, and so the last that goes. OpenSSL is
// kept when the program exits (common/tls/openssl_setup.h), and Abseil's locks
// do not look for deadlocks: Debian builds it so that each does, for four times
// its cost. Tests go without this, and so with that.
class GrpcProgram final {
 public:
  GrpcProgram();
  // Waits for AwaitGrpcEnd, three seconds at most: a look-up of a name may keep
  // a thread of gRPC for longer.
  ~GrpcProgram();
  GrpcProgram(const GrpcProgram&) = delete;
  GrpcProgram& operator=(const GrpcProgram&) = delete;
};

// Waits until nothing runs in gRPC. To be called when all servers, channels and
// calls of the process are gone, which they only seem to be: gRPC's own threads
// drop the last of a channel, and start one more that ends the others and frees
// what they share. A process that exits meanwhile takes it away from under
// them. False when that takes longer than `patience`. Any thread but gRPC's.
bool AwaitGrpcEnd(absl::Duration patience);

}  // namespace baton::rpc
