// An address on this machine that no other process uses: a server that ends
// and starts again finds its port free, while an ephemeral port of 127.0.0.1
// may have gone to somebody else by then.
#pragma once

#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace baton::test {

// In 127.64.0.0/10, which is loopback as all of 127.0.0.0/8 is. Of this
// process; its children may listen there, too.
inline std::string OwnLoopback() {
  // Process ids have 22 bits at most.
  const auto pid = static_cast<unsigned>(getpid());
  return absl::StrCat("127.", 64 + ((pid >> 16) & 63), ".", (pid >> 8) & 255,
                      ".", pid & 255);
}

}  // namespace baton::test
