// The formats that a JSON schema may ask a string to have. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::router {

// The regular expression of all of a string of this format; nothing for one
// that is not known. Dates, times and durations are those of RFC 3339 (with
// numbers of up to four digits in durations), IPv6 addresses have no IPv4
// address in them, and host names and mail addresses are ASCII, of at most four
// labels. A URI is that of RFC 3986, which begins with a scheme.
std::optional<absl::string_view> FormatPattern(absl::string_view format);

// The regular expression of some of these, none of which is shorter than
// `least` characters or longer than `most`: each of their parts has a share of
// them. Nothing for formats but mail addresses, host names and URIs, and for
// bounds that leave too little.
std::optional<std::string> ShorterFormatPattern(absl::string_view format,
                                                uint32_t least, uint32_t most);

}  // namespace baton::router
