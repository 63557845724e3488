#include "tests/sim/sim_router.h"

#include <utility>

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
  options.lease = absl::Seconds(1);
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

}  // namespace baton::sim
