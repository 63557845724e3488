#include "tests/sim/sim_router.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "tests/sim/sim_model.h"

namespace baton::sim {
namespace {

using router::Cluster;

constexpr size_t kInboxCapacity = 16;

router::RouterMetrics* SharedMetrics() {
  static auto* registry = new metrics::Metrics(metrics::Labels());
  static auto* shared = new router::RouterMetrics(registry);
  return shared;
}

const scheduling::PlacementPolicy& Policy() {
  static const auto* policy = new scheduling::LeastLoadPlacement;
  return *policy;
}

Cluster::Options OptionsOf(const std::vector<std::string>& prefill_addresses,
                           const std::vector<std::string>& decode_addresses) {
  Cluster::Options options;
  options.prefill_addresses = prefill_addresses;
  options.decode_addresses = decode_addresses;
  options.registry.pairing_grace = absl::Milliseconds(300);
  options.registry.min_pair_retry = absl::Milliseconds(50);
  options.registry.max_pair_retry = absl::Milliseconds(500);
  options.hello_timeout = absl::Seconds(1);
  options.silence_timeout = absl::Seconds(3);
  options.min_reconnect = absl::Milliseconds(10);
  options.max_reconnect = absl::Milliseconds(200);
  options.lease = kRouterLease;
  options.prefixes.index.max_bytes = 256 << 10;
  return options;
}

router::RequestFlow::Options FlowOptions() {
  router::RequestFlow::Options options;
  options.worker_wait = absl::Seconds(5);
  return options;
}

v1::RouterHello Hello(const std::string& name, World* world) {
  v1::RouterHello hello;
  hello.set_router_name(name);
  hello.set_incarnation(world->dice.Word() | 1);
  return hello;
}

}  // namespace

SimRouter::SimRouter(int party, const std::string& name,
                     const std::vector<std::string>& prefill_addresses,
                     const std::vector<std::string>& decode_addresses,
                     World* world)
    : world_(world),
      name_(name),
      inbox_(kInboxCapacity),
      cluster_(OptionsOf(prefill_addresses, decode_addresses), SimModel(),
               Hello(name, world), world->control.LinksOf(party), &inbox_,
               SharedMetrics(), world->clock.Now()),
      flow_(FlowOptions(), SimModel(), Policy(), &cluster_, SharedMetrics(),
            &world->clock),
      loop_(
          {}, &inbox_, &cluster_, &flow_, &state_,
          [](const router::Serving&) {}, &world->clock) {}

void SimRouter::Turn() { CHECK(loop_.Turn(absl::ZeroDuration())); }

bool SimRouter::Admit(std::unique_ptr<router::IncomingRequest> incoming) {
  return inbox_.TryPush(router::RouterEvent(std::move(incoming)));
}

void SimRouter::ClientGone(router::RequestKey key) {
  inbox_.PushUnbounded(router::RouterEvent(router::ClientGone{key}));
}

void SimRouter::CheckNothingIsLeft() const {
  if (flow_.empty() && flow_.NextDue() == absl::InfiniteFuture()) return;
  world_->journal.Violate(
      absl::StrCat(name_, ": in the end there are requests or timers"));
}

void SimRouter::CheckPrefixes(
    const std::map<std::string, std::vector<const scheduling::PrefixCache*>>&
        caches) {
  scheduling::PrefixIndex* const index = cluster_.prefixes().index();
  index->CheckInvariants();
  int64_t held = 0;
  for (const router::WorkerRegistry::Worker& worker :
       cluster_.registry().workers()) {
    const auto cache = caches.find(worker.hello.worker_name());
    if (worker.id == scheduling::kNoWorker || cache == caches.end()) continue;
    // Each once, whoever has it.
    absl::flat_hash_set<Hash128> names;
    for (const scheduling::PrefixCache* one : cache->second) {
      std::vector<Hash128> its;
      one->AppendNames(0, static_cast<size_t>(one->pool_size()), &its);
      names.insert(its.begin(), its.end());
    }
    held += static_cast<int64_t>(names.size());
    for (const Hash128& name : names) {
      std::vector<scheduling::PrefixMatch> matches;
      index->Match({name}, &matches);
      const bool known = std::any_of(
          matches.begin(), matches.end(),
          [&](const auto& match) { return match.worker == worker.id; });
      if (known) {
        world_->coverage.Add(Covered::kPrefixKnown);
      } else {
        world_->journal.Violate(absl::StrCat(
            name_, " does not know of a block that ",
            worker.hello.worker_name(), " has in its prefix cache, or stored"));
      }
    }
  }
  if (index->num_held() == held) return;
  world_->journal.Violate(
      absl::StrCat(name_, " believes that ", index->num_held(),
                   " blocks are in prefix caches, where there are ", held));
}

}  // namespace baton::sim
