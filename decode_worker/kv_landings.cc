#include "decode_worker/kv_landings.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::decode_worker {

using kv_transfer::HandoffReceiver;

namespace {

// Of Landed and Quiesced; none of the others has one that ends.
std::optional<TransferId> EndedBy(const KvLandings::Event& event) {
  if (const auto* landed = std::get_if<HandoffReceiver::Landed>(&event)) {
    return landed->transfer;
  }
  if (const auto* quiet = std::get_if<HandoffReceiver::Quiesced>(&event)) {
    return quiet->transfer;
  }
  return std::nullopt;
}

}  // namespace

KvLandings::KvLandings(std::unique_ptr<HandoffReceiver> receiver,
                       engine::Engine* engine, worker::KvBlocks* blocks)
    : receiver_(std::move(receiver)),
      stage_(engine->kv_stage()),
      blocks_(blocks) {
  CHECK_EQ(stage_ != nullptr, blocks->staged.has_value());
}

int32_t KvLandings::NumStaged() const {
  int32_t count = 0;
  for (const auto& [transfer, staged] : transfers_) count += staged.held.size();
  return count;
}

absl::Status KvLandings::Open(HandoffReceiver::OpenTransfer transfer) {
  if (stage_ == nullptr) return receiver_->Open(std::move(transfer));
  const auto count = static_cast<int32_t>(transfer.blocks.size());
  const int32_t share = blocks_->staged_share;
  if (count > share) {
    return absl::OutOfRangeError(
        absl::StrCat("the prompt needs ", count, " staged blocks, there are ",
                     share, " for it (--kv-staging-memory)"));
  }
  if (const int32_t taken = NumStaged(); taken + count > share) {
    return absl::ResourceExhaustedError(
        absl::StrCat("too few staged blocks (--kv-staging-memory): ", count,
                     " needed, ", share - taken, " free of ", share));
  }
  std::optional<scheduling::PooledBlocks> held =
      blocks_->staged->AllocateInRuns(count);
  CHECK(held.has_value()) << "shares are more than there is";
  Staged staged;
  for (int32_t i = 0; i < count; ++i) {
    staged.blocks.push_back({transfer.blocks[i], held->ids()[i]});
  }
  transfer.blocks.assign(held->ids().begin(), held->ids().end());
  staged.held = *std::move(held);
  const TransferId id = transfer.transfer;
  if (absl::Status status = receiver_->Open(std::move(transfer));
      !status.ok()) {
    return status;
  }
  CHECK(transfers_.emplace(id, std::move(staged)).second);
  return absl::OkStatus();
}

std::vector<KvLandings::Event> KvLandings::Poll() {
  if (stage_ == nullptr) return receiver_->Poll();
  std::vector<Event> events;
  for (Event& event : receiver_->Poll()) {
    if (const auto* layer = std::get_if<HandoffReceiver::LayerLanded>(&event)) {
      CopyLayer(*layer);
    } else if (EndedBy(event).has_value()) {
      waiting_.push_back(std::move(event));
    } else {
      events.push_back(std::move(event));
    }
  }
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (!CopiesDone(*EndedBy(*it))) {
      ++it;
      continue;
    }
    Finish(std::move(*it), &events);
    it = waiting_.erase(it);
  }
  return events;
}

void KvLandings::CopyLayer(const HandoffReceiver::LayerLanded& landed) {
  Staged& staged = transfers_.at(landed.transfer);
  staged.last = stage_->CopyIn(landed.layer, /*num_layers=*/1, staged.blocks);
}

bool KvLandings::CopiesDone(TransferId transfer) const {
  const Staged& staged = transfers_.at(transfer);
  return !staged.last.has_value() || stage_->Done(*staged.last);
}

void KvLandings::Finish(Event event, std::vector<Event>* events) {
  transfers_.erase(*EndedBy(event));
  events->push_back(std::move(event));
}

std::vector<TransferId> KvLandings::NearEnd() const {
  std::vector<TransferId> near = receiver_->NearEnd();
  for (const Event& event : waiting_) {
    if (const auto* landed = std::get_if<HandoffReceiver::Landed>(&event)) {
      near.push_back(landed->transfer);
    }
  }
  return near;
}

}  // namespace baton::decode_worker
