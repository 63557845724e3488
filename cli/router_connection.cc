#include "cli/router_connection.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/host_port.h"
#include "common/status_macros.h"

namespace baton::cli {

CLI::Option* AddAddressFlag(CLI::App* app, std::string* address) {
  return app
      ->add_option(
          "--address", *address,
          absl::StrCat("HOST:PORT of the router; default ", kDefaultAddress))
      ->check([](const std::string& text) {
        return std::string(ParseHostPort(text).status().message());
      });
}

void AddCredentialFlags(CLI::App* app, RouterFlags* flags) {
  const char* group = "Routers with TLS or API keys";
  app->add_option("--tls-ca", flags->tls_ca_file,
                  "Connect by TLS, trusting the authorities of this PEM file")
      ->group(group);
  app->add_option("--tls-cert", flags->tls_cert_file,
                  "PEM file of our own certificate, with --tls-key")
      ->group(group);
  app->add_option("--tls-key", flags->tls_key_file, "PEM file of its key")
      ->group(group);
  app->add_option("--api-key", flags->api_key,
                  "Better in the environment: others see command lines")
      ->envname("BATON_API_KEY")
      ->group(group);
}

absl::StatusOr<std::unique_ptr<client::Client>> ConnectToRouter(
    const RouterFlags& flags, absl::Duration timeout) {
  BATON_RETURN_IF_ERROR(ParseHostPort(flags.address).status());
  client::ClientOptions options;
  options.address = flags.address;
  options.tls_ca_file = flags.tls_ca_file;
  options.tls_cert_file = flags.tls_cert_file;
  options.tls_key_file = flags.tls_key_file;
  options.api_key = flags.api_key;
  options.connect_timeout = timeout;
  absl::StatusOr<std::unique_ptr<client::Client>> client =
      client::Client::Connect(options);
  if (client.ok()) return client;
  std::string message = absl::StrReplaceAll(client.status().message(),
                                            {{"tls_ca_file", "--tls-ca"},
                                             {"tls_cert_file", "--tls-cert"},
                                             {"tls_key_file", "--tls-key"},
                                             {"api_key", "--api-key"}});
  if (absl::IsUnavailable(client.status())) {
    absl::StrAppend(&message, " (is `baton up` running?)");
  }
  return absl::Status(client.status().code(), message);
}

std::string DescribeError(const absl::Status& status) {
  std::string text = absl::StrCat(absl::StatusCodeToString(status.code()), ": ",
                                  status.message());
  if (const auto retry = client::RetryAfter(status)) {
    absl::StrAppend(&text, " (come back in ", absl::ToInt64Milliseconds(*retry),
                    " ms)");
  }
  return text;
}

}  // namespace baton::cli
