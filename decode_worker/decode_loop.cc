#include "decode_worker/decode_loop.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "worker/prompt_logprobs.h"
#include "worker/sequence_spec.h"

namespace baton::decode_worker {
namespace {

using kv_transfer::HandoffReceiver;
using scheduling::PlannedSequence;
using scheduling::SampledToken;
using scheduling::Sequence;
using scheduling::StepPlan;
using scheduling::StepResult;

// For the scheduler; only differences mean anything.
double ToSeconds(absl::Time now) {
  return absl::ToDoubleSeconds(now - absl::UnixEpoch());
}

// How swapped sequences come to the host: the stage's way, or one that is made
// here.
engine::KvCopy* CopyOf(engine::Engine* engine,
                       std::optional<engine::HostKvCopy>* host) {
  if (engine->kv_stage() != nullptr) return &engine->kv_stage()->copy();
  return &host->emplace(engine->kv_layout(), engine->kv_memory());
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeLoop>> MakeDecodeLoop(
    const worker::WorkerOptions& options, const worker::WorkerParts& parts) {
  BATON_ASSIGN_OR_RETURN(
      std::unique_ptr<HandoffReceiver> receiver,
      HandoffReceiver::Create(parts.transport, parts.handoff));
  return std::make_unique<DecodeLoop>(options, parts, std::move(receiver),
                                      Clock::Monotonic());
}

worker::WorkerProgram DecodeProgram() {
  return {.name = "baton-decode",
          .roles = {v1::WORKER_ROLE_DECODE},
          .make_loop = [](const worker::WorkerOptions& options,
                          absl::Span<const worker::WorkerParts> parts) {
            return MakeDecodeLoop(options, parts.front());
          }};
}

DecodeLoop::DecodeLoop(const worker::WorkerOptions& options,
                       const worker::WorkerParts& parts,
                       std::unique_ptr<HandoffReceiver> receiver,
                       const Clock* clock)
    : options_(options),
      engine_(parts.engine),
      inbox_(parts.inbox),
      metrics_(parts.metrics),
      clock_(clock),
      incarnation_(parts.handoff.self.incarnation()),
      data_address_(parts.transport->properties().address),
      leases_(parts.leases),
      roles_(parts.roles),
      publishes_beside_(engine_->runs_on_device() && roles_ == nullptr),
      draining_(absl::Seconds(options.drain_seconds)),
      swap_store_(options.swap_memory_bytes, engine_->kv_layout(),
                  CopyOf(engine_, &host_copy_), clock),
      blocks_(parts.blocks != nullptr ? parts.blocks
                                      : std::make_shared<worker::KvBlocks>(
                                            engine_, options.prefix_cache)),
      pool_(blocks_->pool),
      cache_(blocks_->cache),
      landings_(std::move(receiver), engine_, blocks_.get()),
      scheduler_(
          {.token_budget = options.token_budget,
           .block_size = engine_->kv_layout().block_size,
           .itl_target_seconds = options.itl_target_ms / 1e3,
           .max_drafts = std::min(options.draft_tokens, engine_->max_drafts()),
           .always_drafts = options.draft_always}),
      publisher_(parts.outbox),
      prefix_feed_(&cache_, parts.outbox, blocks_->stored()),
      adapters_(parts.adapters != nullptr
                    ? parts.adapters
                    : std::make_shared<worker::AdapterTable>(engine_)),
      adapter_feed_(adapters_.get(), parts.outbox),
      guides_(engine_->model().vocab_size),
      slots_(incarnation_, parts.handoff.max_transfers),
      step_cost_(parts.step_cost) {
  CHECK(leases_ != nullptr);
  adapters_->AddUser(
      [this](int32_t adapter) { return attempts_.Uses(adapter); });
}

bool DecodeLoop::Turn(absl::Duration idle_wait) {
  if (Drained()) {
    if (unpublished_) Publish();
    return false;
  }
  RunTurn(idle_wait);
  return true;
}

void DecodeLoop::RunTurn(absl::Duration idle_wait) {
  // A step that the device has may have sequences that are over.
  if (!has_ahead()) adapters_->Update();
  DrainInbox(idle_wait);
  if (ahead_.has_value()) {
    ExecuteAhead();
  } else {
    GrowBlocks();
    const StepPlan plan = Plan();
    idle_ = plan.sequences.empty();
    if (idle_) {
      pace_.Idle();
    } else {
      Execute(plan);
    }
  }
  if (idle_ || !publishes_beside_) Publish();
}

StepPlan DecodeLoop::Plan() {
  const std::vector<const Sequence*> coming = Coming();
  const scheduling::StepOutlook outlook = {
      .now = ToSeconds(clock_->Now()),
      .cost = step_cost_.cost(),
      .coming = coming,
      .other_waits = other_waits_ && other_waits_()};
  if (options_.draft_tokens > 0 && engine_->has_draft_weights()) {
    Guess(outlook);
  }
  return scheduler_.Plan(outlook);
}

double DecodeLoop::SpareSeconds() {
  const std::vector<const Sequence*> coming = Coming();
  return scheduler_.SpareSeconds({.now = ToSeconds(clock_->Now()),
                                  .cost = step_cost_.cost(),
                                  .coming = coming});
}

std::vector<const Sequence*> DecodeLoop::Coming() const {
  std::vector<const Sequence*> coming;
  for (const TransferId transfer : landings_.NearEnd()) {
    const Attempt* attempt = attempts_.Find(transfer);
    if (attempt != nullptr) coming.push_back(attempt->sequence.get());
  }
  return coming;
}

void DecodeLoop::RequestDrain() {
  draining_.Request();
  inbox_->Wake();
}

bool DecodeLoop::Drained() const {
  return draining_.requested() && attempts_.empty() && !ahead_.has_value();
}

void DecodeLoop::DrainInbox(absl::Duration idle_wait) {
  for (worker::RouterEvent& event :
       inbox_->DrainFor(idle_ ? idle_wait : absl::ZeroDuration())) {
    OnRouterEvent(std::move(event));
  }
  for (const KvLandings::Event& event : landings_.Poll()) {
    OnHandoffEvent(event);
  }
  blocks_->Poll();
  CheckDeadlines();
  if (draining_.IsOver(clock_->Now())) HandBack();
}

void DecodeLoop::OnRouterEvent(worker::RouterEvent event) {
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
    case v1::RouterMessage::kReserve:
      OnReserve(event.session, event.message.reserve(), event.received_at);
      return;
    case v1::RouterMessage::kCancel:
      if (Attempt* attempt = attempts_.Find(worker::AttemptKey{
              event.session, event.message.cancel().attempt()})) {
        if (event.message.cancel().abandoned()) CountWasted(*attempt);
        End(attempt);
      }
      return;
    case v1::RouterMessage::kPrefill:
      publisher_.AddRefusal({event.session, event.message.prefill().attempt()},
                            v1::REFUSAL_REASON_INVALID,
                            "a decode worker takes reservations");
      return;
    case v1::RouterMessage::kVocabulary:
      guides_.SetVocabulary(event.session, std::move(event.vocabulary));
      return;
    case v1::RouterMessage::kSetRole:
      worker::TakeSetRole(event.message.set_role(), roles_);
      return;
    case v1::RouterMessage::kHeartbeat:
      return;  // has renewed the lease already
    case v1::RouterMessage::kGrant:
    case v1::RouterMessage::kPair:
    case v1::RouterMessage::KIND_NOT_SET:
      LOG(WARNING) << "a router sent a message that is not for decode workers";
      return;
  }
}

scheduling::WorkerCapacity DecodeLoop::Capacity() const {
  scheduling::WorkerCapacity capacity;
  capacity.total_blocks = pool_.size();
  capacity.free_blocks = pool_.num_available();
  capacity.max_sequences = options_.max_sequences;
  capacity.num_sequences = attempts_.size();
  capacity.max_context = engine_->model().max_position;
  capacity.draining = draining_.requested();
  capacity.kept_free = KeptFree() + kept_for_other_;
  capacity.others_wait = swap_store_.num_sequences() > 0;
  return capacity;
}

void DecodeLoop::OnReserve(worker::SessionId session,
                           const v1::Reserve& reserve, absl::Time received_at) {
  const worker::AttemptKey key{session, reserve.attempt()};
  if (attempts_.Find(key) != nullptr) {
    LOG(ERROR) << "attempt " << key.attempt << " was assigned twice";
    return;
  }
  absl::StatusOr<std::unique_ptr<Sequence>> sequence =
      worker::MakeSequence(blocks_->NextSequence(), reserve.sequence(),
                           engine_->model().vocab_size, adapters_->infos());
  if (!sequence.ok()) {
    publisher_.AddRefusal(key, worker::RefusalOf(sequence.status()),
                          std::string(sequence.status().message()));
    return;
  }
  if (!reserve.local_prefill() && reserve.sequence().has_prompt_logprobs()) {
    publisher_.AddRefusal(key, v1::REFUSAL_REASON_INVALID,
                          "sequence.prompt_logprobs is of a prompt that is "
                          "computed elsewhere");
    return;
  }
  const int32_t max_tokens = (*sequence)->MaxComputed();
  const int32_t blocks = BlocksToReserve(**sequence);
  const int32_t tokens = (*sequence)->num_tokens();
  scheduling::PooledBlocks held =
      cache_.Match(sequence->get(),
                   reserve.local_prefill() ? (*sequence)->MaxCached() : tokens);
  const scheduling::AdmissionVerdict verdict = scheduling::AdmitReservation(
      Capacity(), {.blocks = blocks,
                   .cached_blocks = held.size(),
                   .most_blocks = engine_->kv_layout().BlocksFor(max_tokens),
                   .most_tokens = max_tokens});
  if (verdict != scheduling::AdmissionVerdict::kAdmit) {
    publisher_.AddRefusal(
        key, worker::ToWire(verdict),
        absl::StrCat("decode worker ", options_.name, ": ",
                     AdmissionVerdictName(verdict), " (", blocks - held.size(),
                     " blocks needed, ", pool_.num_available(), " free of ",
                     pool_.size(), ")"));
    return;
  }
  // Once there is room for it: this may take a while.
  const absl::Status guided =
      guides_.Guide(session, reserve.sequence(), sequence->get());
  if (!guided.ok()) {
    publisher_.AddRefusal(key, v1::REFUSAL_REASON_INVALID,
                          std::string(guided.message()),
                          absl::IsInvalidArgument(guided));
    return;
  }
  held.Append(*pool_.Allocate(blocks - held.size()));
  (*sequence)->blocks() = std::move(held);
  metrics_->CountPrefix(tokens, (*sequence)->cached());
  auto owned = std::make_unique<Attempt>();
  owned->key = key;
  owned->name = worker::MakeAttemptName(reserve.sequence(), key.attempt);
  owned->num_tokens = tokens;
  owned->sequence = *std::move(sequence);
  owned->outcome.set_cached_tokens(
      static_cast<uint32_t>(owned->sequence->cached()));
  const absl::Time received = std::min(clock_->Now(), received_at);
  owned->reserved_at = received;
  owned->deadline = worker::DeadlineOf(reserve.sequence(), received);
  Attempt* attempt = attempts_.Add(std::move(owned));
  if (reserve.local_prefill()) {
    attempt->prefilling = true;
    attempt->ready_at = received;
    const int32_t cached = attempt->sequence->cached();
    if (cached > 0) attempt->sequence->AdoptComputed(cached);
    LoadStored(attempt->sequence.get());
    publisher_.AddGrant(key, v1::Grant());
    scheduler_.Add(attempt->sequence.get(), ToSeconds(received));
    return;
  }
  std::optional<Incarnation> sender;
  if (reserve.prefill_incarnation() != 0) {
    sender = Incarnation{reserve.prefill_incarnation()};
  }
  const absl::Status status = Grant(attempt, sender);
  if (!status.ok()) {
    publisher_.AddRefusal(key,
                          absl::IsOutOfRange(status)
                              ? v1::REFUSAL_REASON_TOO_LARGE
                              : v1::REFUSAL_REASON_QUEUE_FULL,
                          std::string(status.message()));
    attempts_.Remove(attempt);
  }
}

void DecodeLoop::OnSessionGone(worker::SessionId session) {
  prefix_feed_.RemoveRouter(session);
  guides_.Forget(session);
  for (Attempt* attempt : attempts_.All()) {
    if (attempt->key.session == session) End(attempt);
  }
}

void DecodeLoop::Execute(const StepPlan& plan) {
  const absl::Time started = clock_->Now();
  for (const PlannedSequence& planned : plan.sequences) {
    Attempt* attempt = attempts_.Find(planned.sequence);
    if (attempt->first_step_at.has_value()) continue;
    attempt->first_step_at = started;
    metrics_->queue_seconds->Observe(
        absl::ToDoubleSeconds(started - attempt->ready_at));
  }
  Finish(plan, RunStep(plan), started);
}

StepResult DecodeLoop::RunStep(const StepPlan& plan) {
  const StepResult result = engine_->ExecuteBeside(
      plan, [](int32_t) {}, [&] { WhileRunning(plan); });
  unpublished_ = publishes_beside_;
  return result;
}

void DecodeLoop::Finish(const StepPlan& plan, const StepResult& result,
                        absl::Time started) {
  ++blocks_->steps;
  metrics_->CountStep(result);
  const absl::Time ended = clock_->Now();
  ahead_since_ = ended;
  const double seconds = absl::ToDoubleSeconds(ended - started);
  metrics_->step_seconds->Observe(seconds);
  const double took = pace_.Step(started, ended);
  // Few steps have targets, which cost something besides.
  if (!plan.HasTargets()) step_cost_.Observe(scheduling::ShapeOf(plan), took);
  metrics_->step_prediction_error->Set(step_cost_.error());
  if (!plan.sequences.front().follows) {
    metrics_->CountMixedStep(scheduler_.mixed(), seconds);
  }
  metrics_->step_tokens->Observe(static_cast<double>(plan.NumTokens()));
  Commit(plan, result, started);
}

void DecodeLoop::Commit(const StepPlan& plan, const StepResult& result,
                        absl::Time started) {
  // Of those that are to run again, and of steps ahead those that are over,
  // nothing is taken.
  std::vector<absl::Span<const SampledToken>> taken;
  absl::Span<const SampledToken> rest = result.sampled;
  for (const PlannedSequence& planned : plan.sequences) {
    const absl::Span<const SampledToken> tokens =
        rest.first(planned.num_samples());
    rest.remove_prefix(tokens.size());
    const SampledToken* const token = tokens.empty() ? nullptr : &tokens[0];
    Attempt* attempt = attempts_.Find(planned.sequence);
    if (attempt == nullptr ||
        (planned.follows && attempt->tokens_by_step > 0)) {
      metrics_->ahead_tokens_dropped->Increment();
      continue;
    }
    if (token != nullptr && token->again) {
      constexpr int kMostDoublings = 6;
      attempt->tokens_by_step = 1 << std::min(attempt->again++, kMostDoublings);
      continue;
    }
    if (token != nullptr) {
      taken.push_back(tokens.first(1 + CountRight(planned, tokens, attempt)));
    }
    const int32_t count =
        static_cast<int32_t>(planned.tokens.size()) - planned.num_drafts;
    attempt->sequence->CommitComputed(count);
    cache_.Insert(attempt->sequence.get());
    if (!attempt->prefilling) continue;
    attempt->prompt_computed += count;
    metrics_->prompt_tokens->Increment(count);
  }
  for (Attempt* attempt :
       worker::TellPromptLogprobs(plan, result, attempts_, &publisher_)) {
    FailNotFinite(attempt);
  }
  for (const absl::Span<const SampledToken> tokens : taken) {
    Attempt* const first = attempts_.Find(tokens[0].sequence);
    if (first == nullptr) continue;
    OnSampled(first, tokens[0], started);
    // Those that came out behind guesses, whose KV is there; unless it is over.
    for (const SampledToken& token : tokens.subspan(1)) {
      Attempt* const attempt = attempts_.Find(token.sequence);
      if (attempt == nullptr) break;
      attempt->sequence->CommitComputed(1);
      cache_.Insert(attempt->sequence.get());
      OnSampled(attempt, token, started);
    }
  }
}

int32_t DecodeLoop::CountRight(const PlannedSequence& planned,
                               absl::Span<const SampledToken> tokens,
                               Attempt* attempt) {
  if (planned.num_drafts == 0) return 0;
  const int32_t right = attempt->sequence->JudgeDrafts(planned, tokens);
  metrics_->drafts->Increment();
  metrics_->draft_tokens->Increment(planned.num_drafts);
  metrics_->accepted_draft_tokens->Increment(right);
  return right;
}

void DecodeLoop::OnSampled(Attempt* attempt, const SampledToken& token,
                           absl::Time started) {
  Sequence& sequence = *attempt->sequence;
  if (!token.ok) {
    FailNotFinite(attempt);
    return;
  }
  ++attempt->sampled;
  worker::CommitSampled(token.token, &sequence, metrics_->guide_seconds);
  if (!sequence.guide_status().ok()) {
    Fail(attempt, std::string(sequence.guide_status().message()),
         /*retryable=*/false, v1::FAILURE_KIND_REQUEST);
    return;
  }
  if (attempt->tokens_by_step > 0) --attempt->tokens_by_step;
  metrics_->generation_tokens->Increment();
  publisher_.AddToken(attempt->key, sequence.num_output() - 1, token,
                      sequence.finished());
  const absl::Time now = clock_->Now();
  if (attempt->prefilling) {
    attempt->prefilling = false;
    attempt->outcome.set_cached_tokens(
        static_cast<uint32_t>(sequence.cached()));
    attempt->outcome.set_queue_seconds(
        absl::ToDoubleSeconds(*attempt->first_step_at - attempt->ready_at));
    attempt->outcome.set_prefill_seconds(
        absl::ToDoubleSeconds(now - *attempt->first_step_at));
    publisher_.AddPromptReport(attempt->key, attempt->outcome);
  } else if (attempt->sampled == 1) {
    attempt->outcome.set_decode_queue_seconds(
        absl::ToDoubleSeconds(*attempt->first_step_at - attempt->ready_at));
    attempt->outcome.set_first_step_seconds(
        absl::ToDoubleSeconds(now - *attempt->first_step_at));
  }
  if (!sequence.finished().has_value()) return;
  attempt->outcome.set_ok(true);
  publisher_.AddOutcome(attempt->key, attempt->outcome);
  End(attempt);
}

}  // namespace baton::decode_worker
