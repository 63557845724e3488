// Keeps pages of other sites, in a browser that can reach the server, away from
// a server that asks for no key. Pure; any thread.
//
// A browser lets any page send a request anywhere, as long as the page need not
// read the answer; it says then whose page it was (Origin). And a page may read
// the answers of its own host, also when the name of that host leads to another
// address than before (DNS rebinding); then Host is that name. Programs that
// are no browsers send no Origin, and reach a loopback address by a name or an
// address of loopback.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "router/http/http_message.h"

namespace baton::router::http {

// The answer (403) to a request that a page of another site may have sent:
// - with an Origin that is not the server as its Host says, or
// - to a loopback address, with a Host that others may own.
std::optional<Response> RefuseOtherPages(const Request& head);

// Whether the value of Host is one that no page of another site has: an IP
// address, "localhost" or a name under it, with or without a port.
bool IsOwnHost(absl::string_view host);

// Whether an Origin is that of the pages at `host`, the value of Host.
bool IsSameOrigin(absl::string_view origin, absl::string_view host);

}  // namespace baton::router::http
