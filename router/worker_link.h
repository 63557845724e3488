// The router's end of the control stream to one worker address.
//
// One stream at a time: Connect opens one (and waits on the network for as long
// as the worker is not there), events come through the sink, and the last event
// of a stream is kEnded. When to connect again is the owner's decision
// (router/cluster.h).
//
// A seam: over gRPC in a router (router/grpc_worker_link.h), a virtual network
// in the simulation.
//
// Threads: the functions belong to the router's loop thread. The sink is called
// on any thread, in the order of the stream, and must not block. The link stops
// reading when too many messages wait for Consumed, so a slow loop slows the
// workers down and does not grow without bound.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "baton/v1/worker.pb.h"

namespace baton::router {

struct LinkEvent {
  enum class Kind { kMessage, kEnded };
  // Which link, as its owner numbers them.
  int link = 0;
  Kind kind = Kind::kMessage;
  v1::WorkerMessage message;
  // kEnded: why.
  std::string reason;
};

class WorkerLink {
 public:
  using Sink = std::function<void(LinkEvent)>;

  // Ends the stream and waits for its last event.
  virtual ~WorkerLink() = default;

  // REQUIRES: no stream is open.
  virtual void Connect() = 0;
  virtual bool connected() const = 0;

  // False when too much waits to be sent, or the stream is ending: the message
  // is lost and the stream is of no more use.
  virtual bool Send(v1::RouterMessage message) = 0;

  // The owner is done with one kMessage event.
  virtual void Consumed() = 0;

  // The owner has seen kEnded. REQUIRES: a stream is open.
  virtual void Ended() = 0;

  // Ends the stream from our side; kEnded follows.
  virtual void Break() = 0;
};

// Makes the link number `link` to `address`; `hello` opens every stream.
using MakeWorkerLink = std::function<std::unique_ptr<WorkerLink>(
    int link, const std::string& address, v1::RouterMessage hello,
    WorkerLink::Sink sink)>;

}  // namespace baton::router
