// TLS 1.3 over a peer's socket, between members of one cluster: both ends show
// a certificate that the cluster's CA signed, for whatever name (ADR 22). What
// goes over the wire is records of up to 16 KB, encrypted and authenticated;
// they are made and opened in memory, and go to and from the socket many at a
// time.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/tls/pem_files.h"
#include "kv_transfer/transports/tcp/tcp_stream.h"

struct ssl_ctx_st;

namespace baton::kv_transfer {

// The first byte of whoever begins with TLS (a handshake record, RFC 8446
// section 5.1).
inline constexpr unsigned char kFirstByteOfTls = 0x16;

// AES-GCM's bound for one key is 2^24.5 records (RFC 8446 section 5.5); the
// writer takes a new one long before.
inline constexpr uint64_t kRecordsPerKey = uint64_t{1} << 22;

// The context of members, for either end. InvalidArgument: a text is no PEM,
// there is no CA, or the key is not the certificate's. Any thread.
absl::StatusOr<std::shared_ptr<ssl_ctx_st>> MakeMemberContext(
    const tls::PemContents& contents);

enum class TlsSide { kConnects, kListens };

// Handshake fails with PermissionDenied where a certificate is not good enough,
// ours or the peer's, and with Unavailable otherwise; messages say why.
std::unique_ptr<TcpStream> MakeTlsStream(
    ssl_ctx_st* context, TlsSide side,
    uint64_t records_per_key = kRecordsPerKey);

}  // namespace baton::kv_transfer
