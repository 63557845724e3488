#include "prefill_worker/prefill_loop.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "worker/prompt_logprobs.h"
#include "worker/sequence_spec.h"

namespace baton::prefill_worker {
namespace {

using kv_transfer::HandoffSender;
using scheduling::PlannedSequence;
using scheduling::SampledToken;
using scheduling::Sequence;
using scheduling::StepPlan;
using scheduling::StepResult;

// For the scheduler; only differences mean anything.
double ToSeconds(absl::Time now) {
  return absl::ToDoubleSeconds(now - absl::UnixEpoch());
}

}  // namespace

absl::StatusOr<std::unique_ptr<PrefillLoop>> MakePrefillLoop(
    const worker::WorkerOptions& options, const worker::WorkerParts& parts) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<HandoffSender> sender,
                         HandoffSender::Create(parts.transport, parts.handoff));
  return std::make_unique<PrefillLoop>(options, parts, std::move(sender),
                                       Clock::Monotonic());
}

worker::WorkerProgram PrefillProgram() {
  return {.name = "baton-prefill",
          .roles = {v1::WORKER_ROLE_PREFILL},
          .make_loop = [](const worker::WorkerOptions& options,
                          absl::Span<const worker::WorkerParts> parts) {
            return MakePrefillLoop(options, parts.front());
          }};
}

PrefillLoop::PrefillLoop(const worker::WorkerOptions& options,
                         const worker::WorkerParts& parts,
                         std::unique_ptr<HandoffSender> sender,
                         const Clock* clock)
    : options_(options),
      engine_(parts.engine),
      sender_(std::move(sender)),
      inbox_(parts.inbox),
      metrics_(parts.metrics),
      leases_(parts.leases),
      roles_(parts.roles),
      clock_(clock),
      draining_(absl::Seconds(options.drain_seconds)),
      blocks_(parts.blocks != nullptr ? parts.blocks
                                      : std::make_shared<worker::KvBlocks>(
                                            engine_, options.prefix_cache)),
      pool_(blocks_->pool),
      cache_(blocks_->cache),
      scheduler_({.token_budget = options.token_budget,
                  .block_size = engine_->kv_layout().block_size},
                 &pool_, &cache_, blocks_->offload.get()),
      publisher_(parts.outbox),
      prefix_feed_(&cache_, parts.outbox, blocks_->stored()),
      adapters_(parts.adapters != nullptr
                    ? parts.adapters
                    : std::make_shared<worker::AdapterTable>(engine_)),
      adapter_feed_(adapters_.get(), parts.outbox),
      guides_(engine_->model().vocab_size),
      pairings_(sender_.get(), &publisher_, metrics_),
      sends_(sender_.get(), engine_, blocks_.get()),
      step_cost_(parts.step_cost) {
  CHECK(leases_ != nullptr);
  adapters_->AddUser(
      [this](int32_t adapter) { return attempts_.Uses(adapter); });
}

bool PrefillLoop::Turn(absl::Duration idle_wait) {
  if (Drained()) return false;
  adapters_->Update();
  DrainInbox(std::min(idle_wait, until_grant_));
  until_grant_ = UntilGrant();
  if (until_grant_ == absl::InfiniteDuration()) {
    RunStep();
  } else {
    idle_ = true;
    pace_.Idle();
    Publish();
  }
  return true;
}

void PrefillLoop::RunTurn(absl::Duration idle_wait) {
  adapters_->Update();
  DrainInbox(idle_wait);
  RunStep();
}

void PrefillLoop::RunStep() {
  const StepPlan plan = scheduler_.Plan({.now = ToSeconds(clock_->Now()),
                                         .cost = step_cost_.cost(),
                                         .most_seconds = most_seconds_,
                                         .blocks_kept = blocks_kept_});
  idle_ = plan.sequences.empty();
  if (idle_) {
    pace_.Idle();
  } else {
    Execute(plan);
  }
  Publish();
}

void PrefillLoop::RunTurnWithoutStep() {
  DrainInbox(absl::ZeroDuration());
  idle_ = true;
  Publish();
}

bool PrefillLoop::WantsStep() const {
  return inbox_->size() > 0 || scheduler_.num_waiting() > 0;
}

void PrefillLoop::RequestDrain() {
  draining_.Request();
  inbox_->Wake();
}

bool PrefillLoop::HoldsBlocks() const {
  const std::vector<Attempt*> all = attempts_.All();
  return quarantine_.num_blocks() > 0 ||
         std::any_of(all.begin(), all.end(), [](const Attempt* attempt) {
           return attempt->sequence->blocks().size() > 0;
         });
}

bool PrefillLoop::Drained() const {
  return draining_.requested() && attempts_.empty();
}

void PrefillLoop::DrainInbox(absl::Duration idle_wait) {
  for (worker::RouterEvent& event :
       inbox_->DrainFor(idle_ ? idle_wait : absl::ZeroDuration())) {
    OnRouterEvent(std::move(event));
  }
  for (const HandoffSender::Event& event : sender_->Poll()) {
    OnHandoffEvent(event);
  }
  sends_.Poll();
  blocks_->Poll();
  StartWaitingTransfers();
  CheckDeadlines();
  if (draining_.IsOver(clock_->Now())) HandBack();
}

void PrefillLoop::OnRouterEvent(worker::RouterEvent event) {
  if (event.kind == worker::RouterEvent::Kind::kGone) {
    OnSessionGone(event.session);
    return;
  }
  switch (event.message.kind_case()) {
    case v1::RouterMessage::kHello:
      prefix_feed_.AddRouter(event.session);
      adapter_feed_.AddRouter(event.session);
      publisher_.ReportSoon();
      LOG(INFO) << "router " << event.message.hello().router_name()
                << " connected";
      return;
    case v1::RouterMessage::kPrefill:
      OnPrefill(event.session, event.message.prefill(), event.received_at);
      return;
    case v1::RouterMessage::kGrant:
      OnGrant(event.session, event.message.grant(), event.received_at);
      return;
    case v1::RouterMessage::kPair:
      pairings_.Add(event.session, event.message.pair());
      return;
    case v1::RouterMessage::kCancel:
      OnCancel(event.session, event.message.cancel());
      return;
    case v1::RouterMessage::kReserve:
      publisher_.AddRefusal({event.session, event.message.reserve().attempt()},
                            v1::REFUSAL_REASON_INVALID,
                            "a prefill worker takes no reservations");
      return;
    case v1::RouterMessage::kVocabulary:
      guides_.SetVocabulary(event.session, std::move(event.vocabulary));
      return;
    case v1::RouterMessage::kSetRole:
      worker::TakeSetRole(event.message.set_role(), roles_);
      return;
    case v1::RouterMessage::kHeartbeat:
      return;  // has renewed the lease already
    case v1::RouterMessage::KIND_NOT_SET:
      LOG(WARNING) << "a router sent a message of an unknown kind";
      return;
  }
}

scheduling::WorkerCapacity PrefillLoop::Capacity() const {
  scheduling::WorkerCapacity capacity;
  capacity.total_blocks = pool_.size();
  capacity.free_blocks = pool_.num_available();
  capacity.max_sequences = options_.max_sequences;
  capacity.num_sequences = attempts_.size();
  capacity.max_context = engine_->model().max_position;
  capacity.draining = draining_.requested();
  capacity.max_queued_tokens = options_.max_queued_tokens;
  capacity.queued_tokens = scheduler_.QueuedTokens();
  return capacity;
}

void PrefillLoop::OnPrefill(worker::SessionId session,
                            const v1::Prefill& prefill,
                            absl::Time received_at) {
  const worker::AttemptKey key{session, prefill.attempt()};
  if (attempts_.Find(key) != nullptr) {
    LOG(ERROR) << "attempt " << key.attempt << " was assigned twice";
    return;
  }
  absl::StatusOr<std::unique_ptr<Sequence>> sequence =
      worker::MakeSequence(blocks_->NextSequence(), prefill.sequence(),
                           engine_->model().vocab_size, adapters_->infos());
  if (!sequence.ok()) {
    publisher_.AddRefusal(key, worker::RefusalOf(sequence.status()),
                          std::string(sequence.status().message()));
    return;
  }
  const int32_t tokens = (*sequence)->num_tokens();
  const scheduling::AdmissionVerdict verdict = scheduling::AdmitPrefill(
      Capacity(), engine_->kv_layout().BlocksFor(tokens), tokens);
  if (verdict != scheduling::AdmissionVerdict::kAdmit) {
    publisher_.AddRefusal(key, worker::ToWire(verdict),
                          absl::StrCat("prefill worker ", options_.name, ": ",
                                       AdmissionVerdictName(verdict)));
    return;
  }
  // Once there is room for it: this may take a while.
  const absl::Status guided =
      guides_.Guide(session, prefill.sequence(), sequence->get());
  if (!guided.ok()) {
    publisher_.AddRefusal(key, v1::REFUSAL_REASON_INVALID,
                          std::string(guided.message()),
                          absl::IsInvalidArgument(guided));
    return;
  }
  auto attempt = std::make_unique<Attempt>();
  attempt->key = key;
  attempt->name = worker::MakeAttemptName(prefill.sequence(), key.attempt);
  attempt->sequence = *std::move(sequence);
  attempt->num_tokens = tokens;
  attempt->assigned = std::min(clock_->Now(), received_at);
  attempt->deadline = worker::DeadlineOf(prefill.sequence(), attempt->assigned);
  const double now = ToSeconds(attempt->assigned);
  scheduler_.Add(attempts_.Add(std::move(attempt))->sequence.get(), now);
}

void PrefillLoop::OnCancel(worker::SessionId session,
                           const v1::Cancel& cancel) {
  Attempt* attempt = attempts_.Find({session, cancel.attempt()});
  if (attempt == nullptr) return;
  if (cancel.abandoned()) CountWasted(*attempt);
  End(attempt);
}

void PrefillLoop::OnSessionGone(worker::SessionId session) {
  prefix_feed_.RemoveRouter(session);
  guides_.Forget(session);
  pairings_.OnSessionGone(session);
  for (Attempt* attempt : attempts_.All()) {
    if (attempt->key.session == session) End(attempt);
  }
}

void PrefillLoop::Execute(const StepPlan& plan) {
  const absl::Time started = clock_->Now();
  sends_.BeginStep(PrepareSends(plan, started));
  const StepResult result =
      engine_->Execute(plan, [this](int32_t layer) { sends_.OnLayer(layer); });
  ++blocks_->steps;
  metrics_->CountStep(result);
  const absl::Time ended = clock_->Now();
  const double seconds = absl::ToDoubleSeconds(ended - started);
  metrics_->step_seconds->Observe(seconds);
  const double took = pace_.Step(started, ended);
  // Few steps have targets, which cost something besides.
  if (!plan.HasTargets()) step_cost_.Observe(scheduling::ShapeOf(plan), took);
  metrics_->step_prediction_error->Set(step_cost_.error());
  metrics_->step_tokens->Observe(static_cast<double>(plan.NumTokens()));
  metrics_->prompt_tokens->Increment(static_cast<double>(plan.NumTokens()));
  Commit(plan, result);
}

void PrefillLoop::Commit(const StepPlan& plan, const StepResult& result) {
  for (const PlannedSequence& planned : plan.sequences) {
    Sequence* sequence = attempts_.Find(planned.sequence)->sequence.get();
    sequence->CommitComputed(static_cast<int32_t>(planned.tokens.size()));
    cache_.Insert(sequence);
  }
  for (Attempt* attempt :
       worker::TellPromptLogprobs(plan, result, attempts_, &publisher_)) {
    FailNotFinite(attempt);
  }
  for (const SampledToken& token : result.sampled) {
    Attempt* const attempt = attempts_.Find(token.sequence);
    if (attempt != nullptr) OnSampled(attempt, token);
  }
  for (const auto& [sequence, status] : failed_starts_) {
    if (Attempt* attempt = attempts_.Find(sequence)) {
      Fail(attempt, std::string(status.message()), /*retryable=*/true,
           v1::FAILURE_KIND_TRANSFER);
    }
  }
  failed_starts_.clear();
}

void PrefillLoop::OnSampled(Attempt* attempt, const SampledToken& token) {
  Sequence& sequence = *attempt->sequence;
  scheduler_.Remove(sequence.id());
  if (!token.ok) {
    FailNotFinite(attempt);
    return;
  }
  worker::CommitSampled(token.token, &sequence, metrics_->guide_seconds);
  if (!sequence.guide_status().ok()) {
    Fail(attempt, std::string(sequence.guide_status().message()),
         /*retryable=*/false, v1::FAILURE_KIND_REQUEST);
    return;
  }
  metrics_->generation_tokens->Increment();
  publisher_.AddToken(attempt->key, sequence.num_output() - 1, token,
                      sequence.finished());
  attempt->outcome.set_queue_seconds(
      absl::ToDoubleSeconds(attempt->started - attempt->assigned));
  attempt->outcome.set_prefill_seconds(
      absl::ToDoubleSeconds(clock_->Now() - attempt->started));
  publisher_.AddPromptReport(attempt->key, attempt->outcome);
  if (sequence.finished().has_value()) {
    attempt->outcome.set_ok(true);
    publisher_.AddOutcome(attempt->key, attempt->outcome);
    End(attempt);
    return;
  }
  kv_transfer::CommitRecord record;
  record.first_token = token.token;
  record.next_token_index = static_cast<uint32_t>(sequence.num_output());
  record.num_tokens = static_cast<uint32_t>(attempt->num_tokens);
  attempt->commit = record;
  attempt->computed_at = clock_->Now();
  if (attempt->transfer.has_value()) {
    sends_.Commit(*attempt->transfer, record, attempt->computed_at);
  }
}

void PrefillLoop::Fail(Attempt* attempt, const std::string& error,
                       bool retryable, v1::FailureKind kind) {
  attempt->error = error;
  publisher_.AddFailure(attempt->key, error, retryable, kind);
  End(attempt);
}

void PrefillLoop::FailNotFinite(Attempt* attempt) {
  Fail(attempt, "the model's logits are not finite", /*retryable=*/false);
  blocks_->ClearPrefixes();  // for all one knows, it comes from there
}

void PrefillLoop::End(Attempt* attempt) {
  const Sequence& sequence = *attempt->sequence;
  worker::LogAttemptEnd("prefill", attempt->name,
                        {.outcome = attempt->outcome,
                         .error = attempt->error,
                         .tokens = attempt->num_tokens,
                         .sampled = sequence.num_tokens() - attempt->num_tokens,
                         .total = clock_->Now() - attempt->assigned});
  scheduler_.Remove(attempt->sequence->id());
  blocks_->Leave(attempt->sequence.get(), /*keep=*/true);
  if (attempt->waiting_grant.has_value()) {
    sends_.Forget(TransferId{attempt->waiting_grant->transfer_id()});
  }
  if (attempt->transfer.has_value()) {
    // No-op after an acknowledgement; Quiesced follows either way.
    sender_->Abort(*attempt->transfer);
    quarantine_.Hold(*attempt->transfer,
                     std::move(attempt->sequence->blocks()));
  }
  attempts_.Remove(attempt);
}

void PrefillLoop::CheckDeadlines() {
  const absl::Time now = clock_->Now();
  for (Attempt* attempt : attempts_.All()) {
    if (now >= attempt->deadline) {
      CountWasted(*attempt);
      Fail(attempt, "the deadline passed on the prefill worker",
           /*retryable=*/false);
    } else if (now >= leases_->Until(attempt->key.session)) {
      if (!attempt->transfer.has_value()) metrics_->lease_expired->Increment();
      Fail(attempt, "the router is silent", /*retryable=*/true);
    }
  }
}

void PrefillLoop::CountWasted(const Attempt& attempt) {
  const Sequence& sequence = *attempt.sequence;
  // What the cache has of a prompt counts as computed once it has its blocks.
  metrics_->CountWasted(std::max(0, sequence.computed() - sequence.cached()),
                        sequence.num_tokens() - attempt.num_tokens);
}

void PrefillLoop::HandBack() {
  for (Attempt* attempt : attempts_.All()) {
    Fail(attempt,
         absl::StrCat("prefill worker ", options_.name, " is draining"),
         /*retryable=*/true, v1::FAILURE_KIND_DRAINING);
  }
}

void PrefillLoop::Publish() {
  const int computing = scheduler_.num_waiting();
  int running = 0;
  for (Attempt* attempt : attempts_.All()) {
    if (attempt->sequence->blocks().size() > 0) ++running;
  }
  const int waiting = attempts_.size() - running;
  metrics_->Observe(*blocks_, running, waiting, quarantine_.num_blocks());
  metrics_->ObserveHandoff(sender_->stats());
  metrics_->prompt_tokens_waiting->Set(
      static_cast<double>(scheduler_.QueuedTokens()));

  v1::LoadReport load;
  load.set_running(static_cast<uint32_t>(attempts_.size() - computing));
  load.set_waiting(static_cast<uint32_t>(computing));
  load.set_free_blocks(static_cast<uint32_t>(pool_.num_available()));
  load.set_queued_tokens(static_cast<uint64_t>(scheduler_.QueuedTokens()));
  load.set_steps(blocks_->steps);
  load.set_draining(draining_.requested());
  if (roles_ != nullptr) {
    load.set_standby(roles_->standby(v1::WORKER_ROLE_PREFILL));
    load.set_role(roles_->role());
  }
  worker::SetStepCost(step_cost_.cost(), &load);
  publisher_.Flush(clock_->Now(), load);
  prefix_feed_.Flush(clock_->Now());
  adapter_feed_.Flush();
}

}  // namespace baton::prefill_worker
