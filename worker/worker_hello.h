// What a worker says of itself: to its peers, and to routers. Pure but for the
// incarnation, which is drawn; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "baton/v1/peer.pb.h"
#include "baton/v1/worker.pb.h"
#include "engine/engine.h"
#include "worker/options.h"

namespace baton::worker {

// Who this worker is, with a new incarnation.
v1::PeerHello MakePeerHello(v1::WorkerRole role, const std::string& name,
                            const engine::Engine& engine);
// Of a worker with so many loops. A prefill side takes no prompt that it could
// not hand over: with a stage that is too small, a decode worker computes it.
v1::WorkerHello MakeWorkerHello(const WorkerOptions& options,
                                const v1::PeerHello& self,
                                const engine::Engine& engine,
                                const std::string& data_address,
                                int32_t num_loops = 1);

}  // namespace baton::worker
