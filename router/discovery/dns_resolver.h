// Looks names up in DNS, with c-ares: unlike getaddrinfo it keeps a deadline
// and can be told to stop.
//
// A name's addresses are those of its A records, or of its AAAA records when it
// has no A records: a worker of both families has one address here. The
// machine's resolv.conf (read anew each time), its search list and its hosts
// file count, nsswitch.conf's other sources do not. Answers that are too long
// for UDP come over TCP.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/discovery/name_resolver.h"

namespace baton::router {

// `server` is "IP:PORT" of the DNS server to ask; empty: the machine's.
// InvalidArgument when it is neither.
absl::StatusOr<std::unique_ptr<NameResolver>> MakeDnsResolver(
    const std::string& server);

// Whether it can be a `server`.
bool IsDnsServer(absl::string_view server);

}  // namespace baton::router
