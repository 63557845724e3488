// Asks DNS again and again where the workers are, on a thread of its own, so
// that a name server that does not answer costs nobody time.
//
// Knows nothing of workers: what it finds goes to the router's loop
// (router/cluster_discovery.cc), which decides who comes and who goes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "router/discovery/dns_target.h"
#include "router/discovery/name_resolver.h"

namespace baton::router {

// What one look-up came to.
struct FoundWorkers {
  // Which target.
  int source = 0;
  // "IP:PORT" each, as AddressOf has it; otherwise as NameResolver says.
  absl::StatusOr<std::vector<std::string>> addresses;
};

class WorkerDiscovery final {
 public:
  struct Options {
    // From the end of one round to the next.
    absl::Duration interval = absl::Seconds(2);
    // Most time of a round.
    absl::Duration timeout = absl::Seconds(5);
    // As in MakeDnsResolver.
    std::string server;
    // Another way to look names up, for tests; null: DNS.
    std::shared_ptr<NameResolver> resolver;
  };
  // Called on the discovery's thread; must not block.
  using Sink = std::function<void(FoundWorkers)>;

  // InvalidArgument when the server is none. Begins at once, and with no
  // targets never.
  static absl::StatusOr<std::unique_ptr<WorkerDiscovery>> Start(
      const Options& options, std::vector<DnsTarget> targets, Sink sink);

  // Stops within milliseconds; the sink is not called any more.
  ~WorkerDiscovery();
  WorkerDiscovery(const WorkerDiscovery&) = delete;
  WorkerDiscovery& operator=(const WorkerDiscovery&) = delete;

 private:
  WorkerDiscovery(const Options& options, std::vector<DnsTarget> targets,
                  std::shared_ptr<NameResolver> resolver, Sink sink);

  void Run();
  void LookUp();

  const Options options_;
  const std::vector<DnsTarget> targets_;
  const std::shared_ptr<NameResolver> resolver_;
  const Sink sink_;

  absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace baton::router
