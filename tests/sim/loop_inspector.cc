#include "tests/sim/loop_inspector.h"

#include "common/log.h"
#include "decode_worker/decode_loop.h"
#include "prefill_worker/prefill_loop.h"

namespace baton::sim {

void LoopView::Add(const LoopView& other) {
  CHECK(pool == other.pool && cache == other.cache);
  // What the blocks' offload holds is in both.
  for (const Holder& holder : other.holders) {
    if (!holder.fills && !holder.drains) holders.push_back(holder);
  }
  staged_holders.insert(staged_holders.end(),
                        other.staged_holders.begin() + other.num_offload_staged,
                        other.staged_holders.end());
  num_attempts += other.num_attempts;
  transfers_open += other.transfers_open;
  transfers_quarantined += other.transfers_quarantined;
  peers_closed_by_force += other.peers_closed_by_force;
  num_waiting_swapped += other.num_waiting_swapped;
  num_recomputed += other.num_recomputed;
  num_swapped += other.num_swapped;
  num_brought_back += other.num_brought_back;
}

template <typename Loop>
LoopView LoopInspector::ViewOf(const Loop& loop) {
  LoopView view;
  view.pool = &loop.pool_;
  view.cache = &loop.cache_;
  if (loop.blocks_->staged.has_value()) {
    view.staged_pool = &*loop.blocks_->staged;
  }
  for (const auto* attempt : loop.attempts_.All()) {
    view.holders.push_back({.sequence = attempt->sequence->id(),
                            .transfers = attempt->transfer.has_value(),
                            .cached = attempt->sequence->cached(),
                            .salt = attempt->sequence->cache_salt(),
                            .blocks = attempt->sequence->blocks().ids()});
  }
  for (const auto& [transfer, blocks] : loop.quarantine_.held()) {
    view.holders.push_back({.quarantined = true, .blocks = blocks.ids()});
  }
  view.num_attempts = loop.attempts_.size();
  if (const auto& offload = loop.blocks_->offload; offload != nullptr) {
    for (const auto blocks : offload->Filling()) {
      view.holders.push_back({.fills = true, .blocks = blocks});
    }
    for (const auto blocks : offload->Draining()) {
      view.holders.push_back({.drains = true, .blocks = blocks});
    }
    view.staged_holders = offload->Staged();
    view.num_offload_staged =
        static_cast<ptrdiff_t>(view.staged_holders.size());
  }
  return view;
}

LoopView LoopInspector::Of(const decode_worker::DecodeLoop& loop) {
  LoopView view = ViewOf(loop);
  const auto stats = loop.landings_.stats();
  view.transfers_open = stats.transfers_open;
  view.transfers_quarantined = stats.transfers_quarantined;
  view.peers_closed_by_force = stats.peers_closed_by_force;
  loop.scheduler_.CheckInvariants();
  for (const auto& [transfer, staged] : loop.landings_.transfers_) {
    view.staged_holders.push_back(staged.held.ids());
  }
  for (const scheduling::PooledBlocks& blocks : loop.held_for_ahead_) {
    view.holders.push_back({.over = true, .blocks = blocks.ids()});
  }
  view.num_waiting_swapped = loop.swap_store_.num_sequences();
  view.num_recomputed = loop.num_preempted_ - loop.num_swapped_;
  view.num_swapped = loop.num_swapped_;
  view.num_brought_back = loop.num_brought_back_;
  return view;
}

LoopView LoopInspector::Of(const prefill_worker::PrefillLoop& loop) {
  LoopView view = ViewOf(loop);
  for (const auto& [transfer, staged] : loop.sends_.transfers_) {
    view.staged_holders.push_back(staged.held.ids());
  }
  for (const auto& retired : loop.sends_.retired_) {
    view.staged_holders.push_back(retired.held.ids());
  }
  const auto stats = loop.sender_->stats();
  view.transfers_open = stats.transfers_open;
  view.transfers_quarantined = stats.transfers_quarantined;
  view.peers_closed_by_force = stats.peers_closed_by_force;
  return view;
}

}  // namespace baton::sim
