// What gRPC connections of Baton show of themselves and ask of the other side:
// servers with certificates that are taken anew when their files change, and
// the channels between a router and its workers.
//
// Any thread.
#pragma once

#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "absl/strings/string_view.h"
#include "common/tls/pem_files.h"

namespace baton::rpc {

// Each new connection gets the certificate that `files` has then, and must show
// one of `client_ca` if that is set. The result must outlive the server
// (RunningServer keeps it).
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    std::shared_ptr<tls::PemFiles> files);

// Between the processes of one cluster: each shows its certificate, and
// believes every one that `contents.client_ca` signed, whatever name or address
// it is for: workers move (docs/adr/0022-security.md).
std::shared_ptr<grpc::ChannelCredentials> MakeClusterCredentials(
    const tls::PemContents& contents);

// What gRPC says of a connection that could not be made, with what is likely
// behind it when one side speaks TLS and the other does not, or does not
// believe it. `with_tls`: whether we do.
std::string ExplainConnectError(absl::string_view error, bool with_tls);

// Sends what gRPC logs of connections that a server refused to our log, each
// reason at most once a minute: the only place where a server says why. Once
// per process; later calls do nothing.
void LogHandshakeFailures();

}  // namespace baton::rpc
