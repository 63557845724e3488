// How programs keep OpenSSL.
#pragma once

namespace baton::tls {

// First thing in main, before anything uses OpenSSL: it then frees nothing when
// the program exits. By default it does, even while threads still use it, and
// gRPC's are waited for only so long (common/rpc/grpc_program.h).
void KeepOpenSslAtExit();

}  // namespace baton::tls
