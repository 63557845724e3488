// The decode worker's loop: sets blocks aside, takes KV into them, and decodes
// all its sequences together, step by step.
//
// Life of an attempt:
//   1. Reserve comes from a router: refused, or blocks for the sequence and
//      some of its output are set aside and the grant goes back. The blocks of
//      a cached prefix are shared; the grant asks for the rest.
//   2. reserved: KV arrives. Landed (complete and verified) joins the sequence
//      to the batch at the next step. A local prefill skips this.
//   3. running: a token per step, or more where guesses at them came true
//      (scheduling/drafter.h), until a stop rule: outcome ok. It gets blocks
//      as it grows; when there are none, one sequence gives its own up
//      (scheduling/preemption.h): it goes back to the router, or waits here
//      with its KV in the host's memory (swapped) and then runs again.
//   A full block enters the prefix cache once its KV is verified or computed.
//   Cancel, a router that is gone or silent (its lease ran out), a failed
//   transfer, the end of draining: the attempt is over. Its blocks are free at
//   once, or after the last receive that was posted on them has completed
//   (quarantine).
//
// Threads: Run on one thread, which then owns everything here; RequestDrain
// from any.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "decode_worker/kv_landings.h"
#include "decode_worker/swap_store.h"
#include "decode_worker/transfer_slots.h"
#include "engine/engine.h"
#include "engine/kv_copy.h"
#include "kv_transfer/handoff_receiver.h"
#include "scheduling/admission.h"
#include "scheduling/block_pool.h"
#include "scheduling/decode_scheduler.h"
#include "scheduling/preemption.h"
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

namespace baton::decode_worker {

class DecodeLoop;

// The loop for a process: opens the receiving side of the hand-off.
absl::StatusOr<std::unique_ptr<DecodeLoop>> MakeDecodeLoop(
    const worker::WorkerOptions& options, const worker::WorkerParts& parts);

// baton-decode.
worker::WorkerProgram DecodeProgram();

class DecodeLoop final : public worker::WorkerLoop {
 public:
  // The parts outlive the loop.
  DecodeLoop(const worker::WorkerOptions& options,
             const worker::WorkerParts& parts,
             std::unique_ptr<kv_transfer::HandoffReceiver> receiver,
             const Clock* clock);

  // Drained: after RequestDrain, when nothing is left or its time is over.
  bool Turn(absl::Duration idle_wait) override;

  worker::LoopProgress progress() const override {
    return {.has_work =
                scheduler_.num_running() > 0 || scheduler_.QueuedTokens() > 0,
            .steps = blocks_->steps};
  }

  // Take nothing new, finish what there is.
  void RequestDrain() override;

  // For a dual worker, whose prefill side takes its turns in between. By the
  // thread that runs the loop.
  // What the streams leave of their time for a step of the other side (0: any),
  // and blocks that they may still need.
  double SpareSeconds();
  int32_t KeptForStreams() const;
  // As PrefillLoop.
  void OtherRan() { pace_.Idle(); }
  // As Turn, also when drained: the other side may not be, and routers still
  // have to hear that this one takes nothing.
  void RunTurn(absl::Duration idle_wait);
  bool Drained() const;
  bool idle() const { return idle_; }
  bool empty() const { return attempts_.empty(); }
  // The other side's blocks: whether it holds any, which it will give back by
  // itself, and how many it waits for; newcomers do not get these.
  void SetOther(bool holds_blocks, int32_t wanted) {
    other_holds_ = holds_blocks;
    kept_for_other_ = wanted;
  }
  // Whether the other side waits for a step. Its own thread asks while a device
  // runs one, before it gives that another behind it.
  void SetOtherWaits(std::function<bool()> other_waits) {
    other_waits_ = std::move(other_waits);
  }
  // The engine has a step behind the last one: the other side has none until
  // this one's next turn.
  bool has_ahead() const { return ahead_.has_value(); }
  // The other side waits for blocks. When nothing runs here that will free
  // some, a sequence whose KV has yet to come gives its own up: two workers
  // whose prefill sides wait for blocks that their decode sides have set aside
  // for each other's prompts would else wait for ever.
  void GiveWay();

 private:
  struct Attempt {
    worker::AttemptKey key;
    worker::AttemptName name;  // for the log
    std::string error;         // why it failed
    std::unique_ptr<scheduling::Sequence> sequence;
    // Tokens that it began with, and that were sampled here.
    int32_t num_tokens = 0;
    int32_t sampled = 0;
    // Until it landed, or the attempt is over.
    std::optional<TransferId> transfer;
    absl::Time deadline;
    absl::Time reserved_at;
    // Landed, or reserved for a local prefill.
    absl::Time ready_at;
    // From the reservation on.
    std::optional<absl::Duration> landed;
    std::optional<absl::Time> first_step_at;
    // A local prefill is under way: no token has come out yet.
    bool prefilling = false;
    // Tokens of its prompt that were computed here.
    int32_t prompt_computed = 0;
    // How often the host had to draw and could not (SampledToken::again), and
    // the tokens before another step may run ahead. More each time: there are
    // sequences whose every token the host draws.
    int again = 0;
    int tokens_by_step = 0;
    // It gave its blocks up, and waits for others until then at most.
    std::optional<SwappedKv> swapped;
    absl::Time swapped_until;
    v1::Outcome outcome;
  };

  // The loop's turn.
  void DrainInbox(absl::Duration idle_wait);
  scheduling::StepPlan Plan();
  // Lets the engine guess at what streams say next, where that pays
  // (decode_loop_guesses.cc).
  void Guess(const scheduling::StepOutlook& outlook);
  // Whose KV is about to be there.
  std::vector<const scheduling::Sequence*> Coming() const;
  void Execute(const scheduling::StepPlan& plan);
  scheduling::StepResult RunStep(const scheduling::StepPlan& plan);
  // A step is done: what it cost, and what came of it.
  void Finish(const scheduling::StepPlan& plan,
              const scheduling::StepResult& result, absl::Time started);
  void Commit(const scheduling::StepPlan& plan,
              const scheduling::StepResult& result, absl::Time started);
  // How many of its guesses came true, which it is told.
  int32_t CountRight(const scheduling::PlannedSequence& planned,
                     absl::Span<const scheduling::SampledToken> tokens,
                     Attempt* attempt);
  void Publish();

  // Steps that run ahead (decode_loop_ahead.cc). While a step runs: gives the
  // engine the next one, if that can be said now.
  void PlanAhead(const scheduling::StepPlan& running);
  // What is done beside a step.
  void WhileRunning(const scheduling::StepPlan& running);
  // In the place of a turn's step.
  void ExecuteAhead();
  bool IsAhead(SequenceId sequence) const;

  void OnRouterEvent(worker::RouterEvent event);
  void OnReserve(worker::SessionId session, const v1::Reserve& reserve,
                 absl::Time received_at);
  void OnSessionGone(worker::SessionId session);
  void OnHandoffEvent(const KvLandings::Event& event);
  void OnLanded(const kv_transfer::HandoffReceiver::Landed& landed);
  void OnTransferFailed(const kv_transfer::HandoffReceiver::Failed& failed);
  void OnSampled(Attempt* attempt, const scheduling::SampledToken& token,
                 absl::Time started);

  // Blocks (decode_loop_blocks.cc). What a sequence gets when it comes or comes
  // back; what is kept for those that grow.
  int32_t BlocksToReserve(const scheduling::Sequence& sequence) const;
  int32_t KeptFree() const;
  // For a prompt that is computed here: what is stored of it comes first.
  void LoadStored(scheduling::Sequence* sequence);
  // What is left for newcomers.
  int32_t FreeForOthers() const;
  // Blocks that KV has landed in for sequences that had no step yet.
  int64_t BlocksCommitted() const;
  // Gives each running sequence a block for its next token, as far as there
  // are any, and lets those that were swapped run again.
  void GrowBlocks();
  void BringBack();
  // And room for guesses, of blocks that nobody waits for.
  void GrowForGuesses();
  // False: there is nobody to give any up.
  bool PreemptOne();
  // For a sequence that has no block to grow, when no other holds any. Behind
  // entries of the cache whose blocks it has copies of, because it was swapped
  // or came from a prefill worker, it may have entered a block of its own, and
  // so hold them, too. Whether there may be free ones now.
  bool ForgetCache(const scheduling::Sequence& alone);
  scheduling::PreemptionWay WayOf(const Attempt& attempt) const;
  void Preempt(Attempt* attempt);
  // To the router, as preempted.
  void GiveBack(Attempt* attempt, const char* why);

  // Opens the transfer of what is not cached and answers with the grant.
  // `sender`: from whom alone its KV is taken; none: anybody's.
  absl::Status Grant(Attempt* attempt, std::optional<Incarnation> sender);
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

  const worker::WorkerOptions options_;
  engine::Engine* const engine_;
  worker::Inbox* const inbox_;
  worker::WorkerMetrics* const metrics_;
  const Clock* const clock_;
  const uint64_t incarnation_;
  const std::string data_address_;
  const worker::SessionLeases* const leases_;
  worker::RoleSwitch* const roles_;
  // What a step gave is published while a device runs the next one, rather than
  // before that: publishing takes longer than all else between two steps. Not
  // where another side's step may come first: what a device has behind the step
  // is all that runs beside it then.
  const bool publishes_beside_;
  bool unpublished_ = false;  // there is something of that kind
  // A step that the engine has behind the one whose results came last. Of its
  // sequences some may be over; nothing is left of what it named of them.
  std::optional<scheduling::StepPlan> ahead_;
  absl::Time ahead_since_;

  worker::Draining draining_;

  // Of KV in the host's memory.
  std::optional<engine::HostKvCopy> host_copy_;
  SwapStore swap_store_;
  const std::shared_ptr<worker::KvBlocks> blocks_;
  scheduling::BlockPool& pool_;
  scheduling::PrefixCache& cache_;
  KvLandings landings_;
  scheduling::DecodeScheduler scheduler_;
  worker::Publisher publisher_;
  worker::PrefixFeed prefix_feed_;
  const std::shared_ptr<worker::AdapterTable> adapters_;
  worker::AdapterFeed adapter_feed_;
  worker::OutputGuides guides_;
  worker::AttemptTable<Attempt> attempts_;
  worker::Quarantine quarantine_;
  // The blocks of those of ahead_ that are over, which it may still write to.
  std::vector<scheduling::PooledBlocks> held_for_ahead_;
  TransferSlots slots_;
  // Preemptions; those of them that swapped, and that run again.
  int64_t num_preempted_ = 0;
  int64_t num_swapped_ = 0;
  int64_t num_brought_back_ = 0;
  worker::StepPace pace_;
  scheduling::StepCostModel step_cost_;
  // Of steps that guess.
  scheduling::StepCostModel draft_cost_;
  int64_t draft_steps_ = 0;
  int steps_without_guesses_ = 0;  // the last ones
  int retry_after_ = 20;           // so many of them
  // Whether the last turn found nothing to run.
  bool idle_ = true;
  // As SetOther said.
  bool other_holds_ = false;
  int32_t kept_for_other_ = 0;
  std::function<bool()> other_waits_;  // null: there is no other side

  // Audits the blocks (tests/sim).
  friend class ::baton::sim::LoopInspector;
};

}  // namespace baton::decode_worker
