// What all kinds of worker do around their loop: load the model, open the data
// plane, serve control and metrics, tell the parent, drain on a signal.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "baton/v1/peer.pb.h"
#include "common/metrics/metrics.h"
#include "engine/engine.h"
#include "engine/engine_factory.h"
#include "kv_transfer/handoff.h"
#include "kv_transfer/page_hasher.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/nccl/communicator.h"
#include "kv_transfer/transports/ucx/ucx_transport.h"
#include "scheduling/step_cost.h"
#include "worker/adapter_table.h"
#include "worker/control_service.h"
#include "worker/kv_blocks.h"
#include "worker/options.h"
#include "worker/role_switch.h"
#include "worker/worker_health.h"
#include "worker/worker_metrics.h"

namespace baton::worker {

// The parts that a loop is built from. They outlive it.
struct WorkerParts {
  engine::Engine* engine = nullptr;
  kv_transfer::Transport* transport = nullptr;
  // For HandoffSender::Create or HandoffReceiver::Create.
  kv_transfer::HandoffOptions handoff;
  Inbox* inbox = nullptr;
  ControlOutbox* outbox = nullptr;
  const SessionLeases* leases = nullptr;
  WorkerMetrics* metrics = nullptr;
  // What is known of steps before the first one.
  scheduling::StepCostModel step_cost;
  // Which the two loops of a dual worker share; null: the loop makes its own.
  std::shared_ptr<KvBlocks> blocks;
  // The same.
  std::shared_ptr<AdapterTable> adapters;
  // Of a dual worker; null: this one has no other side.
  RoleSwitch* roles = nullptr;
};

// A loop, as the process sees it.
class WorkerLoop {
 public:
  virtual ~WorkerLoop() = default;
  // Takes turns until drained, and calls `after_turn` after each.
  void Run(
      const std::function<void(const LoopProgress&)>& after_turn = nullptr);
  // One turn: drain inbox, plan, execute, commit, publish. With nothing to run
  // it waits up to `idle_wait` for news. False, without doing anything:
  // drained. By the thread that runs the loop.
  virtual bool Turn(absl::Duration idle_wait) = 0;
  // After a turn, by the same thread.
  virtual LoopProgress progress() const = 0;
  // From any thread.
  virtual void RequestDrain() = 0;
};

using MakeEngine = absl::StatusOr<std::unique_ptr<engine::Engine>> (*)(
    const engine::EngineOptions&);

// For --transport nccl, on the first device of the engine.
using MakeCommunicators =
    absl::StatusOr<std::unique_ptr<kv_transfer::Communicators>> (*)();
absl::StatusOr<std::unique_ptr<kv_transfer::Communicators>>
CreateDeviceCommunicators();

// From the parts of each of the program's sides.
using MakeLoop = std::function<absl::StatusOr<std::unique_ptr<WorkerLoop>>(
    const WorkerOptions&, absl::Span<const WorkerParts>)>;

// One of the worker programs.
struct WorkerProgram {
  const char* name = "";
  // What it is: one role, or prefill and decode of a dual worker. Its loop
  // waits at the inbox of the last.
  std::vector<v1::WorkerRole> roles;
  MakeLoop make_loop;
  // Tests have others.
  MakeEngine make_engine = &engine::CreateEngine;
  MakeCommunicators make_communicators = &CreateDeviceCommunicators;
  // What UCX is to take the memory of the engine's device for.
  kv_transfer::UcxMemory device_memory = kv_transfer::UcxMemory::kCuda;

  bool dual() const { return roles.size() > 1; }
};

// The memory that KV is handed over from and to, as the hand-off sees it: the
// engine's, or its stage's. `hasher`: for staged blocks on a device, else null.
kv_transfer::KvGeometry Geometry(engine::Engine* engine,
                                 kv_transfer::PageHasher* hasher = nullptr);

// Runs the program with the command line of main; returns the exit code. The
// thread that calls it runs the loop.
int RunWorker(int argc, char** argv, const WorkerProgram& program);

}  // namespace baton::worker
