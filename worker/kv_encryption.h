// Whether KV is encrypted between hosts: what --kv-encryption comes to, with
// the flags beside it.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/tls/pem_files.h"
#include "kv_transfer/transports/tcp/tcp_transport.h"
#include "worker/options.h"

namespace baton::worker {

// "tls": by TCP with TLS alone. "auto": so where --cluster-tls is given and KV
// goes by TCP anyhow. "off": not, but a decode worker with --cluster-tls takes
// what comes encrypted, too. `cluster_tls`: the files of --cluster-tls, null
// without. `ucx_environment`: UCX_TLS, which wins over --ucx-tls; null where it
// is not set. InvalidArgument: "tls" with what cannot encrypt; it names both
// flags. Pure; any thread.
absl::StatusOr<kv_transfer::TcpTls> KvEncryption(
    const WorkerOptions& options, std::shared_ptr<tls::PemFiles> cluster_tls,
    const char* ucx_environment);

}  // namespace baton::worker
