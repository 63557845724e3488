// How the commands reach a router: their flags for it, and a connection with
// errors that tell the user what to do. Any thread.
#pragma once

#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/command.h"
#include "client/client.h"

namespace baton::cli {

// How long a command waits for its router, mostly.
inline constexpr absl::Duration kConnectPatience = absl::Seconds(5);

struct RouterFlags {
  std::string address = kDefaultAddress;
  std::string tls_ca_file;
  std::string tls_cert_file;
  std::string tls_key_file;
  std::string api_key;
};

// --address, as CLI11 shall check it.
CLI::Option* AddAddressFlag(CLI::App* app, std::string* address);

// --tls-ca, --tls-cert, --tls-key and --api-key, which is also read from
// BATON_API_KEY: other users of a machine see what stands on a command line.
void AddCredentialFlags(CLI::App* app, RouterFlags* flags);

// Waits until connected; errors as Client::Connect, with the flags' names and
// the question whether a cluster runs.
absl::StatusOr<std::unique_ptr<client::Client>> ConnectToRouter(
    const RouterFlags& flags, absl::Duration timeout);

// One line for a person: "UNAVAILABLE: no decode worker is connected", with
// when to come back where the router said so.
std::string DescribeError(const absl::Status& status);

}  // namespace baton::cli
