// One life of one worker: the real loop, hand-off, schedulers and block pool on
// a simulated engine and simulated networks. A worker that comes back is
// another one of these, at the same addresses.
//
// One thread.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "baton/v1/peer.pb.h"
#include "decode_worker/decode_loop.h"
#include "dual_worker/dual_loop.h"
#include "prefill_worker/prefill_loop.h"
#include "tests/sim/invariants.h"
#include "tests/sim/loop_inspector.h"
#include "tests/sim/sim_engine.h"
#include "tests/sim/world.h"
#include "worker/kv_blocks.h"
#include "worker/role_switch.h"

namespace baton::sim {

class SimWorker final {
 public:
  struct Place {
    int party = 0;
    v1::WorkerRole role = v1::WORKER_ROLE_DECODE;
    // Both roles; `role` is of no meaning.
    bool dual = false;
    std::string name;
    std::string address;       // control; of a dual one's decode side
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
  // Nothing goes wrong any more of what it has for itself.
  void BeWell();
  // To the role that it has not. REQUIRES: it is dual.
  void ChangeRole();

  const std::string& name() const { return place_.name; }
  // Of both sides together.
  LoopView View() const;
  // What its prefix cache has, and what is stored besides.
  std::vector<const scheduling::PrefixCache*> Prefixes() const;
  void Check();
  void CheckNothingIsLeft() const;

 private:
  // What it has of each of its roles.
  struct Side {
    Side(size_t inbox_capacity, const Clock* clock)
        : inbox(inbox_capacity), leases(clock) {}

    worker::Inbox inbox;
    worker::SessionLeases leases;
    std::unique_ptr<kv_transfer::Transport> transport;
    std::unique_ptr<ControlNetwork::Server> server;
    worker::WorkerParts parts;
  };

  bool Is(v1::WorkerRole role) const {
    return place_.dual || place_.role == role;
  }
  void MakeBlocks(const worker::WorkerOptions& options,
                  const ClusterPlan& plan);
  // Makes the side, behind those that there are.
  void AddSide(v1::WorkerRole role, const worker::WorkerOptions& options,
               const ClusterPlan& plan, uint64_t process);
  void CheckStep(const scheduling::StepPlan& plan);
  void CheckAhead(const scheduling::StepPlan& plan);
  // Counts sequences that begin behind a cached prefix, and those of which it
  // goes out before the rest is computed.
  void NoteHits(const LoopView& view, const scheduling::StepPlan& plan);
  void NotePreemptions(const LoopView& view);
  void NoteOffload();
  // What the world does between two layers of a step.
  void Interlude();
  // Of the engine's own memory; of the data plane's, where that is another.
  KvInUse InUse();
  KvInUse DataPlaneInUse();
  void MakeLoop(const worker::WorkerOptions& options);

  const Place place_;
  World* const world_;
  SimEngine engine_;
  // Of a dual one, or one with an offload, of which the store is.
  std::shared_ptr<worker::KvBlocks> blocks_;
  SimStore* store_ = nullptr;
  std::optional<worker::RoleSwitch> roles_;
  std::vector<std::unique_ptr<Side>> sides_;
  // Has one of those below, or both.
  std::unique_ptr<worker::WorkerLoop> loop_;
  prefill_worker::PrefillLoop* prefill_ = nullptr;
  decode_worker::DecodeLoop* decode_ = nullptr;
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
  bool found_stored_ = false;  // of an earlier life
  worker::KvOffload::Stats offload_stats_;
};

// Where a dual worker's prefill side is.
std::string PrefillAddress(const SimWorker::Place& dual);

}  // namespace baton::sim
