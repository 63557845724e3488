// DecodeLoop: hand-offs, from the grant to the landing.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "decode_worker/decode_loop.h"

namespace baton::decode_worker {
namespace {

using kv_transfer::HandoffReceiver;
using scheduling::Sequence;

}  // namespace

absl::Status DecodeLoop::Grant(Attempt* attempt,
                               std::optional<Incarnation> sender) {
  const Sequence& sequence = *attempt->sequence;
  const engine::KvLayout& layout = engine_->kv_layout();
  const int32_t cached_blocks = layout.BlocksFor(sequence.cached());
  const absl::Span<const BlockId> ids = sequence.blocks().ids().subspan(
      cached_blocks, layout.BlocksFor(sequence.num_tokens()) - cached_blocks);
  const std::optional<TransferSlots::Name> name = slots_.Take();
  if (!name.has_value()) {
    return absl::ResourceExhaustedError("too many hand-offs at once");
  }
  HandoffReceiver::OpenTransfer open;
  open.transfer = name->transfer;
  open.generation = name->generation;
  open.blocks.assign(ids.begin(), ids.end());
  open.num_tokens = sequence.num_tokens() - sequence.cached();
  open.sender = sender;
  open.deadline = attempt->deadline;
  open.holder = attempt->key.session;
  open.owner = attempt->name.Owner();
  if (absl::Status status = landings_.Open(open); !status.ok()) {
    slots_.Return(name->transfer);
    return status;
  }
  attempts_.SetTransfer(attempt, open.transfer);

  v1::Grant grant;
  grant.set_transfer_id(static_cast<uint64_t>(open.transfer));
  grant.set_generation(open.generation);
  grant.set_decode_incarnation(incarnation_);
  grant.set_data_address(data_address_);
  grant.set_first_token(static_cast<uint32_t>(sequence.cached()));
  grant.set_num_tokens(static_cast<uint32_t>(*open.num_tokens));
  publisher_.AddGrant(attempt->key, std::move(grant));
  return absl::OkStatus();
}

void DecodeLoop::OnHandoffEvent(const KvLandings::Event& event) {
  if (std::holds_alternative<kv_transfer::PeerReady>(event) ||
      std::holds_alternative<kv_transfer::PeerRefused>(event) ||
      std::holds_alternative<kv_transfer::PeerLost>(event) ||
      std::holds_alternative<HandoffReceiver::LayerLanded>(event)) {
    // Logged by the hand-off; transfers have events of their own. Layers are
    // the landings' business.
  } else if (const auto* landed =
                 std::get_if<HandoffReceiver::Landed>(&event)) {
    OnLanded(*landed);
  } else if (const auto* failed =
                 std::get_if<HandoffReceiver::Failed>(&event)) {
    OnTransferFailed(*failed);
  } else {
    const auto& quiesced = std::get<HandoffReceiver::Quiesced>(event);
    quarantine_.Release(quiesced.transfer);
    slots_.Return(quiesced.transfer);
  }
}

void DecodeLoop::OnLanded(const HandoffReceiver::Landed& landed) {
  metrics_->CountTransfer(landed.transport, /*ok=*/true);
  metrics_->transfer_seconds->Observe(absl::ToDoubleSeconds(landed.duration));
  metrics_->transfer_bytes->Observe(static_cast<double>(landed.bytes));
  // Cancelled in the meantime: the blocks wait in quarantine, and since it has
  // landed, nothing will write to them any more.
  quarantine_.Release(landed.transfer);
  slots_.Return(landed.transfer);
  Attempt* attempt = attempts_.Find(landed.transfer);
  if (attempt == nullptr) return;
  attempts_.ClearTransfer(attempt);
  // A step may have passed since.
  attempt->ready_at = std::min(clock_->Now(), landed.at);
  attempt->landed = attempt->ready_at - attempt->reserved_at;
  attempt->outcome.set_kv_transfer_bytes(landed.bytes);
  attempt->outcome.set_kv_transfer_seconds(
      absl::ToDoubleSeconds(landed.duration));
  Sequence& sequence = *attempt->sequence;
  const kv_transfer::CommitRecord& record = landed.record;
  if (record.num_tokens != static_cast<uint32_t>(sequence.num_tokens()) ||
      record.next_token_index !=
          static_cast<uint32_t>(sequence.num_output()) + 1 ||
      record.first_token < 0 ||
      record.first_token >= engine_->model().vocab_size) {
    Fail(attempt, "the commit is for another sequence", /*retryable=*/false);
    return;
  }
  sequence.AdoptComputed(sequence.num_tokens());
  sequence.AdoptSampled(record.first_token);
  if (!sequence.guide_status().ok()) {
    Fail(attempt, std::string(sequence.guide_status().message()),
         /*retryable=*/false, v1::FAILURE_KIND_REQUEST);
    return;
  }
  sequence.prefix().kept_out =
      landed.encoding != kv_transfer::WireEncoding::kExact;
  cache_.Insert(&sequence);
  if (sequence.finished().has_value()) {
    attempt->outcome.set_ok(true);
    publisher_.AddOutcome(attempt->key, attempt->outcome);
    End(attempt);
    return;
  }
  scheduler_.Add(&sequence,
                 absl::ToDoubleSeconds(attempt->ready_at - absl::UnixEpoch()));
}

void DecodeLoop::OnTransferFailed(const HandoffReceiver::Failed& failed) {
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

}  // namespace baton::decode_worker
