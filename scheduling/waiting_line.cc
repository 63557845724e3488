#include "scheduling/waiting_line.h"

#include <algorithm>
#include <iterator>

#include "common/log.h"

namespace baton::scheduling {
namespace {

// The bounds of a hint when to come back.
constexpr absl::Duration kMinRetryAfter = absl::Milliseconds(100);
constexpr absl::Duration kMaxRetryAfter = absl::Seconds(30);
// When nothing is known.
constexpr absl::Duration kDefaultRetryAfter = absl::Seconds(1);

// Of the drain rate's sums, what is left after one more request.
constexpr double kKept = 0.95;

// Those that share, the first one first.
constexpr Lane kShared[] = {Lane::kOnTime, Lane::kLate, Lane::kBatch};

absl::Duration Hint(absl::Duration wait) {
  if (wait <= absl::ZeroDuration()) return kDefaultRetryAfter;
  return std::clamp(wait, kMinRetryAfter, kMaxRetryAfter);
}

}  // namespace

const char* LaneName(Lane lane) {
  switch (lane) {
    case Lane::kResumed:
      return "resumed";
    case Lane::kOnTime:
      return "on_time";
    case Lane::kLate:
      return "late";
    case Lane::kBatch:
      return "batch";
  }
  return "unknown";
}

double LeastPrefillSeconds(const ClusterSnapshot& cluster, int32_t tokens) {
  double least = 0;
  bool known = false;
  for (const WorkerSnapshot& worker : cluster.workers) {
    if (!worker.usable || !worker.step_cost.known()) continue;
    const double seconds = worker.step_cost.PrefillSeconds(
        0, tokens, std::max(1, worker.token_budget));
    if (!known || seconds < least) least = seconds;
    known = true;
  }
  return least;
}

void DrainRate::Begin(absl::Time now) {
  if (since_ == absl::InfinitePast()) since_ = now;
}

void DrainRate::Left(int64_t tokens, absl::Time now) {
  if (since_ == absl::InfinitePast()) return;
  tokens_ = kKept * tokens_ + static_cast<double>(tokens);
  seconds_ = kKept * seconds_ + absl::ToDoubleSeconds(now - since_);
  since_ = now;
}

WaitingLine::WaitingLine(const Options& options) : options_(options) {
  CHECK_GE(options_.max_requests, 1);
  CHECK_GE(options_.max_late, 0);
  CHECK_GE(options_.on_time_weight, 1);
  CHECK_GE(options_.late_weight, 1);
  CHECK_GE(options_.batch_weight, 1);
}

int32_t WaitingLine::WeightOf(Lane lane) const {
  switch (lane) {
    case Lane::kLate:
      return options_.late_weight;
    case Lane::kBatch:
      return options_.batch_weight;
    default:
      return options_.on_time_weight;
  }
}

WaitingLine::Order WaitingLine::OrderOf(const WaitingRequest& request,
                                        Lane lane) {
  return {lane == Lane::kResumed ? 0 : -request.priority, request.key};
}

const std::string& WaitingLine::FlowOf(const Waiter& waiter) {
  static const std::string* const everyone = new std::string();
  return waiter.lane == Lane::kResumed ? *everyone : waiter.request.tenant;
}

WaitingLine::Admission WaitingLine::Admit(const WaitingRequest& request,
                                          absl::Time now) {
  CHECK(!waiters_.contains(request.key));
  CHECK_GE(request.tokens, 1);
  CHECK_GE(request.weight, 1);
  MoveLate(now);
  Admission admission;
  Lane lane = LaneOf(request);
  if (lane == Lane::kOnTime) {
    const absl::Time turn = now + WaitFor(TokensAhead(request, lane));
    if (turn > request.start_by) lane = Lane::kLate;
    // Nothing is too late for an idle cluster.
    if (lane == Lane::kLate && !empty() && late_ >= options_.max_late) {
      admission.verdict = Admission::Verdict::kLate;
      admission.retry_after = Hint(turn - request.start_by);
      return admission;
    }
  }
  if (size() >= static_cast<size_t>(options_.max_requests)) {
    admission.retry_after = Hint(WaitFor(TokensAhead(request, lane)));
    admission.evicted = Victim(request, lane);
    if (!admission.evicted.has_value()) {
      admission.verdict = Admission::Verdict::kFull;
      return admission;
    }
    Leave(*admission.evicted);
  }
  Join(request, lane);
  return admission;
}

void WaitingLine::Resume(const WaitingRequest& request, absl::Time now) {
  CHECK(!waiters_.contains(request.key));
  MoveLate(now);
  Join(request, Lane::kResumed);
}

void WaitingLine::Join(const WaitingRequest& request, Lane lane) {
  const Waiter& waiter =
      waiters_.emplace(request.key, Waiter{request, lane}).first->second;
  if (lane == Lane::kLate) {
    ++late_;
    ++num_late_;
  }
  if (lane == Lane::kOnTime) start_by_.insert({request.start_by, request.key});
  AddToFlow(waiter);
}

void WaitingLine::AddToFlow(const Waiter& waiter) {
  LaneState& lane = StateOf(waiter.lane);
  // Who was away begins where the others are.
  if (lane.count == 0) lane.finish = std::max(lane.finish, clock_);
  Flow& flow = lane.flows[FlowOf(waiter)];
  if (flow.requests.empty()) flow.finish = std::max(flow.finish, lane.clock);
  flow.weight = waiter.lane == Lane::kResumed ? 1 : waiter.request.weight;
  flow.tokens += waiter.request.tokens;
  flow.requests.insert(OrderOf(waiter.request, waiter.lane));
  lane.tokens += waiter.request.tokens;
  ++lane.count;
}

void WaitingLine::TakeFromFlow(const Waiter& waiter) {
  LaneState& lane = StateOf(waiter.lane);
  Flow& flow = lane.flows.at(FlowOf(waiter));
  CHECK_EQ(flow.requests.erase(OrderOf(waiter.request, waiter.lane)), 1u);
  flow.tokens -= waiter.request.tokens;
  lane.tokens -= waiter.request.tokens;
  --lane.count;
  if (flow.requests.empty()) Tidy(&lane);
}

void WaitingLine::Tidy(LaneState* lane) {
  for (auto it = lane->flows.begin(); it != lane->flows.end();) {
    const Flow& flow = it->second;
    const bool over = flow.requests.empty() && flow.finish <= lane->clock;
    it = over ? lane->flows.erase(it) : std::next(it);
  }
}

void WaitingLine::Leave(uint64_t key) {
  const auto it = waiters_.find(key);
  CHECK(it != waiters_.end());
  const Waiter& waiter = it->second;
  if (waiter.lane == Lane::kLate) --late_;
  if (waiter.lane == Lane::kOnTime) {
    start_by_.erase({waiter.request.start_by, key});
  }
  if (waiter.aside) {
    std::erase(aside_, key);
  } else {
    TakeFromFlow(waiter);
  }
  waiters_.erase(it);
  if (waiters_.empty()) drain_.End();
}

void WaitingLine::MoveLate(absl::Time now) {
  while (!start_by_.empty() && start_by_.begin()->first < now) {
    MakeLate(start_by_.begin()->second);
  }
}

void WaitingLine::MakeLate(uint64_t key) {
  Waiter& waiter = waiters_.at(key);
  CHECK_EQ(start_by_.erase({waiter.request.start_by, key}), 1u);
  if (!waiter.aside) TakeFromFlow(waiter);
  waiter.lane = Lane::kLate;
  if (!waiter.aside) AddToFlow(waiter);
  ++late_;
  ++num_late_;
}

bool WaitingLine::StandBack(uint64_t key) {
  if (waiters_.at(key).lane != Lane::kOnTime) return false;
  MakeLate(key);
  return true;
}

std::optional<Lane> WaitingLine::NextLane() const {
  if (StateOf(Lane::kResumed).count > 0) return Lane::kResumed;
  std::optional<Lane> next;
  for (const Lane lane : kShared) {
    if (StateOf(lane).count == 0) continue;
    if (lane == Lane::kLate && late_aside_) continue;
    if (!next.has_value() || NextFinish(lane) < NextFinish(*next)) next = lane;
  }
  return next;
}

double WaitingLine::NextFinish(Lane lane) const {
  const LaneState& state = StateOf(lane);
  const Flow* flow = NextFlow(state);
  CHECK(flow != nullptr);
  const Waiter& next = waiters_.at(flow->requests.begin()->second);
  return state.finish +
         static_cast<double>(next.request.tokens) / WeightOf(lane);
}

const WaitingLine::Flow* WaitingLine::NextFlow(const LaneState& lane) const {
  const Flow* next = nullptr;
  for (const auto& [tenant, flow] : lane.flows) {
    if (flow.requests.empty()) continue;
    const bool sooner =
        next == nullptr || flow.finish < next->finish ||
        (flow.finish == next->finish &&
         flow.requests.begin()->second < next->requests.begin()->second);
    if (sooner) next = &flow;
  }
  return next;
}

std::optional<uint64_t> WaitingLine::Next(absl::Time now) {
  MoveLate(now);
  const std::optional<Lane> lane = NextLane();
  if (!lane.has_value()) return std::nullopt;
  const Flow* flow = NextFlow(StateOf(*lane));
  CHECK(flow != nullptr);
  return flow->requests.begin()->second;
}

void WaitingLine::SetAside(uint64_t key) {
  Waiter& waiter = waiters_.at(key);
  if (waiter.aside) return;
  TakeFromFlow(waiter);
  waiter.aside = true;
  aside_.push_back(key);
}

bool WaitingLine::StandsBy(uint64_t key) const {
  return IsLate(key) && NextFinish(Lane::kLate) >
                            std::max(StateOf(Lane::kOnTime).finish, clock_);
}

bool WaitingLine::GivesWay(uint64_t key) const {
  const Waiter& waiter = waiters_.at(key);
  return waiter.lane == Lane::kResumed &&
         waiter.request.request_class == RequestClass::kBatch;
}

void WaitingLine::EndTurn(absl::Time now) {
  late_aside_ = false;
  for (const uint64_t key : aside_) {
    Waiter& waiter = waiters_.at(key);
    waiter.aside = false;
    AddToFlow(waiter);
  }
  aside_.clear();
  if (!waiters_.empty()) drain_.Begin(now);
}

Lane WaitingLine::Place(uint64_t key, absl::Time now) {
  const Waiter& waiter = waiters_.at(key);
  const Lane at = waiter.lane;
  const int64_t tokens = waiter.request.tokens;
  // Who comes again has paid.
  if (at != Lane::kResumed) {
    LaneState& lane = StateOf(at);
    clock_ = std::max(clock_, lane.finish);
    lane.finish += static_cast<double>(tokens) / WeightOf(at);
    Flow& flow = lane.flows[FlowOf(waiter)];
    lane.clock = std::max(lane.clock, flow.finish);
    flow.finish += static_cast<double>(tokens) / waiter.request.weight;
  }
  drain_.Left(tokens, now);
  Leave(key);
  return at;
}

void WaitingLine::GiveBack(Lane lane, const std::string& tenant,
                           int64_t tokens) {
  if (lane == Lane::kResumed) return;
  LaneState& state = StateOf(lane);
  // Not before now, unless it is behind already.
  state.finish =
      std::max(std::min(clock_, state.finish),
               state.finish - static_cast<double>(tokens) / WeightOf(lane));
  const auto it = state.flows.find(tenant);
  if (it == state.flows.end()) return;  // owes nothing
  Flow& flow = it->second;
  flow.finish =
      std::max(std::min(state.clock, flow.finish),
               flow.finish - static_cast<double>(tokens) / flow.weight);
  if (flow.requests.empty()) Tidy(&state);
}

void WaitingLine::Remove(uint64_t key) {
  if (waiters_.contains(key)) Leave(key);
}

std::vector<uint64_t> WaitingLine::Keys() const {
  std::vector<uint64_t> keys;
  keys.reserve(waiters_.size());
  for (const auto& [key, waiter] : waiters_) keys.push_back(key);
  return keys;
}

std::optional<uint64_t> WaitingLine::LastOfLargest(const LaneState& lane,
                                                   double larger_than) const {
  const Flow* largest = nullptr;
  double most = larger_than;
  for (const auto& [tenant, flow] : lane.flows) {
    const double backlog = static_cast<double>(flow.tokens) / flow.weight;
    if (flow.requests.empty() || backlog <= most) continue;
    largest = &flow;
    most = backlog;
  }
  if (largest == nullptr) return std::nullopt;
  return largest->requests.rbegin()->second;
}

std::optional<uint64_t> WaitingLine::Victim(const WaitingRequest& request,
                                            Lane lane) const {
  for (const Lane below : {Lane::kBatch, Lane::kLate}) {
    if (below <= lane || StateOf(below).count == 0) continue;
    return LastOfLargest(StateOf(below), 0);
  }
  const LaneState& state = StateOf(lane);
  const auto it = state.flows.find(request.tenant);
  double own = static_cast<double>(request.tokens) / request.weight;
  if (it != state.flows.end() && !it->second.requests.empty()) {
    const Order last = *it->second.requests.rbegin();
    if (OrderOf(request, lane) < last) return last.second;
    own += static_cast<double>(it->second.tokens) / request.weight;
  }
  return LastOfLargest(state, own);
}

double WaitingLine::TokensAhead(const WaitingRequest& request,
                                Lane lane) const {
  const LaneState& state = StateOf(lane);
  const auto own = state.flows.find(request.tenant);
  const double backlog = own == state.flows.end() ? 0 : own->second.tokens;
  // Until its turn comes the others get what their weights are worth.
  double in_lane = backlog;
  for (const auto& [tenant, flow] : state.flows) {
    if (tenant == request.tenant) continue;
    const double share = (backlog + static_cast<double>(request.tokens)) *
                         flow.weight / request.weight;
    in_lane += std::min(static_cast<double>(flow.tokens), share);
  }
  double ahead = static_cast<double>(StateOf(Lane::kResumed).tokens) + in_lane;
  for (const Lane other : kShared) {
    if (other == lane) continue;
    ahead += std::min(static_cast<double>(StateOf(other).tokens),
                      in_lane * WeightOf(other) / WeightOf(lane));
  }
  return ahead;
}

Lane WaitingLine::LaneOf(const WaitingRequest& request) {
  return request.request_class == RequestClass::kBatch ? Lane::kBatch
                                                       : Lane::kOnTime;
}

absl::Duration WaitingLine::WaitFor(double tokens) const {
  const double rate = drain_.tokens_per_second();
  if (rate <= 0 || empty()) return absl::ZeroDuration();
  return absl::Seconds(tokens / rate);
}

absl::Duration WaitingLine::PredictedWait(const WaitingRequest& request) const {
  return WaitFor(TokensAhead(request, LaneOf(request)));
}

bool WaitingLine::IsTightFor(const WaitingRequest& request, absl::Time now) {
  if (empty()) return false;
  MoveLate(now);
  return size() >= static_cast<size_t>(options_.max_requests) ||
         now + PredictedWait(request) > request.start_by;
}

int32_t WaitingLine::NumBefore(uint64_t key) const {
  const Waiter& waiter = waiters_.at(key);
  int32_t before = 0;
  if (waiter.lane != Lane::kResumed) before = StateOf(Lane::kResumed).count;
  const LaneState& lane = StateOf(waiter.lane);
  const auto flow = lane.flows.find(FlowOf(waiter));
  if (flow == lane.flows.end()) return before;
  const Order order = OrderOf(waiter.request, waiter.lane);
  for (const Order& other : flow->second.requests) {
    if (!(other < order)) break;
    ++before;
  }
  return before;
}

void WaitingLine::CheckInvariants() const {
  int32_t late = 0;
  size_t aside = 0;
  size_t on_time = 0;
  int32_t counts[kLanes] = {};
  int64_t tokens[kLanes] = {};
  for (const auto& [key, waiter] : waiters_) {
    CHECK_EQ(key, waiter.request.key);
    if (waiter.lane == Lane::kLate) ++late;
    if (waiter.lane == Lane::kOnTime) {
      ++on_time;
      CHECK(start_by_.contains({waiter.request.start_by, key}));
    }
    if (waiter.aside) {
      ++aside;
      continue;
    }
    const size_t lane = static_cast<size_t>(waiter.lane);
    ++counts[lane];
    tokens[lane] += waiter.request.tokens;
    CHECK(lanes_[lane]
              .flows.at(FlowOf(waiter))
              .requests.contains(OrderOf(waiter.request, waiter.lane)));
  }
  CHECK_EQ(late, late_);
  CHECK_EQ(aside, aside_.size());
  CHECK_EQ(on_time, start_by_.size());
  for (size_t i = 0; i < kLanes; ++i) {
    CHECK_EQ(counts[i], lanes_[i].count);
    CHECK_EQ(tokens[i], lanes_[i].tokens);
    size_t requests = 0;
    int64_t of_flows = 0;
    for (const auto& [tenant, flow] : lanes_[i].flows) {
      requests += flow.requests.size();
      of_flows += flow.tokens;
    }
    CHECK_EQ(requests, static_cast<size_t>(counts[i]));
    CHECK_EQ(of_flows, tokens[i]);
  }
}

}  // namespace baton::scheduling
