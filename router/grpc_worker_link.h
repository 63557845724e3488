// A worker link over a gRPC stream, in plain text or over TLS.
#pragma once

#include <memory>
#include <string>

#include "common/tls/pem_files.h"
#include "router/worker_link.h"

namespace baton::router {

// Makes links whose sink is called on gRPC's threads. With `cluster_tls`, over
// TLS: each new stream takes what the files have then. Null: plain text.
MakeWorkerLink GrpcWorkerLinks(std::shared_ptr<tls::PemFiles> cluster_tls);

}  // namespace baton::router
