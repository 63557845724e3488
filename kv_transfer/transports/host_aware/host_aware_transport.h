// Two transports behind one: who can be reached by the first is connected by
// it, all others by the second. Connecting tries the first and falls back; the
// log says for each peer which it was and why. Either may be such a pair
// itself.
//
// Threads: as any transport. Each of the two has its progress thread; calls to
// the handler are serialized by a lock, so that they never overlap.
#pragma once

#include <memory>

#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

// Neither was started; both take regions alike.

// By memory to peers on this host, which `local` says at once whether they are.
// Only when all regions are shared.
std::unique_ptr<Transport> MakeHostAwareTransport(
    std::unique_ptr<Transport> local, std::unique_ptr<Transport> remote);

// What it means when nothing answers the first in time: that the second would
// wait as long for nothing, or that it may have more luck.
enum class Silence { kOfBoth, kOfTheFirst };

// `first` where the peer speaks it.
std::unique_ptr<Transport> MakeFallbackTransport(
    std::unique_ptr<Transport> first, std::unique_ptr<Transport> second,
    Silence silence);

}  // namespace baton::kv_transfer
