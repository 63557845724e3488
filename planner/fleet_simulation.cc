#include "planner/fleet_simulation.h"

#include <algorithm>

#include "common/log.h"
#include "scheduling/admission.h"
#include "scheduling/placement.h"
#include "scheduling/role_balance.h"

namespace baton::planner {
namespace {

using scheduling::AdmissionVerdict;
using scheduling::BlocksFor;
using scheduling::WorkerCapacity;
using workload::PlannedRequest;

WorkerCapacity CapacityOf(const WorkerProfile& profile) {
  WorkerCapacity capacity;
  capacity.total_blocks = profile.total_blocks;
  capacity.max_sequences = profile.max_sequences;
  capacity.max_context = profile.max_context;
  capacity.max_queued_tokens = profile.max_queued_tokens;
  return capacity;
}

template <typename Workers>
PoolUsage UsageOf(const Workers& workers, double seconds) {
  PoolUsage usage;
  usage.workers = static_cast<int32_t>(workers.size());
  double busy = 0;
  double sequences = 0;
  for (const auto& worker : workers) {
    const WorkerUsage& of_worker = worker.simulation.usage();
    busy += of_worker.busy_seconds;
    sequences += of_worker.sequence_seconds;
    usage.steps += of_worker.steps;
    usage.prompt_tokens += of_worker.prompt_tokens;
  }
  if (busy > 0) usage.batch = sequences / busy;
  if (seconds > 0 && !workers.empty()) {
    usage.busy = busy / seconds / static_cast<double>(workers.size());
  }
  return usage;
}

}  // namespace

FleetSimulation::FleetSimulation(const FleetOptions& options,
                                 absl::Span<const PlannedRequest> requests,
                                 const PrefixChains& prefixes,
                                 FleetListener* listener)
    : options_(options),
      requests_(requests),
      listener_(listener),
      times_(static_cast<size_t>(options.num_prefill + options.num_decode)),
      reports_(static_cast<size_t>(options.num_prefill + options.num_decode)),
      states_(requests.size()) {
  const WorkerProfile& prefill = options.profile.prefill;
  const WorkerProfile& decode = options.profile.decode;
  const PrefillSimulationOptions of_prefill = {
      .cost = prefill.cost,
      .token_budget = prefill.token_budget,
      .block_size = prefill.block_size,
      .total_blocks =
          options.dual_workers ? decode.total_blocks : prefill.total_blocks,
      .fast_forward = options.fast_forward};
  const DecodeSimulationOptions of_decode = {
      .cost = decode.cost,
      .token_budget = decode.token_budget,
      .itl_target_seconds = options.itl_target_seconds,
      .fast_forward = options.fast_forward};
  for (int32_t i = 0; i < options.num_prefill; ++i) {
    auto cache = MakeCache(prefill, prefixes);
    auto* const to_hold_in = cache.get();
    prefill_.push_back(
        {std::move(cache),
         PrefillSimulation(of_prefill, &prefill_listener_, to_hold_in)});
  }
  for (int32_t i = 0; i < options.num_decode; ++i) {
    decode_.push_back({MakeCache(decode, prefixes),
                       DecodeSimulation(of_decode, &decode_listener_, &gaps_),
                       0, decode.total_blocks});
  }
  if (!options.dual_workers) return;
  CHECK(prefixes.empty());
  CHECK_EQ(options.num_prefill, options.num_decode);
  CHECK_EQ(prefill.block_size, decode.block_size);
  for (int32_t i = 0; i < options.num_decode; ++i) {
    const auto place = static_cast<size_t>(i);
    prefill_[place].simulation.ShareWith(&decode_[place].simulation,
                                         &decode_[place].uncounted_blocks);
    decode_[place].simulation.ShareWith(&prefill_[place].simulation);
    roles_.push_back({.role = i < options.first_prefill_roles
                                  ? scheduling::WorkerRole::kPrefill
                                  : scheduling::WorkerRole::kDecode});
  }
}

std::unique_ptr<PrefixCacheSimulation> FleetSimulation::MakeCache(
    const WorkerProfile& worker, const PrefixChains& prefixes) const {
  if (prefixes.empty()) return nullptr;
  const PrefixCacheSimulationOptions options = {
      .block_size = worker.block_size,
      .max_tokens = options_.prefix_cache_tokens};
  return std::make_unique<PrefixCacheSimulation>(options, &prefixes);
}

int32_t FleetSimulation::MostCached(uint32_t request,
                                    const Attempt& attempt) const {
  // A prompt that is computed there needs a token to compute.
  return requests_[request].prompt_tokens - (attempt.prefill < 0 ? 1 : 0);
}

int32_t FleetSimulation::PrefillTokens(uint32_t request) const {
  const int32_t prompt = requests_[request].prompt_tokens;
  if (prompt < kLeastSplitPrompt) return prompt;
  return prompt - static_cast<int32_t>(options_.split_share * prompt);
}

int32_t FleetSimulation::DecodeTokens(uint32_t request) const {
  // The last token of the output is never run.
  return requests_[request].prompt_tokens + requests_[request].output_tokens -
         1;
}

int32_t FleetSimulation::DecodeBlocks(uint32_t request) const {
  return BlocksFor(DecodeTokens(request), options_.profile.decode.block_size);
}

std::optional<size_t> FleetSimulation::Refuses(uint32_t request,
                                               const Attempt& attempt,
                                               double now) const {
  const auto decode_place = static_cast<size_t>(attempt.decode);
  const DecodeWorker& decode = decode_[decode_place];
  WorkerCapacity capacity = CapacityOf(options_.profile.decode);
  capacity.free_blocks = decode.uncounted_blocks;
  if (decode.cache) {
    capacity.free_blocks +=
        decode.cache->SharedBlocksWith(request, MostCached(request, attempt));
  }
  capacity.num_sequences = decode.attempts;
  const int32_t blocks = DecodeBlocks(request);
  if (scheduling::AdmitReservation(capacity,
                                   {.blocks = blocks,
                                    .most_blocks = blocks,
                                    .most_tokens = DecodeTokens(request)}) !=
      AdmissionVerdict::kAdmit) {
    return NumberOfDecode(attempt);
  }
  if (attempt.prefill < 0) return std::nullopt;
  const auto prefill_place = static_cast<size_t>(attempt.prefill);
  const PrefillWorker& prefill = prefill_[prefill_place];
  const int32_t tokens = requests_[request].prompt_tokens;
  capacity = CapacityOf(options_.profile.prefill);
  capacity.free_blocks = prefill.simulation.free_blocks();
  capacity.num_sequences = prefill.attempts;
  capacity.queued_tokens = prefill.simulation.QueuedTokens(now);
  if (scheduling::AdmitPrefill(
          capacity, BlocksFor(tokens, options_.profile.prefill.block_size),
          tokens) != AdmissionVerdict::kAdmit) {
    return prefill_place;
  }
  return std::nullopt;
}

double FleetSimulation::DueTime(uint32_t request) const {
  if (options_.ttft_target_seconds <= 0) return WorkerTimes::kNever;
  return absl::ToDoubleSeconds(requests_[request].at) +
         options_.ttft_target_seconds;
}

void FleetSimulation::Assign(uint32_t request, const Attempt& attempt,
                             double now) {
  const PlannedRequest& planned = requests_[request];
  states_[request].attempt = attempt;
  DecodeWorker& decode = DecodeOf(request);
  const int32_t free_before = decode.free_blocks();
  decode.uncounted_blocks -= DecodeBlocks(request);
  ++decode.attempts;
  int32_t cached = 0;
  if (decode.cache) {
    cached = decode.cache->Hold(request, MostCached(request, attempt));
    decode.cache->Fit(decode.uncounted_blocks);
  }
  states_[request].cached = cached;
  CountBlocks(free_before - decode.free_blocks(), now);
  SimulatedPrompt prompt;
  prompt.request = request;
  prompt.left = planned.prompt_tokens;
  prompt.output = planned.output_tokens;
  prompt.due = DueTime(request);
  if (attempt.prefill < 0) {
    ++local_prefills_;
    cached_tokens_ += cached;
    prompt.computed = cached;
    prompt.left -= cached;
    decode.simulation.AddPrompt(prompt, now);
  } else {
    PrefillWorker& prefill = PrefillOf(request);
    ++prefill.attempts;
    prompt.left = PrefillTokens(request);
    prefill.simulation.Add(prompt, now);
    Touch(static_cast<size_t>(attempt.prefill), now);
  }
  Touch(NumberOfDecode(attempt), now);
}

double FleetSimulation::next_event() const {
  const double landing =
      landings_.empty() ? WorkerTimes::kNever : landings_.top().first;
  return std::min(landing, times_.next_time());
}

void FleetSimulation::Advance() {
  if (!landings_.empty() && landings_.top().first <= times_.next_time()) {
    const auto [now, request] = landings_.top();
    landings_.pop();
    Land(request, now);
    return;
  }
  const double now = times_.next_time();
  const size_t worker = times_.next_worker();
  if (worker < prefill_.size()) {
    prefill_[worker].simulation.Advance();
  } else {
    decode_[worker - prefill_.size()].simulation.Advance();
  }
  Touch(worker, now);
}

void FleetSimulation::OnLastChunk(uint32_t request, double now) {
  const workload::PlannedRequest& planned = requests_[request];
  const bool whole = PrefillTokens(request) == planned.prompt_tokens;
  if (whole && planned.output_tokens == 1) return;  // nothing to hand off
  DecodeOf(request).simulation.Coming(now);
  Touch(NumberOfDecode(states_[request].attempt), now);
}

void FleetSimulation::OnFirstToken(uint32_t request, bool prefill,
                                   double started, double now) {
  if (prefill) return OnPrefilled(request, started, now);
  states_[request].first_at = now;
  listener_->OnFirstToken(request, now);
  InsertDecode(request, now);
}

void FleetSimulation::OnPrefilled(uint32_t request, double started,
                                  double now) {
  if (PrefillTokens(request) < requests_[request].prompt_tokens) {
    landings_.push({LandingTime(request, started, now), request});
    return;
  }
  states_[request].first_at = now;
  listener_->OnFirstToken(request, now);
  if (auto& cache = PrefillOf(request).cache) cache->Insert(request);
  if (requests_[request].output_tokens == 1) {
    LeavePrefill(request, now);
    Finish(request, now);
  } else {
    landings_.push({LandingTime(request, started, now), request});
  }
}

// Layers go while the next ones are computed; the last one cannot. Both ends
// carry one transfer after the other.
double FleetSimulation::LandingTime(uint32_t request, double started,
                                    double now) {
  const ClusterProfile& profile = options_.profile;
  PrefillWorker& prefill = PrefillOf(request);
  DecodeWorker& decode = DecodeOf(request);
  const int32_t lacks = PrefillTokens(request) - states_[request].cached;
  const double bytes = static_cast<double>(profile.kv_bytes_per_token) * lacks;
  const double wire = profile.link_bytes_per_second > 0
                          ? bytes / profile.link_bytes_per_second
                          : 0;
  const double sent =
      std::max({started, prefill.link_free_at, decode.link_free_at}) + wire;
  prefill.link_free_at = decode.link_free_at = sent;
  return std::max(sent, now + wire / profile.num_layers) +
         profile.link_latency_seconds;
}

void FleetSimulation::LeavePrefill(uint32_t request, double now) {
  PrefillWorker& prefill = PrefillOf(request);
  if (prefill.cache) prefill.cache->Release(request);
  prefill.simulation.Release(PrefillTokens(request), now);
  --prefill.attempts;
}

void FleetSimulation::Land(uint32_t request, double now) {
  const PlannedRequest& planned = requests_[request];
  const State& state = states_[request];
  LeavePrefill(request, now);
  Touch(static_cast<size_t>(state.attempt.prefill), now);
  DecodeOf(request).simulation.NoLongerComing(now);
  unsent_tokens_ += state.cached;
  DecodeSimulation& decode = DecodeOf(request).simulation;
  const int32_t computed = PrefillTokens(request);
  if (computed < planned.prompt_tokens) {
    decode.AddPrompt({.request = request,
                      .computed = computed,
                      .left = planned.prompt_tokens - computed,
                      .output = planned.output_tokens,
                      .due = DueTime(request)},
                     now);
  } else {
    InsertDecode(request, now);
    decode.AddStream(request, planned.prompt_tokens, planned.output_tokens - 1,
                     state.first_at, now);
  }
  Touch(NumberOfDecode(state.attempt), now);
}

void FleetSimulation::InsertDecode(uint32_t request, double now) {
  DecodeWorker& decode = DecodeOf(request);
  if (!decode.cache) return;
  const int32_t free_before = decode.free_blocks();
  decode.cache->Insert(request);
  CountBlocks(free_before - decode.free_blocks(), now);
}

void FleetSimulation::Finish(uint32_t request, double now) {
  DecodeWorker& decode = DecodeOf(request);
  const int32_t free_before = decode.free_blocks();
  decode.uncounted_blocks += DecodeBlocks(request);
  if (decode.cache) decode.cache->Release(request);
  --decode.attempts;
  CountBlocks(free_before - decode.free_blocks(), now);
  if (options_.dual_workers) {
    const auto place = static_cast<size_t>(states_[request].attempt.decode);
    prefill_[place].simulation.BlocksCame(now);
    Touch(place, now);
  }
  reports_.Changed(NumberOfDecode(states_[request].attempt), now);
  listener_->OnFinished(request, now);
}

void FleetSimulation::Touch(size_t worker, double now) {
  SetTime(worker);
  reports_.Changed(worker, now);
  if (!options_.dual_workers) return;
  // What one side does takes the other one's time, and may make it usable.
  const size_t other = worker < prefill_.size() ? worker + prefill_.size()
                                                : worker - prefill_.size();
  SetTime(other);
  reports_.Changed(other, now);
}

void FleetSimulation::SetTime(size_t worker) {
  times_.Set(worker,
             worker < prefill_.size()
                 ? prefill_[worker].simulation.next_event()
                 : decode_[worker - prefill_.size()].simulation.next_event());
}

void FleetSimulation::SetRole(size_t worker, scheduling::WorkerRole role,
                              double now) {
  roles_[worker] = {role, now};
  Touch(worker, now);
}

bool FleetSimulation::IsUsable(size_t worker, double now) const {
  if (!options_.dual_workers) return true;
  const bool is_prefill = worker < prefill_.size();
  const size_t place = is_prefill ? worker : worker - prefill_.size();
  const Role& role = roles_[place];
  const scheduling::WorkerRole side = is_prefill
                                          ? scheduling::WorkerRole::kPrefill
                                          : scheduling::WorkerRole::kDecode;
  return scheduling::TakesWork(side, role.role == side,
                               decode_[place].simulation.running(),
                               now - role.changed_at);
}

SimulatedReport FleetSimulation::ReportOf(size_t worker, double now) {
  SimulatedReport report;
  report.usable = IsUsable(worker, now);
  if (worker < prefill_.size()) {
    const PrefillWorker& prefill = prefill_[worker];
    if (prefill.cache) report.prefixes = prefill.cache->TakeChanges();
    report.waiting = prefill.simulation.num_queued();
    report.running = prefill.attempts - report.waiting;
    report.free_blocks = prefill.simulation.free_blocks();
    report.queued_tokens = prefill.simulation.QueuedTokens(now);
  } else {
    const DecodeWorker& decode = decode_[worker - prefill_.size()];
    report.running = decode.simulation.running();
    report.waiting = decode.attempts - report.running;
    if (decode.cache) report.prefixes = decode.cache->TakeChanges();
    report.free_blocks = decode.free_blocks();
    report.queued_tokens = decode.simulation.QueuedTokens(now);
    report.queued_prompts = decode.simulation.num_prompts();
    report.context_tokens = decode.simulation.ContextTokens(now);
  }
  return report;
}

void FleetSimulation::CountBlocks(int32_t change, double now) {
  block_seconds_ +=
      static_cast<double>(blocks_in_use_) * (now - blocks_counted_at_);
  blocks_counted_at_ = now;
  blocks_in_use_ += change;
}

void FleetSimulation::Sum(SimulationResult* result) const {
  result->itl = gaps_.Milliseconds();
  result->local_prefills = local_prefills_;
  result->cached_tokens = cached_tokens_;
  result->unsent_tokens = unsent_tokens_;
  result->prefill = UsageOf(prefill_, result->total_seconds);
  for (const PrefillWorker& worker : prefill_) {
    result->cached_tokens += worker.simulation.usage().cached_tokens;
  }
  result->decode = UsageOf(decode_, result->total_seconds);
  const double blocks = static_cast<double>(decode_.size()) *
                        options_.profile.decode.total_blocks;
  if (result->total_seconds > 0) {
    result->decode.kv_blocks = block_seconds_ / result->total_seconds / blocks;
  }
}

}  // namespace baton::planner
