// PrefillLoop: hand-offs, from the grant to the receiver's word.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "prefill_worker/prefill_loop.h"

namespace baton::prefill_worker {

using kv_transfer::HandoffSender;
using scheduling::PlannedSequence;
using scheduling::StepPlan;

void PrefillLoop::OnGrant(worker::SessionId session, const v1::Grant& grant,
                          absl::Time received_at) {
  Attempt* attempt = attempts_.Find({session, grant.attempt()});
  if (attempt == nullptr || attempt->transfer.has_value() ||
      attempt->waiting_grant.has_value()) {
    return;
  }
  const auto tokens = static_cast<uint32_t>(attempt->num_tokens);
  if (grant.first_token() > tokens ||
      grant.num_tokens() != tokens - grant.first_token()) {
    Fail(attempt,
         absl::StrCat("the grant names tokens ", grant.first_token(), "+",
                      grant.num_tokens(), ", the prompt has ", tokens),
         /*retryable=*/false);
    return;
  }
  attempt->waiting_grant = grant;
  // The loop may see it a step later.
  const absl::Duration after =
      std::min(clock_->Now(), received_at) - attempt->assigned;
  grant_wait_.Came(after);
  metrics_->grant_seconds->Observe(absl::ToDoubleSeconds(after));
}

absl::Duration PrefillLoop::UntilGrant() const {
  const absl::Time now = clock_->Now();
  absl::Duration least = absl::InfiniteDuration();
  for (const Attempt* attempt : attempts_.All()) {
    const scheduling::Sequence& sequence = *attempt->sequence;
    if (attempt->commit.has_value()) continue;  // computed
    if (sequence.loading()) continue;           // not to be computed yet
    // Has its grant, or begun, or needs none, or more than one step.
    if (attempt->transfer.has_value() || attempt->waiting_grant.has_value() ||
        sequence.computed() > 0 || sequence.EndsNext() ||
        attempt->num_tokens > options_.token_budget) {
      return absl::InfiniteDuration();
    }
    const scheduling::StepShape shape =
        scheduling::ChunkShape(/*computed=*/0, attempt->num_tokens);
    const absl::Duration left =
        attempt->assigned - now +
        grant_wait_.For(absl::Seconds(step_cost_.cost().Seconds(shape)));
    if (left <= absl::ZeroDuration()) return absl::InfiniteDuration();
    least = std::min(least, left);
  }
  return least;
}

void PrefillLoop::StartWaitingTransfers() {
  for (Attempt* attempt : attempts_.All()) {
    const absl::Status status = StartTransfer(attempt);
    if (status.ok()) continue;
    Fail(attempt, std::string(status.message()), /*retryable=*/true,
         v1::FAILURE_KIND_TRANSFER);
  }
}

absl::Status PrefillLoop::StartTransfer(Attempt* attempt) {
  // The sequence gets its blocks with its first chunk; while it is loading, it
  // may get others.
  if (!attempt->waiting_grant.has_value() ||
      attempt->sequence->blocks().size() == 0 || attempt->sequence->loading()) {
    return absl::OkStatus();
  }
  const v1::Grant& grant = *attempt->waiting_grant;
  const TransferId transfer{grant.transfer_id()};
  if (attempts_.Find(transfer) != nullptr || quarantine_.Holds(transfer)) {
    return absl::OkStatus();
  }
  HandoffSender::Grant start;
  start.transfer = transfer;
  start.generation = grant.generation();
  start.receiver = Incarnation{grant.decode_incarnation()};
  start.first_token = static_cast<int32_t>(grant.first_token());
  start.num_tokens = static_cast<int32_t>(grant.num_tokens());
  start.holder = attempt->key.session;
  start.owner = attempt->name.Owner();
  BATON_ASSIGN_OR_RETURN(const bool started,
                         sends_.Start(start, attempt->sequence->blocks().ids(),
                                      attempt->deadline));
  if (!started) return absl::OkStatus();
  attempt->waiting_grant.reset();
  attempts_.SetTransfer(attempt, transfer);
  const int32_t ready = BlocksReady(*attempt, attempt->sequence->computed());
  if (ready > 0) sends_.PassOn({transfer, ready});
  if (attempt->commit.has_value()) {
    sends_.Commit(transfer, *attempt->commit, attempt->computed_at);
  }
  return absl::OkStatus();
}

void PrefillLoop::OnHandoffEvent(const HandoffSender::Event& event) {
  if (const auto* ready = std::get_if<kv_transfer::PeerReady>(&event)) {
    pairings_.OnReady(*ready);
  } else if (const auto* refused =
                 std::get_if<kv_transfer::PeerRefused>(&event)) {
    pairings_.OnRefused(*refused);
  } else if (const auto* lost = std::get_if<kv_transfer::PeerLost>(&event)) {
    pairings_.OnLost(*lost);
  } else if (const auto* link =
                 std::get_if<kv_transfer::LinkMeasured>(&event)) {
    LOG(INFO) << "link to " << link->worker_name << " over " << link->transport
              << ": " << link->speed.bytes_per_second / 1e9 << " GB/s, "
              << link->speed.latency << " one way";
    pairings_.OnMeasured(*link);
  } else if (const auto* acked = std::get_if<HandoffSender::Acked>(&event)) {
    OnAcked(*acked);
  } else if (const auto* failed = std::get_if<HandoffSender::Failed>(&event)) {
    OnTransferFailed(*failed);
  } else {
    const TransferId quiet = std::get<HandoffSender::Quiesced>(event).transfer;
    quarantine_.Release(quiet);
    sends_.Release(quiet);
  }
}

void PrefillLoop::OnAcked(const HandoffSender::Acked& acked) {
  metrics_->CountTransfer(acked.transport, /*ok=*/true);
  metrics_->transfer_seconds->Observe(absl::ToDoubleSeconds(acked.duration));
  metrics_->transfer_bytes->Observe(static_cast<double>(acked.bytes));
  metrics_->ObserveSent(acked.duration, acked.exposed, acked.extents);
  Attempt* attempt = attempts_.Find(acked.transfer);
  if (attempt == nullptr) return;
  attempt->outcome.set_ok(true);
  attempt->outcome.set_kv_transfer_bytes(acked.bytes);
  attempt->outcome.set_kv_transfer_seconds(
      absl::ToDoubleSeconds(acked.duration));
  attempt->outcome.set_kv_transfer_exposed_seconds(
      absl::ToDoubleSeconds(acked.exposed));
  publisher_.AddOutcome(attempt->key, attempt->outcome);
  End(attempt);
}

void PrefillLoop::OnTransferFailed(const HandoffSender::Failed& failed) {
  metrics_->CountTransfer(failed.transport, /*ok=*/false);
  if (failed.outcome == kv_transfer::TransferOutcome::kLeaseExpired) {
    metrics_->lease_expired->Increment();
  }
  Attempt* attempt = attempts_.Find(failed.transfer);
  if (attempt == nullptr) return;
  if (clock_->Now() >= attempt->deadline) CountWasted(*attempt);
  Fail(attempt,
       absl::StrCat("KV transfer failed: ",
                    kv_transfer::TransferOutcomeName(failed.outcome), " ",
                    failed.detail),
       /*retryable=*/true, v1::FAILURE_KIND_TRANSFER);
}

int32_t PrefillLoop::BlocksReady(const Attempt& attempt,
                                 int32_t computed) const {
  const engine::KvLayout& layout = engine_->kv_layout();
  return computed == attempt.num_tokens ? layout.BlocksFor(computed)
                                        : computed / layout.block_size;
}

std::vector<KvSends::Ready> PrefillLoop::PrepareSends(const StepPlan& plan,
                                                      absl::Time now) {
  std::vector<KvSends::Ready> sends;
  for (const PlannedSequence& planned : plan.sequences) {
    Attempt* attempt = attempts_.Find(planned.sequence);
    if (attempt->started == absl::InfiniteFuture()) {
      attempt->started = now;
      metrics_->queue_seconds->Observe(
          absl::ToDoubleSeconds(now - attempt->assigned));
      const int32_t cached = attempt->sequence->cached();
      metrics_->CountPrefix(attempt->num_tokens,
                            cached - attempt->sequence->prefix().loaded_tokens);
      attempt->outcome.set_cached_tokens(static_cast<uint32_t>(cached));
    }
    const absl::Status status = StartTransfer(attempt);
    if (!status.ok()) {
      // The plan points into the sequence, so it stays until the step is over.
      attempt->waiting_grant.reset();
      failed_starts_.emplace_back(planned.sequence, status);
    }
    if (!attempt->transfer.has_value()) continue;
    sends.push_back({*attempt->transfer,
                     BlocksReady(*attempt, planned.first_position +
                                               static_cast<int32_t>(
                                                   planned.tokens.size()))});
  }
  return sends;
}

}  // namespace baton::prefill_worker
