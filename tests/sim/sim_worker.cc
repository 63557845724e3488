#include "tests/sim/sim_worker.h"

#include <utility>

#include "common/log.h"

namespace baton::sim {
namespace {

// Metrics are not what is tested, and making them for each life takes longer
// than the life.
worker::WorkerMetrics* SharedMetrics(const engine::Engine& engine) {
  static auto* registry = new metrics::Metrics(metrics::Labels());
  static auto* shared = new worker::WorkerMetrics(registry, engine);
  return shared;
}

}  // namespace

SimWorker::SimWorker(const Place& place, const ClusterPlan& plan, World* world)
    : place_(place),
      world_(world),
      engine_(place.role == v1::WORKER_ROLE_PREFILL ? plan.prefill_blocks
                                                    : plan.decode_blocks,
              {.on_plan = [this](const auto& step) { CheckStep(step); },
               .interlude = [this] { Interlude(); }}),
      inbox_(static_cast<size_t>(plan.inbox_capacity)),
      leases_(&world->clock),
      transport_(world->data.CreateTransport(
          place.role == v1::WORKER_ROLE_DECODE, place.data_address)) {
  worker::WorkerOptions options;
  options.name = place.name;
  options.token_budget = plan.token_budget;
  options.max_sequences = plan.max_sequences;
  options.max_queued_tokens = 128;
  options.prefix_cache = plan.prefix_cache;
  options.drain_seconds = 1;
  options.output_reserve = plan.output_reserve;
  options.swap_memory_bytes =
      plan.swap_blocks * engine_.kv_layout().block_bytes();
  options.swap_seconds = plan.swap_seconds;

  worker::WorkerParts parts;
  parts.engine = &engine_;
  parts.transport = transport_.get();
  parts.handoff.self = worker::MakePeerHello(place.role, place.name, engine_);
  parts.handoff.self.set_incarnation(world->dice.Word() | 1);
  parts.handoff.kv = worker::Geometry(&engine_);
  parts.handoff.wake = [this] { inbox_.Wake(); };
  parts.handoff.clock = &world->clock;
  parts.handoff.lease_until = [this](uint64_t session) {
    return leases_.Until(session);
  };
  parts.handoff.hello_timeout = absl::Seconds(1);
  parts.handoff.quarantine_timeout = absl::Milliseconds(500);
  parts.handoff.max_transfers = static_cast<uint32_t>(plan.max_transfers);
  parts.handoff.removed_fence = plan.removed_fence;
  parts.inbox = &inbox_;
  parts.leases = &leases_;
  parts.metrics = SharedMetrics(engine_);
  server_ = world->control.Serve(
      place.party, place.address,
      worker::MakeWorkerHello(options, parts.handoff.self, engine_,
                              transport_->properties().address),
      &inbox_, &leases_);
  parts.outbox = server_.get();
  MakeLoop(options, parts);
}

void SimWorker::MakeLoop(const worker::WorkerOptions& options,
                         const worker::WorkerParts& parts) {
  if (place_.role == v1::WORKER_ROLE_PREFILL) {
    auto sender =
        kv_transfer::HandoffSender::Create(parts.transport, parts.handoff);
    CHECK(sender.ok()) << sender.status();
    prefill_ = std::make_unique<prefill_worker::PrefillLoop>(
        options, parts, *std::move(sender), &world_->clock);
    return;
  }
  auto receiver =
      kv_transfer::HandoffReceiver::Create(parts.transport, parts.handoff);
  CHECK(receiver.ok()) << receiver.status();
  decode_ = std::make_unique<decode_worker::DecodeLoop>(
      options, parts, *std::move(receiver), &world_->clock);
}

SimWorker::~SimWorker() {
  // The data plane ends before the blocks that it writes to.
  transport_->Stop();
}

void SimWorker::Kill() {
  server_->DieSilently();
  world_->data.Kill(transport_.get());
}

worker::WorkerLoop* SimWorker::loop() const {
  if (decode_ != nullptr) return decode_.get();
  return prefill_.get();
}

bool SimWorker::Turn() { return loop()->Turn(absl::ZeroDuration()); }

void SimWorker::Tick() { world_->data.Tick(transport_.get()); }

void SimWorker::RequestDrain() { loop()->RequestDrain(); }

void SimWorker::SetStalled(bool stalled) {
  world_->data.SetStalled(transport_.get(), stalled);
}

LoopView SimWorker::View() const {
  return decode_ != nullptr ? LoopInspector::Of(*decode_)
                            : LoopInspector::Of(*prefill_);
}

void SimWorker::Check() {
  const LoopView view = View();
  CheckBlocks(place_.name, view, &world_->journal);
  CheckTransfers(place_.name, view, InUse(), &world_->journal);
  last_cached_ =
      CheckCached(place_.name, view, last_cached_, engine_, &world_->journal);
  world_->coverage.Add(Covered::kEvicted,
                       view.cache->num_evictions() - num_evictions_);
  num_evictions_ = view.cache->num_evictions();
  NotePreemptions(view);
  for (const LoopView::Holder& holder : view.holders) {
    if (holder.quarantined) world_->coverage.Add(Covered::kQuarantined);
  }
  world_->coverage.Add(Covered::kClosedByForce,
                       static_cast<int64_t>(view.peers_closed_by_force -
                                            peers_closed_by_force_));
  peers_closed_by_force_ = view.peers_closed_by_force;
}

void SimWorker::NotePreemptions(const LoopView& view) {
  const auto count = [&](int64_t now, int64_t* before, Covered what) {
    world_->coverage.Add(what, now - *before);
    *before = now;
  };
  count(view.num_recomputed, &num_recomputed_, Covered::kPreempted);
  count(view.num_swapped, &num_swapped_, Covered::kSwapped);
  count(view.num_brought_back, &num_brought_back_, Covered::kBroughtBack);
}

void SimWorker::CheckStep(const scheduling::StepPlan& plan) {
  world_->journal.Note("step", place_.party, plan.sequences.size(),
                       static_cast<uint64_t>(plan.NumTokens()));
  const LoopView view = View();
  CheckPlan(place_.name, view, plan, InUse(), &world_->journal);
  if (place_.role == v1::WORKER_ROLE_PREFILL) NoteHits(view, plan);
}

void SimWorker::NoteHits(const LoopView& view,
                         const scheduling::StepPlan& plan) {
  layers_done_ = 0;
  cached_of_one_.clear();
  for (const auto& planned : plan.sequences) {
    for (const LoopView::Holder& holder : view.holders) {
      if (holder.sequence != planned.sequence || holder.cached == 0 ||
          holder.cached != planned.first_position) {
        continue;
      }
      world_->coverage.Add(Covered::kPrefillHit);
      if (!holder.transfers) continue;
      for (BlockId block : holder.blocks.first(holder.cached / kBlockSize)) {
        // Its holder and the cache.
        if (view.pool->references(block) == 2) cached_of_one_.insert(block);
      }
    }
  }
}

void SimWorker::Interlude() {
  for (int i = world_->dice.Below(3); i > 0; --i) world_->data.Step();
  const engine::KvLayout& layout = engine_.kv_layout();
  ++layers_done_;
  for (const auto span : world_->data.OpenSends(transport_.get())) {
    const int64_t offset = span.data() - engine_.kv_memory().data();
    if (offset < layers_done_ * layout.layer_bytes() ||
        offset >= layout.total_bytes()) {
      continue;
    }
    const auto block = static_cast<BlockId>(offset % layout.layer_bytes() /
                                            layout.page_bytes());
    // Of a layer that this step has not computed yet.
    if (cached_of_one_.contains(block)) {
      world_->coverage.Add(Covered::kSentEarly);
    }
  }
}

KvInUse SimWorker::InUse() {
  return {.layout = &engine_.kv_layout(),
          .memory = engine_.kv_memory().data(),
          .landings = world_->data.OpenLandings(transport_.get()),
          .sends = world_->data.OpenSends(transport_.get())};
}

void SimWorker::CheckNothingIsLeft() const {
  const LoopView view = View();
  sim::CheckNothingIsLeft(place_.name, view, &world_->journal);
  CheckCached(place_.name, view, /*above=*/0, engine_, &world_->journal);
}

}  // namespace baton::sim
