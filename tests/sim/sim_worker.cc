#include "tests/sim/sim_worker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "worker/worker_hello.h"

namespace baton::sim {
namespace {

// Metrics are not what is tested, and making them for each life takes longer
// than the life.
metrics::Metrics* SharedRegistry() {
  static auto* registry = new metrics::Metrics(metrics::Labels());
  return registry;
}

worker::WorkerMetrics* SharedMetrics(const engine::Engine& engine) {
  static auto* shared = new worker::WorkerMetrics(SharedRegistry(), engine);
  return shared;
}

}  // namespace

std::string PrefillAddress(const SimWorker::Place& dual) {
  return absl::StrCat(dual.address, "/prefill");
}

SimWorker::SimWorker(const Place& place, const ClusterPlan& plan, World* world)
    : place_(place),
      world_(world),
      engine_(place.role == v1::WORKER_ROLE_PREFILL ? plan.prefill_blocks
                                                    : plan.decode_blocks,
              {.on_plan = [this](const auto& step) { CheckStep(step); },
               .interlude = [this] { Interlude(); },
               .copied = [this] { return world_->dice.Chance(0.7); },
               .chance = [this](double p) { return world_->dice.Chance(p); },
               .on_ahead = [this](const auto& step) { CheckAhead(step); },
               .on_right_guess =
                   [this] { world_->coverage.Add(Covered::kGuessedRight); },
               .on_model_guess =
                   [this] { world_->coverage.Add(Covered::kModelGuessed); }},
              place.role == v1::WORKER_ROLE_PREFILL
                  ? plan.prefill_staged_blocks
                  // Each side has half of them.
                  : plan.decode_staged_blocks * (place.dual ? 2 : 1),
              // Of one prefill worker others have to do some work.
              place.name != "prefill-2") {
  worker::WorkerOptions options;
  options.name = place.name;
  options.token_budget = plan.token_budget;
  options.max_sequences = plan.max_sequences;
  options.max_queued_tokens = 128;
  options.prefix_cache = plan.prefix_cache;
  options.drain_seconds = 1;
  options.output_reserve = plan.output_reserve;
  options.draft_tokens = plan.draft_tokens;
  options.draft_always = true;
  // Devices have none.
  engine_.SetDraftWeights(plan.draft_weights && !engine_.runs_on_device());
  options.swap_memory_bytes =
      plan.swap_blocks * engine_.kv_layout().block_bytes();
  options.swap_seconds = plan.swap_seconds;
  MakeBlocks(options, plan);
  if (place.dual) {
    roles_.emplace(world->dice.Chance(0.5) ? v1::WORKER_ROLE_PREFILL
                                           : v1::WORKER_ROLE_DECODE,
                   SharedRegistry(), &world->clock);
    const uint64_t process = world->dice.Word() | 1;
    AddSide(v1::WORKER_ROLE_PREFILL, options, plan, process);
    AddSide(v1::WORKER_ROLE_DECODE, options, plan, process);
  } else {
    AddSide(place.role, options, plan, /*process=*/0);
  }
  MakeLoop(options);
}

void SimWorker::MakeBlocks(const worker::WorkerOptions& options,
                           const ClusterPlan& plan) {
  if (!place_.dual && plan.offload_places == 0) return;
  const int32_t num_loops = place_.dual ? 2 : 1;
  blocks_ = std::make_shared<worker::KvBlocks>(&engine_, options.prefix_cache,
                                               num_loops);
  if (plan.offload_places == 0) return;
  std::shared_ptr<SimDisk>& disk = world_->disks[place_.name];
  if (disk == nullptr) disk = std::make_shared<SimDisk>();
  SimStage* const stage = engine_.kv_stage();
  auto store = std::make_unique<SimStore>(
      stage != nullptr ? stage->staged().layout : engine_.kv_layout(),
      stage != nullptr ? stage->staged().memory : engine_.memory(),
      plan.offload_places, disk,
      SimStore::Faults{
          .chance = [this](double p) { return world_->dice.Chance(p); },
          .write_fails = 0.02,
          .damage = 0.05,
          .goes_on = world_->dice.Chance(0.3) ? 0.05 : 0.6});
  store_ = store.get();
  blocks_->AddOffload(std::move(store),
                      {.engine = &engine_,
                       .clock = &world_->clock,
                       .least_patience = absl::Milliseconds(30),
                       .patience_at_first = absl::Milliseconds(30)},
                      num_loops);
  found_stored_ = blocks_->offload->stored().num_blocks() > 0;
}

void SimWorker::AddSide(v1::WorkerRole role,
                        const worker::WorkerOptions& options,
                        const ClusterPlan& plan, uint64_t process) {
  auto owned = std::make_unique<Side>(static_cast<size_t>(plan.inbox_capacity),
                                      &world_->clock);
  Side* const side = owned.get();
  sides_.push_back(std::move(owned));
  const bool listens = role == v1::WORKER_ROLE_DECODE;
  side->transport =
      world_->data.CreateTransport(listens, listens ? place_.data_address : "");
  worker::WorkerParts& parts = side->parts;
  parts.engine = &engine_;
  parts.transport = side->transport.get();
  parts.handoff.self = worker::MakePeerHello(role, place_.name, engine_);
  parts.handoff.self.set_incarnation(world_->dice.Word() | 1);
  parts.handoff.kv = worker::Geometry(&engine_);
  parts.handoff.report_layers = engine_.kv_stage() != nullptr;
  parts.handoff.wake = [side] { side->inbox.Wake(); };
  parts.handoff.clock = &world_->clock;
  parts.handoff.lease_until = [side](uint64_t session) {
    return side->leases.Until(session);
  };
  parts.handoff.hello_timeout = absl::Seconds(1);
  parts.handoff.quarantine_timeout = absl::Milliseconds(500);
  parts.handoff.max_transfers = static_cast<uint32_t>(plan.max_transfers);
  parts.handoff.removed_fence = plan.removed_fence;
  parts.inbox = &side->inbox;
  parts.leases = &side->leases;
  parts.metrics = SharedMetrics(engine_);
  parts.blocks = blocks_;
  parts.roles = roles_.has_value() ? &*roles_ : nullptr;
  v1::WorkerHello hello =
      worker::MakeWorkerHello(options, parts.handoff.self, engine_,
                              side->transport->properties().address,
                              /*num_loops=*/place_.dual ? 2 : 1);
  hello.set_process(process);
  side->server = world_->control.Serve(
      place_.party,
      place_.dual && !listens ? PrefillAddress(place_) : place_.address, hello,
      &side->inbox, &side->leases);
  parts.outbox = side->server.get();
}

void SimWorker::MakeLoop(const worker::WorkerOptions& options) {
  std::unique_ptr<prefill_worker::PrefillLoop> prefill;
  std::unique_ptr<decode_worker::DecodeLoop> decode;
  if (Is(v1::WORKER_ROLE_PREFILL)) {
    const worker::WorkerParts& parts = sides_.front()->parts;
    auto sender =
        kv_transfer::HandoffSender::Create(parts.transport, parts.handoff);
    CHECK(sender.ok()) << sender.status();
    prefill = std::make_unique<prefill_worker::PrefillLoop>(
        options, parts, *std::move(sender), &world_->clock);
    prefill_ = prefill.get();
  }
  if (Is(v1::WORKER_ROLE_DECODE)) {
    const worker::WorkerParts& parts = sides_.back()->parts;
    auto receiver =
        kv_transfer::HandoffReceiver::Create(parts.transport, parts.handoff);
    CHECK(receiver.ok()) << receiver.status();
    decode = std::make_unique<decode_worker::DecodeLoop>(
        options, parts, *std::move(receiver), &world_->clock);
    decode_ = decode.get();
  }
  if (place_.dual) {
    loop_ = std::make_unique<dual_worker::DualLoop>(
        std::move(prefill), std::move(decode), &*roles_);
  } else if (prefill != nullptr) {
    loop_ = std::move(prefill);
  } else {
    loop_ = std::move(decode);
  }
}

SimWorker::~SimWorker() {
  // The data plane ends before the blocks that it writes to.
  for (const auto& side : sides_) side->transport->Stop();
}

void SimWorker::Kill() {
  for (const auto& side : sides_) {
    side->server->DieSilently();
    world_->data.Kill(side->transport.get());
  }
}

bool SimWorker::Turn() { return loop_->Turn(absl::ZeroDuration()); }

void SimWorker::Tick() {
  if (engine_.kv_stage() != nullptr) engine_.kv_stage()->Pass();
  if (store_ != nullptr) store_->Pass();
  for (const auto& side : sides_) world_->data.Tick(side->transport.get());
}

void SimWorker::RequestDrain() { loop_->RequestDrain(); }

void SimWorker::SetStalled(bool stalled) {
  for (const auto& side : sides_) {
    world_->data.SetStalled(side->transport.get(), stalled);
  }
}

void SimWorker::BeWell() {
  if (store_ != nullptr) store_->BeWell();
}

std::vector<const scheduling::PrefixCache*> SimWorker::Prefixes() const {
  std::vector<const scheduling::PrefixCache*> prefixes = {View().cache};
  if (store_ != nullptr) prefixes.push_back(&blocks_->offload->stored());
  return prefixes;
}

void SimWorker::ChangeRole() {
  roles_->Set(roles_->role() == v1::WORKER_ROLE_PREFILL
                  ? v1::WORKER_ROLE_DECODE
                  : v1::WORKER_ROLE_PREFILL,
              "the dice say so");
}

LoopView SimWorker::View() const {
  if (prefill_ == nullptr) return LoopInspector::Of(*decode_);
  LoopView view = LoopInspector::Of(*prefill_);
  if (decode_ == nullptr) return view;
  const LoopView more = LoopInspector::Of(*decode_);
  if (view.num_attempts > 0 && more.num_attempts > 0) {
    world_->coverage.Add(Covered::kBothSides);
  }
  view.Add(more);
  return view;
}

void SimWorker::Check() {
  const LoopView view = View();
  CheckBlocks(place_.name, view, &world_->journal);
  CheckTransfers(place_.name, view, InUse(), &world_->journal);
  if (SimStage* const stage = engine_.kv_stage(); stage != nullptr) {
    CheckStaged(place_.name, view, DataPlaneInUse(), stage->StagedInUse(),
                &world_->journal);
    if (!view.staged_holders.empty() && !place_.dual) {
      world_->coverage.Add(Is(v1::WORKER_ROLE_PREFILL)
                               ? Covered::kStagedSend
                               : Covered::kStagedLanding);
    }
  }
  last_cached_ =
      CheckCached(place_.name, view, last_cached_, engine_, &world_->journal);
  world_->coverage.Add(Covered::kEvicted,
                       view.cache->num_evictions() - num_evictions_);
  num_evictions_ = view.cache->num_evictions();
  NotePreemptions(view);
  NoteOffload();
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

void SimWorker::NoteOffload() {
  if (store_ == nullptr) return;
  blocks_->offload->CheckInvariants();
  const worker::KvOffload::Stats& now = blocks_->offload->stats();
  const auto count = [&](uint64_t worker::KvOffload::Stats::*number,
                         Covered what) {
    world_->coverage.Add(
        what, static_cast<int64_t>(now.*number - offload_stats_.*number));
  };
  using Stats = worker::KvOffload::Stats;
  count(&Stats::saved_blocks, Covered::kStored);
  count(&Stats::dropped_error, Covered::kStoreFailed);
  count(&Stats::dropped_full, Covered::kStoreFull);
  count(&Stats::loads_done, Covered::kLoaded);
  if (found_stored_) count(&Stats::loads_done, Covered::kLoadedFromEarlierLife);
  count(&Stats::loads_failed, Covered::kLoadFailed);
  count(&Stats::loads_given_up, Covered::kLoadGivenUp);
  offload_stats_ = now;
}

void SimWorker::CheckStep(const scheduling::StepPlan& plan) {
  world_->journal.Note("step", place_.party, plan.sequences.size(),
                       static_cast<uint64_t>(plan.NumTokens()));
  const LoopView view = View();
  CheckPlan(place_.name, view, plan, InUse(), /*is_ahead=*/false,
            &world_->journal);
  if (plan.sequences.front().follows) {
    world_->coverage.Add(Covered::kRanAhead);
    if (place_.dual) world_->coverage.Add(Covered::kDualRanAhead);
  }
  if (Is(v1::WORKER_ROLE_PREFILL)) NoteHits(view, plan);
  for (const scheduling::PlannedSequence& planned : plan.sequences) {
    world_->coverage.Add(Covered::kGuessed, planned.num_drafts > 0);
  }
}

void SimWorker::CheckAhead(const scheduling::StepPlan& plan) {
  const LoopView view = View();
  CheckPlan(place_.name, view, plan, InUse(), /*is_ahead=*/true,
            &world_->journal);
  for (const LoopView::Holder& holder : view.holders) {
    if (holder.over) world_->coverage.Add(Covered::kOverAhead);
  }
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
  if (store_ != nullptr) store_->Pass();
  const engine::KvLayout& layout = engine_.kv_layout();
  ++layers_done_;
  if (engine_.kv_stage() != nullptr) {
    engine_.kv_stage()->Pass();
    return;
  }
  if (!Is(v1::WORKER_ROLE_PREFILL)) return;
  for (const auto span :
       world_->data.OpenSends(sides_.front()->transport.get())) {
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
  SimStage* const stage = engine_.kv_stage();
  if (stage == nullptr) return DataPlaneInUse();
  return {.layout = &engine_.kv_layout(),
          .memory = engine_.memory().data(),
          .landings = stage->DeviceLandings()};
}

KvInUse SimWorker::DataPlaneInUse() {
  KvInUse in_use = {.layout = &engine_.kv_layout(),
                    .memory = engine_.memory().data()};
  if (SimStage* const stage = engine_.kv_stage(); stage != nullptr) {
    in_use.layout = &stage->staged().layout;
    in_use.memory = stage->staged().memory.data();
  }
  for (const auto& side : sides_) {
    const auto add = [](const auto& spans, auto* all) {
      all->insert(all->end(), spans.begin(), spans.end());
    };
    add(world_->data.OpenLandings(side->transport.get()), &in_use.landings);
    add(world_->data.OpenSends(side->transport.get()), &in_use.sends);
  }
  return in_use;
}

void SimWorker::CheckNothingIsLeft() const {
  const LoopView view = View();
  sim::CheckNothingIsLeft(place_.name, view, &world_->journal);
  CheckCached(place_.name, view, /*above=*/0, engine_, &world_->journal);
}

}  // namespace baton::sim
