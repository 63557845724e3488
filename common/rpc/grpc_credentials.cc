#include "common/rpc/grpc_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/repeat_filter.h"

namespace baton::rpc {
namespace {

// gRPC's C++ interface has either certificates that stay, or its own reader of
// files, which lets a key and a certificate that do not fit each other in
// between two writes. Its C interface asks us at each handshake, and goes on
// with what it had when we say so.
class ReloadingServerCredentials final : public grpc::ServerCredentials {
 public:
  explicit ReloadingServerCredentials(std::shared_ptr<tls::PemFiles> files)
      : files_(std::move(files)) {
    const bool ask = !files_->paths().client_ca.empty();
    grpc_ssl_server_credentials_options* const options =
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            ask ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            &ReloadingServerCredentials::Fetch, this);
    credentials_ = grpc_ssl_server_credentials_create_with_options(options);
    CHECK(credentials_ != nullptr);
  }

  ~ReloadingServerCredentials() override {
    grpc_server_credentials_release(credentials_);
  }

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    LOG(FATAL) << "calls authenticate themselves elsewhere";
  }

 private:
  int AddPortToServer(const std::string& address,
                      grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    auto* const credentials = static_cast<ReloadingServerCredentials*>(self);
    const std::shared_ptr<const tls::PemContents> contents =
        credentials->files_->Get();
    if (credentials->version_.exchange(contents->version) ==
        contents->version) {
      return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    const grpc_ssl_pem_key_cert_pair pair = {
        contents->private_key.c_str(), contents->certificate_chain.c_str()};
    // gRPC wants roots here also when it asks clients for no certificate, and
    // then has no use for them.
    const std::string& roots = contents->client_ca.empty()
                                   ? contents->certificate_chain
                                   : contents->client_ca;
    *config = grpc_ssl_server_certificate_config_create(
        roots.c_str(), &pair, /*num_key_cert_pairs=*/1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::shared_ptr<tls::PemFiles> files_;
  // Of what gRPC has.
  std::atomic<uint64_t> version_{0};
  grpc_server_credentials* credentials_ = nullptr;
};

void LogForGrpc(gpr_log_func_args* args) {
  // A peer that is refused tries again and again. gRPC's texts are few.
  static auto* const refusals = new RepeatFilter;
  absl::string_view message = args->message;
  if (absl::ConsumePrefix(&message, "Handshaking failed: ")) {
    // A server's. After it come numbers and the place in gRPC's source.
    const std::string error(message.substr(0, message.find(" {")));
    LOG_IF(WARNING, refusals->IsNews(error, Clock::Monotonic()->Now()))
        << "a TLS connection came to nothing: "
        << ExplainConnectError(error, /*with_tls=*/true);
    return;
  }
  // Who connects is told otherwise; and certificates of a cluster are for no
  // name, and need not be.
  if (absl::StrContains(message, "Handshake failed with") ||
      absl::StrContains(message, "No match found for server")) {
    return;
  }
  LOG_IF(WARNING, args->severity == GPR_LOG_SEVERITY_ERROR)
      << "gRPC: " << message;
}

// `parts` are in lower case.
bool ContainsAny(absl::string_view text,
                 std::initializer_list<absl::string_view> parts) {
  const std::string lower = absl::AsciiStrToLower(text);
  for (const absl::string_view part : parts) {
    if (absl::StrContains(lower, part)) return true;
  }
  return false;
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    std::shared_ptr<tls::PemFiles> files) {
  LogHandshakeFailures();
  return std::make_shared<ReloadingServerCredentials>(std::move(files));
}

std::shared_ptr<grpc::ChannelCredentials> MakeClusterCredentials(
    const tls::PemContents& contents) {
  LogHandshakeFailures();
  namespace tls_grpc = grpc::experimental;
  tls_grpc::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(
      std::make_shared<tls_grpc::StaticDataCertificateProvider>(
          contents.client_ca,
          std::vector<tls_grpc::IdentityKeyCertPair>{
              {contents.private_key, contents.certificate_chain}}));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_certificate_verifier(
      std::make_shared<tls_grpc::NoOpCertificateVerifier>());
  options.set_check_call_host(false);
  return tls_grpc::TlsCredentials(options);
}

std::string ExplainConnectError(absl::string_view error, bool with_tls) {
  absl::string_view likely;
  if (ContainsAny(error, {"wrong version number", "http request",
                          "packet length too long", "record layer"})) {
    likely = "the other side does not speak TLS";
  } else if (ContainsAny(error, {"certificate verify failed", "unknown ca"})) {
    likely = "the certificate is not of the CA that is asked for, or has ended";
  } else if (ContainsAny(error, {"did not return a certificate",
                                 "certificate required"})) {
    likely = "the other side has no certificate";
  } else if (with_tls && ContainsAny(error, {"handshake read failed"})) {
    likely =
        "the other side hung up; it may not believe the certificate, or not "
        "speak TLS";
  }
  if (likely.empty()) return std::string(error);
  return absl::StrCat(error, ": ", likely);
}

void LogHandshakeFailures() {
  static std::once_flag once;
  std::call_once(once, [] {
    gpr_set_log_function(LogForGrpc);
    gpr_set_log_verbosity(GPR_LOG_SEVERITY_DEBUG);
  });
}

}  // namespace baton::rpc
