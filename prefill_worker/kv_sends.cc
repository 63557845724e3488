#include "prefill_worker/kv_sends.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton::prefill_worker {

using kv_transfer::HandoffSender;

KvSends::KvSends(HandoffSender* sender, engine::Engine* engine,
                 worker::KvBlocks* blocks)
    : sender_(sender),
      layout_(engine->kv_layout()),
      stage_(engine->kv_stage()),
      blocks_(blocks) {
  CHECK_EQ(stage_ != nullptr, blocks->staged.has_value());
}

int32_t KvSends::NumStaged() const {
  int32_t count = 0;
  for (const auto& [transfer, staged] : transfers_) count += staged.held.size();
  for (const Retired& retired : retired_) count += retired.held.size();
  return count;
}

absl::StatusOr<bool> KvSends::Start(const HandoffSender::Grant& grant,
                                    absl::Span<const BlockId> blocks,
                                    absl::Time deadline) {
  if (stage_ == nullptr) {
    BATON_RETURN_IF_ERROR(sender_->Start(grant, blocks, deadline));
    return true;
  }
  Staged staged;
  staged.first_block = grant.first_token / layout_.block_size;
  staged.passed_on = staged.first_block;
  const int32_t end = layout_.BlocksFor(grant.first_token + grant.num_tokens);
  CHECK_LE(end, static_cast<int32_t>(blocks.size()));
  const int32_t count = grant.num_tokens == 0 ? 0 : end - staged.first_block;
  if (count > blocks_->staged_share) {
    Forget(grant.transfer);
    return absl::ResourceExhaustedError(
        absl::StrCat("the prompt needs ", count, " staged blocks, there are ",
                     blocks_->staged_share, " for it (--kv-staging-memory)"));
  }
  if (!HasTurn(grant.transfer, count)) return false;
  std::optional<scheduling::PooledBlocks> held =
      blocks_->staged->AllocateInRuns(count);
  CHECK(held.has_value()) << "shares are more than there is";
  staged.held = *std::move(held);
  staged.blocks.assign(blocks.begin(), blocks.end());
  // As the sender counts them, from the sequence's first on: it reads none of
  // those before.
  std::vector<BlockId> ids(staged.first_block, BlockId{0});
  ids.insert(ids.end(), staged.held.ids().begin(), staged.held.ids().end());
  ids.resize(std::max<size_t>(ids.size(), end), BlockId{0});
  BATON_RETURN_IF_ERROR(sender_->Start(grant, ids, deadline));
  CHECK(transfers_.emplace(grant.transfer, std::move(staged)).second);
  return true;
}

bool KvSends::HasTurn(TransferId transfer, int32_t count) {
  const bool first = waiting_.empty() || waiting_.front() == transfer;
  if (first && NumStaged() + count <= blocks_->staged_share) {
    Forget(transfer);
    return true;
  }
  if (std::find(waiting_.begin(), waiting_.end(), transfer) == waiting_.end()) {
    waiting_.push_back(transfer);
  }
  return false;
}

std::vector<engine::StagedBlock> KvSends::TakeNew(const Ready& ready,
                                                  Staged* staged) {
  std::vector<engine::StagedBlock> blocks;
  const int32_t end =
      std::min(ready.blocks_ready, staged->first_block + staged->held.size());
  for (int32_t i = staged->passed_on; i < end; ++i) {
    blocks.push_back(
        {staged->blocks[i], staged->held.ids()[i - staged->first_block]});
  }
  staged->passed_on = std::max(staged->passed_on, end);
  return blocks;
}

void KvSends::PassOn(const Ready& ready) {
  if (stage_ == nullptr) {
    for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
      sender_->SendLayer(ready.transfer, layer, ready.blocks_ready);
    }
    return;
  }
  const auto it = transfers_.find(ready.transfer);
  if (it == transfers_.end()) return;
  Staged& staged = it->second;
  const std::vector<engine::StagedBlock> blocks = TakeNew(ready, &staged);
  if (blocks.empty()) return;
  for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
    staged.last = stage_->CopyOut(layer, /*num_layers=*/1, blocks);
    copies_.push_back({*staged.last, ready, layer});
    ++staged.num_copies;
  }
}

void KvSends::BeginStep(std::vector<Ready> ready) {
  if (stage_ == nullptr) {
    step_ = std::move(ready);
    return;
  }
  step_.clear();
  std::vector<engine::StagedBlock> all;
  for (const Ready& one : ready) {
    const auto it = transfers_.find(one.transfer);
    if (it == transfers_.end()) continue;
    const std::vector<engine::StagedBlock> blocks = TakeNew(one, &it->second);
    // The others' news, if any, are on their way already.
    if (blocks.empty()) continue;
    all.insert(all.end(), blocks.begin(), blocks.end());
    step_.push_back(one);
  }
  stage_->WithStep(std::move(all));
}

void KvSends::OnLayer(int32_t layer) {
  // Copies that were asked for before are done by now, where the step has any.
  Poll();
  for (const Ready& ready : step_) {
    sender_->SendLayer(ready.transfer, layer, ready.blocks_ready);
  }
}

void KvSends::Poll() {
  while (!copies_.empty() && stage_->Done(copies_.front().ticket)) {
    const Copy copy = copies_.front();
    copies_.pop_front();
    Staged& staged = transfers_.at(copy.ready.transfer);
    sender_->SendLayer(copy.ready.transfer, copy.layer,
                       copy.ready.blocks_ready);
    if (--staged.num_copies > 0 || !staged.commit.has_value()) continue;
    sender_->Commit(copy.ready.transfer, *staged.commit, staged.computed_at);
    staged.commit.reset();
  }
  std::erase_if(retired_, [this](const Retired& retired) {
    return stage_->Done(retired.ticket);
  });
}

void KvSends::Commit(TransferId transfer,
                     const kv_transfer::CommitRecord& record,
                     absl::Time computed_at) {
  const auto it = transfers_.find(transfer);
  if (it != transfers_.end() && it->second.num_copies > 0) {
    it->second.commit = record;
    it->second.computed_at = computed_at;
  } else {
    sender_->Commit(transfer, record, computed_at);
  }
}

void KvSends::Release(TransferId transfer) {
  const auto it = transfers_.find(transfer);
  if (it == transfers_.end()) return;
  std::erase_if(copies_, [transfer](const Copy& copy) {
    return copy.ready.transfer == transfer;
  });
  if (it->second.last.has_value() && !stage_->Done(*it->second.last)) {
    retired_.push_back({*it->second.last, std::move(it->second.held)});
  }
  transfers_.erase(it);
}

}  // namespace baton::prefill_worker
