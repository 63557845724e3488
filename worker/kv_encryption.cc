#include "worker/kv_encryption.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton::worker {

absl::StatusOr<kv_transfer::TcpTls> KvEncryption(
    const WorkerOptions& options, std::shared_ptr<tls::PemFiles> cluster_tls,
    const char* ucx_environment) {
  const std::string ucx_tls =
      ucx_environment != nullptr ? ucx_environment : options.ucx_tls;
  // As in kv_transfer::CreateTransport.
  const bool prefers_ucx = options.transport == "auto" && ucx_tls != "tcp";
  const bool by_tcp = options.transport == "tcp" || options.transport == "auto";
  if (options.kv_encryption == "tls") {
    if (cluster_tls == nullptr) {
      return absl::InvalidArgumentError(
          "--kv-encryption tls needs --cluster-tls");
    }
    if (!by_tcp && options.transport != "local") {
      return absl::InvalidArgumentError(absl::StrCat(
          "--kv-encryption tls needs --transport auto or tcp, not ",
          options.transport));
    }
    if (prefers_ucx) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--kv-encryption tls needs --ucx-tls tcp, not ", ucx_tls,
          ucx_environment != nullptr ? " of UCX_TLS in the environment" : ""));
    }
  }
  const bool required =
      options.kv_encryption == "tls" ||
      (options.kv_encryption == "auto" && by_tcp && !prefers_ucx);
  return kv_transfer::TcpTls{.files = std::move(cluster_tls),
                             .required = required};
}

}  // namespace baton::worker
