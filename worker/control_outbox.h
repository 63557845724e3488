// Where a worker's loop puts its messages to routers. A seam: over gRPC in a
// worker (worker/control_service.h), a virtual network in the simulation.
#pragma once

#include <cstdint>

#include "baton/v1/worker.pb.h"

namespace baton::worker {

// One router's stream, from its first message to its end. Never reused.
using SessionId = uint64_t;

// Called by the worker's loop thread; never blocks.
class ControlOutbox {
 public:
  virtual ~ControlOutbox() = default;

  // Queues a message to one router, in order. Dropped when its stream is gone.
  virtual void Send(SessionId session, v1::WorkerMessage message) = 0;
  virtual void SendToAll(const v1::WorkerMessage& message) = 0;

  // Whether so much waits to be sent to that router that what can be said later
  // should be.
  virtual bool Backlogged(SessionId session) = 0;
};

}  // namespace baton::worker
