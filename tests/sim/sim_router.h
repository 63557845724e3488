// One life of one router: the real loop, cluster, registry and request flow on
// simulated control streams. A router that comes back is another one of these.
//
// One thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "router/router_loop.h"
#include "scheduling/prefix_cache.h"
#include "tests/sim/world.h"

namespace baton::sim {

// For so long workers keep what a router asked for without hearing from it.
inline constexpr absl::Duration kRouterLease = absl::Seconds(1);

class SimRouter final {
 public:
  // The world outlives the router.
  SimRouter(int party, const std::string& name,
            const std::vector<std::string>& prefill_addresses,
            const std::vector<std::string>& decode_addresses, World* world);

  void Turn();
  // False when its inbox is full.
  bool Admit(std::unique_ptr<router::IncomingRequest> incoming);
  void ClientGone(router::RequestKey key);

  // No request, and nothing that waits for a time.
  void CheckNothingIsLeft() const;
  // What it knows of the prefix caches of the workers, by name, is what they
  // have.
  void CheckPrefixes(
      const std::map<std::string, std::vector<const scheduling::PrefixCache*>>&
          caches);

 private:
  World* const world_;
  const std::string name_;
  router::RouterInbox inbox_;
  router::ServingState state_;
  router::Cluster cluster_;
  router::RequestFlow flow_;
  router::RouterLoop loop_;
};

}  // namespace baton::sim
