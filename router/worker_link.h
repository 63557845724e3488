// The router's end of the control stream to one worker address.
//
// One stream at a time: Connect opens one (and waits on the network for as long
// as the worker is not there), events come through the sink, and the last event
// of a stream is kEnded. When to connect again is the owner's decision
// (router/cluster.h).
//
// Threads: the functions belong to the router's loop thread. The sink is called
// on gRPC's threads, in the order of the stream, and must not block. The link
// stops reading when too many messages wait for Consumed, so a slow loop slows
// the workers down and does not grow without bound.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "baton/v1/worker.grpc.pb.h"

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

class WorkerLink final {
 public:
  using Sink = std::function<void(LinkEvent)>;

  // `hello` opens every stream.
  WorkerLink(int link, const std::string& address, v1::RouterMessage hello,
             Sink sink);
  // Ends the stream and waits for its last event.
  ~WorkerLink();

  WorkerLink(const WorkerLink&) = delete;
  WorkerLink& operator=(const WorkerLink&) = delete;

  // REQUIRES: no stream is open.
  void Connect();
  bool connected() const { return stream_ != nullptr; }

  // False when too much waits to be sent, or the stream is ending: the message
  // is lost and the stream is of no more use.
  bool Send(v1::RouterMessage message);

  // The owner is done with one kMessage event.
  void Consumed();

  // The owner has seen kEnded. REQUIRES: a stream is open.
  void Ended();

  // Ends the stream from our side; kEnded follows.
  void Break();

 private:
  class Stream;

  const int link_;
  const std::string address_;
  const v1::RouterMessage hello_;
  const Sink sink_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::WorkerControl::Stub> stub_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace baton::router
