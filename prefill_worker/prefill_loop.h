// The prefill worker's loop: computes prompts in chunks, sends their KV to the
// decode workers while it computes, and samples each first token.
//
// Life of an attempt:
//   1. Prefill comes from a router: admitted and queued, or refused.
//   2. computing: what is cached of its prompt is there at once, the rest comes
//      chunk by chunk and enters the cache as soon. Grant comes at any time,
//      before, during or after; from then on each layer of each finished block
//      goes out, a cached prefix before anything is computed.
//   3. The last chunk samples the first token, which goes to the router at
//      once. When it ends the request, the attempt is over: outcome ok.
//   4. handing off: commit, once the grant is there. The decode worker's
//      acknowledgement ends the attempt: outcome ok.
//   Cancel, a router that is gone, a failed transfer, a grant that never comes:
//   the attempt is over; what was sent in vain is the receiver's to drop.
// When an attempt is over its blocks are free at once, or as soon as the
// transport has let go of them (quarantine).
//
// Threads: Run on one thread, which then owns everything here; RequestDrain
// from any.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "kv_transfer/handoff_sender.h"
#include "prefill_worker/grant_wait.h"
#include "prefill_worker/kv_sends.h"
#include "prefill_worker/pairings.h"
#include "scheduling/block_pool.h"
#include "scheduling/prefill_scheduler.h"
#include "scheduling/prefix_cache.h"
#include "scheduling/sequence.h"
#include "scheduling/step_cost.h"
#include "worker/adapter_table.h"
#include "worker/attempt_report.h"
#include "worker/attempt_table.h"
#include "worker/control_service.h"
#include "worker/draining.h"
#include "worker/kv_blocks.h"
#include "worker/options.h"
#include "worker/output_guides.h"
#include "worker/prefix_feed.h"
#include "worker/publisher.h"
#include "worker/quarantine.h"
#include "worker/role_switch.h"
#include "worker/step_pace.h"
#include "worker/worker_metrics.h"
#include "worker/worker_process.h"

namespace baton::sim {
class LoopInspector;
}

namespace baton::prefill_worker {

class PrefillLoop;

// The loop for a process: opens the sending side of the hand-off.
absl::StatusOr<std::unique_ptr<PrefillLoop>> MakePrefillLoop(
    const worker::WorkerOptions& options, const worker::WorkerParts& parts);

// baton-prefill.
worker::WorkerProgram PrefillProgram();

class PrefillLoop final : public worker::WorkerLoop {
 public:
  // The parts outlive the loop.
  PrefillLoop(const worker::WorkerOptions& options,
              const worker::WorkerParts& parts,
              std::unique_ptr<kv_transfer::HandoffSender> sender,
              const Clock* clock);

  // Drained: after RequestDrain, when nothing is left or its time is over.
  bool Turn(absl::Duration idle_wait) override;

  // What it has computed waits for decode workers and links, which may take
  // longer: only prompts count, as for routers.
  worker::LoopProgress progress() const override {
    return {.has_work = scheduler_.QueuedTokens() > 0, .steps = blocks_->steps};
  }

  // Take nothing new, finish what there is.
  void RequestDrain() override;

  // For a dual worker, whose decode side takes its turns in between. By the
  // thread that runs the loop.
  // Of the streams there: the time for the next step (0: any), and the blocks
  // to leave free.
  void MakeWayFor(double most_seconds, int32_t blocks_kept) {
    most_seconds_ = most_seconds;
    blocks_kept_ = blocks_kept;
  }
  // The other side ran a step: time between two of this one's is none of their
  // cost.
  void OtherRan() { pace_.Idle(); }
  // As Turn, also when drained: the other side may not be, and routers still
  // have to hear that this one takes nothing.
  void RunTurn(absl::Duration idle_wait);
  // As RunTurn, without a step: the device has one of the other side.
  void RunTurnWithoutStep();
  // Whether there is a prompt, or news that may bring one.
  bool WantsStep() const;
  bool Drained() const;
  // Whether the last turn found nothing to run; whether there is no attempt.
  bool idle() const { return idle_; }
  bool empty() const { return attempts_.empty(); }
  // Blocks for a prompt that could not start for want of them; 0: none waits.
  int32_t blocks_wanted() const { return scheduler_.blocks_wanted(); }
  // Whether any are held here, which will be free by themselves.
  bool HoldsBlocks() const;

 private:
  struct Attempt {
    worker::AttemptKey key;
    worker::AttemptName name;  // for the log
    std::string error;         // why it failed
    std::unique_ptr<scheduling::Sequence> sequence;
    // Tokens whose KV is handed over: all but the one that is sampled here.
    int32_t num_tokens = 0;
    // A grant that came before the sequence had blocks, while its transfer's
    // name is still that of an earlier transfer which is not quiet, or while
    // too few staged blocks are free.
    std::optional<v1::Grant> waiting_grant;
    std::optional<TransferId> transfer;
    // Set when the first token is sampled and the hand-off has to follow.
    std::optional<kv_transfer::CommitRecord> commit;
    absl::Time computed_at;  // then
    absl::Time assigned;
    absl::Time started = absl::InfiniteFuture();
    absl::Time deadline;
    v1::Outcome outcome;
  };

  // The loop's turn.
  void DrainInbox(absl::Duration idle_wait);
  void RunStep();
  void Execute(const scheduling::StepPlan& plan);
  void Commit(const scheduling::StepPlan& plan,
              const scheduling::StepResult& result);
  void Publish();

  void OnRouterEvent(worker::RouterEvent event);
  void OnPrefill(worker::SessionId session, const v1::Prefill& prefill,
                 absl::Time received_at);
  void OnGrant(worker::SessionId session, const v1::Grant& grant,
               absl::Time received_at);
  void OnCancel(worker::SessionId session, const v1::Cancel& cancel);
  void OnSessionGone(worker::SessionId session);
  void OnHandoffEvent(const kv_transfer::HandoffSender::Event& event);
  void OnAcked(const kv_transfer::HandoffSender::Acked& acked);
  void OnTransferFailed(const kv_transfer::HandoffSender::Failed& failed);
  void OnSampled(Attempt* attempt, const scheduling::SampledToken& token);

  // Hand-offs (prefill_loop_handoff.cc). How long the next step waits for a
  // grant (grant_wait.h); infinite: it does not.
  absl::Duration UntilGrant() const;
  // Begins the one that a grant waits for, and sends what is computed already.
  // OK when it has to wait on.
  absl::Status StartTransfer(Attempt* attempt);
  void StartWaitingTransfers();

  // Ends the attempt and tells the router why it failed.
  void Fail(Attempt* attempt, const std::string& error, bool retryable,
            v1::FailureKind kind = v1::FAILURE_KIND_UNSPECIFIED);
  void FailNotFinite(Attempt* attempt);
  // Ends the attempt; the caller has said what there was to say.
  void End(Attempt* attempt);
  // Nobody wants what it computed.
  void CountWasted(const Attempt& attempt);
  // Ends what has run out of time, or whose router is silent.
  void CheckDeadlines();
  // The time to drain is over: gives back to the routers what still runs.
  void HandBack();
  scheduling::WorkerCapacity Capacity() const;
  // Blocks whose KV is final when `computed` tokens are done: the full ones,
  // and the last one too when that is all.
  int32_t BlocksReady(const Attempt& attempt, int32_t computed) const;
  // The transfers that this step has news for, with their blocks ready after
  // it. Sequences that start are counted; transfers whose grant waited for
  // blocks begin, and send what is cached.
  std::vector<KvSends::Ready> PrepareSends(const scheduling::StepPlan& plan,
                                           absl::Time now);

  const worker::WorkerOptions options_;
  engine::Engine* const engine_;
  const std::unique_ptr<kv_transfer::HandoffSender> sender_;
  worker::Inbox* const inbox_;
  worker::WorkerMetrics* const metrics_;
  const worker::SessionLeases* const leases_;
  worker::RoleSwitch* const roles_;
  const Clock* const clock_;

  worker::Draining draining_;

  const std::shared_ptr<worker::KvBlocks> blocks_;
  scheduling::BlockPool& pool_;
  scheduling::PrefixCache& cache_;
  scheduling::PrefillScheduler scheduler_;
  worker::Publisher publisher_;
  worker::PrefixFeed prefix_feed_;
  const std::shared_ptr<worker::AdapterTable> adapters_;
  worker::AdapterFeed adapter_feed_;
  worker::OutputGuides guides_;
  Pairings pairings_;
  KvSends sends_;
  worker::AttemptTable<Attempt> attempts_;
  worker::Quarantine quarantine_;
  worker::StepPace pace_;
  scheduling::StepCostModel step_cost_;
  GrantWait grant_wait_;
  // As UntilGrant said in the last turn.
  absl::Duration until_grant_ = absl::InfiniteDuration();
  // Attempts whose hand-off could not begin in the step under way, and why.
  std::vector<std::pair<SequenceId, absl::Status>> failed_starts_;
  // Whether the last turn found nothing to run.
  bool idle_ = true;
  // As MakeWayFor said.
  double most_seconds_ = 0;
  int32_t blocks_kept_ = 0;

  // Audits the blocks (tests/sim).
  friend class ::baton::sim::LoopInspector;
};

}  // namespace baton::prefill_worker
