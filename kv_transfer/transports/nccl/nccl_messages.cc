#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "kv_transfer/transports/nccl/common_cuts.h"
#include "kv_transfer/transports/nccl/nccl_peer.h"

namespace baton::kv_transfer {
namespace {

uint64_t BytesOf(absl::Span<const absl::Span<std::byte>> spans) {
  uint64_t bytes = 0;
  for (absl::Span<std::byte> span : spans) bytes += span.size();
  return bytes;
}

absl::Status Unasked(absl::string_view what, uint64_t number) {
  return absl::InvalidArgumentError(
      absl::StrCat("the peer sent ", what, " ", number,
                   ", which fits nothing that is outstanding"));
}

}  // namespace

// Sending.

void NcclPeer::Send(SendOp op) {
  if (state_ == State::kDown) {
    FinishSend(op.cookie, failure_);
  } else if (op.payload.empty()) {
    // Messages are few and small: they do not wait behind a full window.
    Say(nccl_wire::EncodeMessage(op.header), op.cookie);
  } else {
    queue_.push_back(std::move(op));
    OfferQueued();
  }
}

void NcclPeer::Say(std::string bytes, std::optional<uint64_t> cookie) {
  outbox_.push_back({std::move(bytes), cookie});
  if (cookie.has_value()) return;
  // Ours wait for answers before they offer more.
  if (++unsaid_ > kMaxUnsaid) {
    Fail(absl::ResourceExhaustedError(
        "the peer asks more than can be answered"));
  }
}

void NcclPeer::FlushOutbox() {
  while (!outbox_.empty() && !control_down_) {
    const uint64_t cookie = ++last_control_cookie_;
    const absl::Status status =
        around_->control->Send(id_, AsBytes(outbox_.front().bytes), {}, cookie);
    // Full: goes on when something completes. Down: we are told soon.
    if (absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) {
      return;
    }
    if (!status.ok()) {
      Fail(status);
      return;
    }
    if (!outbox_.front().cookie.has_value()) --unsaid_;
    control_sends_[cookie] = outbox_.front().cookie;
    outbox_.pop_front();
  }
}

void NcclPeer::OnControlSent(uint64_t cookie, const absl::Status& status) {
  auto it = control_sends_.find(cookie);
  CHECK(it != control_sends_.end());
  const std::optional<uint64_t> ours = it->second;
  control_sends_.erase(it);
  if (ours.has_value()) FinishSend(*ours, status);
  if (!status.ok()) {
    Fail(absl::Status(
        status.code(),
        absl::StrCat("a control message was lost: ", status.message())));
  }
}

void NcclPeer::OfferQueued() {
  while (state_ == State::kUp && failure_.ok() && !queue_.empty() &&
         sends_.size() < around_->max_sends_in_flight) {
    const SendOp op = std::move(queue_.front());
    queue_.pop_front();
    auto memory = around_->regions->Resolve(op.payload);
    CHECK(memory.ok()) << memory.status();
    const uint64_t number = ++last_number_;
    Say(nccl_wire::EncodeOffer(number, LengthsOf(*memory), op.header));
    Sending& sending = sends_[number];
    sending.bytes = BytesOf(*memory);
    sending.memory = *std::move(memory);
    sending.cookie = op.cookie;
  }
}

void NcclPeer::FinishSend(uint64_t cookie, const absl::Status& status) {
  around_->end_send(id_);
  around_->handler->OnSent(id_, cookie, status);
}

// Receiving.

void NcclPeer::OnControlMessage(ByteSpan bytes) {
  if (!failure_.ok()) return;
  const absl::StatusOr<nccl_wire::Any> message = nccl_wire::Decode(bytes);
  if (!message.ok()) {
    Fail(message.status());
    return;
  }
  std::visit([this](const auto& what) { Take(what); }, *message);
}

void NcclPeer::Take(const nccl_wire::Join& join) {
  if (rank() == 0 || communicator_ != nullptr) {
    Fail(absl::InvalidArgumentError(
        "the peer said unasked which communicator to join"));
    return;
  }
  CreateCommunicator(
      std::string(reinterpret_cast<const char*>(join.unique_id.data()),
                  join.unique_id.size()));
}

void NcclPeer::Take(const nccl_wire::Ready&) {
  ready_there_ = true;
  MarkUpWhenReady();
}

bool NcclPeer::IsUpForPeer() {
  if (state_ == State::kUp) return true;
  // It has heard our Ready, and its own was overtaken.
  if (!ready_here_) {
    Fail(absl::InvalidArgumentError(
        "the peer sent something before the communicator was ready"));
    return false;
  }
  ready_there_ = true;
  MarkUpWhenReady();
  return true;
}

void NcclPeer::Take(const nccl_wire::Message& message) {
  if (IsUpForPeer()) around_->handler->OnMessage(id_, message.header);
}

void NcclPeer::Take(const nccl_wire::Offer& offer) {
  if (!IsUpForPeer()) return;
  if (landings_.contains(offer.number)) {
    Fail(Unasked("offer", offer.number));
    return;
  }
  if (landings_.size() >= kMaxLandings) {
    Fail(absl::ResourceExhaustedError(
        "the peer offered more payloads than may be outstanding"));
    return;
  }
  const std::optional<Landing> landing =
      around_->handler->OnPayload(id_, offer.header, offer.bytes);
  if (!landing.has_value()) {
    Say(nccl_wire::EncodeRefuse(offer.number));
    return;
  }
  CHECK_LE(landing->extents.size(), nccl_wire::kMaxExtents);
  auto target = around_->regions->Resolve(landing->extents);
  CHECK(target.ok()) << target.status();
  CHECK_EQ(BytesOf(*target), offer.bytes);
  Receiving& receiving = landings_[offer.number];
  receiving.pieces = CutAlike(*target, offer.lengths);
  receiving.cookie = landing->cookie;
  uint64_t turn = 0;
  if (rank() == 0) {
    receiving.has_turn = true;
    turn = TakeNextTurn();
    Post(turn, {.is_send = false, .number = offer.number});
  }
  Say(nccl_wire::EncodeAccept(offer.number, turn, LengthsOf(*target)));
}

void NcclPeer::Take(const nccl_wire::Refuse& refuse) {
  auto it = sends_.find(refuse.number);
  if (it == sends_.end() || it->second.accepted) {
    Fail(Unasked("refusal", refuse.number));
    return;
  }
  const uint64_t cookie = it->second.cookie;
  sends_.erase(it);
  FinishSend(cookie, absl::OkStatus());
  OfferQueued();
}

void NcclPeer::Take(const nccl_wire::Accept& accept) {
  auto it = sends_.find(accept.number);
  if (it == sends_.end() || it->second.accepted ||
      accept.bytes != it->second.bytes) {
    Fail(Unasked("acceptance", accept.number));
    return;
  }
  Sending& sending = it->second;
  sending.accepted = true;
  sending.memory = CutAlike(sending.memory, accept.lengths);
  const Posted which{.is_send = true, .number = accept.number};
  if (rank() == 1) {
    PutTurn(accept.turn, which);
    return;
  }
  const uint64_t turn = TakeNextTurn();
  Post(turn, which);
  Say(nccl_wire::EncodeTurn(accept.number, turn));
}

void NcclPeer::Take(const nccl_wire::Turn& turn) {
  auto it = landings_.find(turn.number);
  if (rank() == 0 || it == landings_.end() || it->second.has_turn) {
    Fail(Unasked("turn", turn.number));
    return;
  }
  it->second.has_turn = true;
  PutTurn(turn.turn, {.is_send = false, .number = turn.number});
}

// Posting.

void NcclPeer::PutTurn(uint64_t turn, Posted which) {
  if (turn < next_turn_ || !waiting_turns_.emplace(turn, which).second) {
    Fail(Unasked("turn", turn));
    return;
  }
  while (!waiting_turns_.empty() &&
         waiting_turns_.begin()->first == next_turn_) {
    const Posted next = waiting_turns_.begin()->second;
    waiting_turns_.erase(waiting_turns_.begin());
    Post(TakeNextTurn(), next);
  }
}

void NcclPeer::Post(uint64_t turn, const Posted& which) {
  PostedGroup group;
  group.ticket = turn;
  group.is_send = which.is_send;
  if (which.is_send) {
    Sending& sending = sends_.at(which.number);
    sending.posted = true;
    group.pieces = std::move(sending.memory);
  } else {
    Receiving& receiving = landings_.at(which.number);
    receiving.posted = true;
    group.pieces = std::move(receiving.pieces);
  }
  posted_[turn] = which;
  communicator_->Post(std::move(group));
}

void NcclPeer::Complete(uint64_t turn, const absl::Status& status) {
  const Posted which = posted_.at(turn);
  posted_.erase(turn);
  if (which.is_send) {
    const uint64_t cookie = sends_.at(which.number).cookie;
    sends_.erase(which.number);
    FinishSend(cookie, status);
    OfferQueued();
  } else {
    const uint64_t cookie = landings_.at(which.number).cookie;
    landings_.erase(which.number);
    around_->handler->OnLanded(id_, cookie, status);
  }
}

}  // namespace baton::kv_transfer
