// Two transports behind one: peers on this host are connected by the first,
// all others by the second. Connecting tries the first, which says at once
// when nobody is there, and falls back; the log says for each peer which it was
// and why.
//
// Threads: as any transport. Each of the two has its progress thread; calls to
// the handler are serialized by a lock, so that they never overlap.
#pragma once

#include <memory>

#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

// `local` is asked first. Neither was started; both take regions alike.
std::unique_ptr<Transport> MakeHostAwareTransport(
    std::unique_ptr<Transport> local, std::unique_ptr<Transport> remote);

}  // namespace baton::kv_transfer
