// One life of one worker: the real loop, hand-off, schedulers and block pool on
// a simulated engine and simulated networks. A worker that comes back is
// another one of these, at the same addresses.
//
// One thread.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "baton/v1/peer.pb.h"
#include "decode_worker/decode_loop.h"
#include "prefill_worker/prefill_loop.h"
#include "tests/sim/invariants.h"
#include "tests/sim/loop_inspector.h"
#include "tests/sim/sim_engine.h"
#include "tests/sim/world.h"

namespace baton::sim {

class SimWorker final {
 public:
  struct Place {
    int party = 0;
    v1::WorkerRole role = v1::WORKER_ROLE_DECODE;
    std::string name;
    std::string address;       // control
    std::string data_address;  // decode workers
  };

  // The world outlives the worker.
  SimWorker(const Place& place, const ClusterPlan& plan, World* world);
  // Ends in good order.
  ~SimWorker();
  // Like SIGKILL: destroy it then, its peers hear nothing of it by itself.
  void Kill();

  // False: drained, and to be destroyed.
  bool Turn();
  void Tick();
  void RequestDrain();
  void SetStalled(bool stalled);

  const std::string& name() const { return place_.name; }
  LoopView View() const;
  void Check();
  void CheckNothingIsLeft() const;
  const kv_transfer::Transport* transport() const { return transport_.get(); }

 private:
  void CheckStep(const scheduling::StepPlan& plan);
  // Counts sequences that begin behind a cached prefix, and those of which it
  // goes out before the rest is computed.
  void NoteHits(const LoopView& view, const scheduling::StepPlan& plan);
  void NotePreemptions(const LoopView& view);
  // What the world does between two layers of a step.
  void Interlude();
  KvInUse InUse();
  void MakeLoop(const worker::WorkerOptions& options,
                const worker::WorkerParts& parts);
  worker::WorkerLoop* loop() const;

  const Place place_;
  World* const world_;
  SimEngine engine_;
  worker::Inbox inbox_;
  worker::SessionLeases leases_;
  std::unique_ptr<kv_transfer::Transport> transport_;
  std::unique_ptr<ControlNetwork::Server> server_;
  // One of them.
  std::unique_ptr<decode_worker::DecodeLoop> decode_;
  std::unique_ptr<prefill_worker::PrefillLoop> prefill_;
  uint64_t peers_closed_by_force_ = 0;
  uint64_t last_cached_ = 0;
  // Of the step under way: layers computed, and blocks of cached prefixes that
  // one sequence alone uses, which begins in this step.
  int32_t layers_done_ = 0;
  std::set<BlockId> cached_of_one_;
  int64_t num_evictions_ = 0;
  int64_t num_recomputed_ = 0;
  int64_t num_swapped_ = 0;
  int64_t num_brought_back_ = 0;
};

}  // namespace baton::sim
