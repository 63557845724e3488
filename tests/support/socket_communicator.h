// Communicators between two processes of one host, over a socket: for
// integration tests of the transport where there is no GPU, and "device memory"
// is ordinary memory.
//
// They keep the contract of Communicator. Ranks that post different things,
// which makes real ones hang or crash, fail and say what differs; and the end
// of the other rank is a failure at once, where real ones may not notice. They
// say nothing about NCCL: its speed, its errors, how it uses a device.
//
// No deadlines: a rank waits for the other until Abort, which ends every wait.
// No authentication but a name that cannot be guessed: for tests only.
//
// Threads: as Communicator. Each communicator has a thread, which does all that
// waits and calls on_news; it ends with the communicator.
#pragma once

#include <functional>
#include <memory>

#include "kv_transfer/transports/nccl/communicator.h"

namespace baton::kv_transfer {

// `waits`, if any, is told by how many the groups change that are posted and
// not done: from any thread, without a lock, changes in any order.
std::unique_ptr<Communicators> CreateSocketCommunicators(
    std::function<void(int change)> waits = nullptr);

}  // namespace baton::kv_transfer
