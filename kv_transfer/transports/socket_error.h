// What an operation on a socket came to, as a status.
#pragma once

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace baton::kv_transfer {

// "connect: Connection refused", of `error`, an errno. Any thread.
inline absl::Status SocketError(absl::StatusCode code, absl::string_view what,
                                int error) {
  return absl::Status(code, absl::StrCat(what, ": ", std::strerror(error)));
}

}  // namespace baton::kv_transfer
