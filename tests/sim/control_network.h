// The control streams between routers and workers without gRPC: reliable and in
// order while they last, but each message takes a while, a stream can break at
// any time, and its two ends hear of that one after the other. Stands in for
// router/grpc_worker_link.h (WorkerLink) and worker/control_service.h
// (ControlOutbox), and does to inboxes and leases what they do.
//
// Parties are numbers that the owner gives; a party that comes back keeps its
// number. One thread.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "baton/v1/worker.pb.h"
#include "common/ids.h"
#include "router/worker_link.h"
#include "tests/sim/coverage.h"
#include "tests/sim/dice.h"
#include "tests/sim/journal.h"
#include "worker/control_service.h"

namespace baton::sim {

class ControlNetwork final {
 private:
  class Link;
  struct Stream;

 public:
  // Whether a party takes part at this moment; one that stands still does not.
  using Awake = std::function<bool(int party)>;

  // All outlive the network.
  ControlNetwork(Dice* dice, Journal* journal, Coverage* coverage, Awake awake)
      : dice_(dice),
        journal_(journal),
        coverage_(coverage),
        awake_(std::move(awake)) {}

  // A worker's end of its streams, for one life of it.
  class Server final : public worker::ControlOutbox {
   public:
    // Its process ends: after what is queued, or in the middle of it.
    ~Server() override;
    void DieSilently() { dies_silently_ = true; }

    void Send(worker::SessionId session, v1::WorkerMessage message) override;
    void SendToAll(const v1::WorkerMessage& message) override;
    bool Backlogged(worker::SessionId session) override;

   private:
    friend class ControlNetwork;
    ControlNetwork* network_ = nullptr;
    int party_ = -1;
    std::string address_;
    v1::WorkerHello hello_;
    worker::Inbox* inbox_ = nullptr;
    worker::SessionLeases* leases_ = nullptr;
    worker::SessionId last_session_ = 0;
    bool dies_silently_ = false;
  };

  // The worker `party` takes streams at `address` as long as this lives.
  // REQUIRES: nobody else does.
  std::unique_ptr<Server> Serve(int party, const std::string& address,
                                const v1::WorkerHello& hello,
                                worker::Inbox* inbox,
                                worker::SessionLeases* leases);

  // Links of the router `party`. They die with it, silently.
  router::MakeWorkerLink LinksOf(int party);

  // Moves one message, drawn at random; false when none can be moved.
  bool Step();
  // Breaks a stream drawn at random.
  void BreakOne();

  // Whether the transfer was granted again, with a later generation.
  bool IsStale(TransferId transfer, uint32_t generation) const;

 private:
  using Streams = std::vector<std::shared_ptr<Stream>>;

  bool CanAccept(const Stream& stream) const;
  bool CanReachWorker(const Stream& stream) const;
  bool CanReachRouter(const Stream& stream) const;
  void Accept(Stream* stream);
  void ToWorker(Stream* stream);
  void DeliverToWorker(Stream* stream, v1::RouterMessage message);
  void ToRouter(Stream* stream);
  // Nothing that is sent from now on arrives; each end will hear of it.
  static void Break(Stream* stream);
  void Observe(const v1::WorkerMessage& message);
  Server* ServerAt(const std::string& address) const;
  void Forget();

  Dice* const dice_;
  Journal* const journal_;
  Coverage* const coverage_;
  const Awake awake_;
  Streams streams_;
  std::vector<Server*> servers_;
  std::map<TransferId, uint32_t> generations_;  // last granted
};

}  // namespace baton::sim
