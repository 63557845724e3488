// What placement knows of a worker, from the worker's own messages: numbers of
// any size, made safe to reckon with. Pure; any thread.
#pragma once

#include "baton/v1/worker.pb.h"
#include "scheduling/placement.h"

namespace baton::router {

// Before its first report a worker counts as idle.
scheduling::WorkerSnapshot IdleSnapshot(scheduling::WorkerId id,
                                        scheduling::WorkerRole role,
                                        const v1::WorkerHello& hello);

// What the report says takes the place of what was placed since the last one.
void TakeReport(const v1::LoadReport& load,
                scheduling::WorkerSnapshot* snapshot);

// The adapters that it has now.
void TakeAdapters(const v1::WorkerHello& hello,
                  scheduling::WorkerSnapshot* snapshot);

}  // namespace baton::router
