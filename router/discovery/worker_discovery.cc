#include "router/discovery/worker_discovery.h"

#include <utility>

#include "common/log.h"
#include "common/status_macros.h"
#include "router/discovery/dns_resolver.h"

namespace baton::router {

absl::StatusOr<std::unique_ptr<WorkerDiscovery>> WorkerDiscovery::Start(
    const Options& options, std::vector<DnsTarget> targets, Sink sink) {
  std::shared_ptr<NameResolver> resolver = options.resolver;
  if (resolver == nullptr) {
    BATON_ASSIGN_OR_RETURN(resolver, MakeDnsResolver(options.server));
  }
  std::unique_ptr<WorkerDiscovery> discovery(new WorkerDiscovery(
      options, std::move(targets), std::move(resolver), std::move(sink)));
  if (!discovery->targets_.empty()) {
    discovery->thread_ = std::thread([raw = discovery.get()] { raw->Run(); });
  }
  return discovery;
}

WorkerDiscovery::WorkerDiscovery(const Options& options,
                                 std::vector<DnsTarget> targets,
                                 std::shared_ptr<NameResolver> resolver,
                                 Sink sink)
    : options_(options),
      targets_(std::move(targets)),
      resolver_(std::move(resolver)),
      sink_(std::move(sink)) {}

WorkerDiscovery::~WorkerDiscovery() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }
  resolver_->Stop();
  thread_.join();
}

void WorkerDiscovery::Run() {
  while (true) {
    LookUp();
    absl::MutexLock lock(&mu_);
    if (mu_.AwaitWithTimeout(absl::Condition(&stopped_), options_.interval)) {
      return;
    }
  }
}

void WorkerDiscovery::LookUp() {
  std::vector<std::string> names;
  for (const DnsTarget& target : targets_) names.push_back(target.name);
  std::vector<NameResolver::Answer> answers =
      resolver_->Resolve(names, options_.timeout);
  CHECK_EQ(answers.size(), targets_.size());
  {
    // What was cut short says nothing.
    absl::MutexLock lock(&mu_);
    if (stopped_) return;
  }
  for (size_t i = 0; i < targets_.size(); ++i) {
    FoundWorkers found = {.source = static_cast<int>(i),
                          .addresses = std::move(answers[i])};
    if (found.addresses.ok()) {
      for (std::string& address : *found.addresses) {
        address = AddressOf(address, targets_[i].port);
      }
    }
    sink_(std::move(found));
  }
}

}  // namespace baton::router
