#include "client/channel.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace baton::client {
namespace {

// As the router's own: a prompt of a million tokens fits.
constexpr int kMaxMessageBytes = 16 << 20;
// While a call runs, a router that does not answer is noticed within the sum.
constexpr int kKeepaliveTimeMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 5'000;
// How long one attempt to connect may take, and when the next one comes.
constexpr int kConnectAttemptMs = 5000;
constexpr int kFirstRetryMs = 100;
constexpr int kLongestRetryMs = 5000;

constexpr absl::Duration kLongestConnect = absl::Hours(1);
constexpr size_t kMaxPemBytes = size_t{1} << 20;

// The content of a PEM file; empty for no path. `field` names the option.
absl::StatusOr<std::string> ReadPem(const char* field,
                                    const std::string& path) {
  if (path.empty()) return std::string();
  const auto error = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " ", path, ": ", why));
  };
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return absl::NotFoundError(
        absl::StrCat(field, " ", path, ": it cannot be opened"));
  }
  std::string text(kMaxPemBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return error("it cannot be read");
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMaxPemBytes) return error("it is too long for a PEM file");
  if (text.find("-----BEGIN ") == std::string::npos) {
    return error("it is no PEM file");
  }
  return text;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const ClientOptions& options) {
  if (!options.tls && options.tls_ca_file.empty() &&
      options.tls_cert_file.empty() && options.tls_key_file.empty()) {
    return grpc::InsecureChannelCredentials();
  }
  if (options.tls_cert_file.empty() != options.tls_key_file.empty()) {
    return absl::InvalidArgumentError(
        "tls_cert_file and tls_key_file go together: one is given, the other "
        "is not");
  }
  grpc::SslCredentialsOptions ssl;
  BATON_ASSIGN_OR_RETURN(ssl.pem_root_certs,
                         ReadPem("tls_ca_file", options.tls_ca_file));
  BATON_ASSIGN_OR_RETURN(ssl.pem_cert_chain,
                         ReadPem("tls_cert_file", options.tls_cert_file));
  BATON_ASSIGN_OR_RETURN(ssl.pem_private_key,
                         ReadPem("tls_key_file", options.tls_key_file));
  return grpc::SslCredentials(ssl);
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(
    const ClientOptions& options) {
  if (options.address.empty()) {
    return absl::InvalidArgumentError("address is empty");
  }
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<grpc::ChannelCredentials> credentials,
                         MakeCredentials(options));
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  // Pings all through a long wait for the first token.
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Two clients are two connections, which a load balancer can tell apart.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectAttemptMs);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstRetryMs);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestRetryMs);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(options.address, credentials, args);
}

absl::Status AwaitConnected(grpc::Channel& channel, absl::Duration timeout) {
  const auto deadline = std::chrono::system_clock::now() +
                        absl::ToChronoMilliseconds(std::clamp(
                            timeout, absl::ZeroDuration(), kLongestConnect));
  grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/true);
  while (state == GRPC_CHANNEL_IDLE || state == GRPC_CHANNEL_CONNECTING) {
    if (!channel.WaitForStateChange(state, deadline)) {
      return absl::UnavailableError("no connection in time");
    }
    state = channel.GetState(/*try_to_connect=*/true);
  }
  return state == GRPC_CHANNEL_READY
             ? absl::OkStatus()
             : absl::UnavailableError("the connection failed");
}

}  // namespace baton::client
