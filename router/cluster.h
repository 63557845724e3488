// The workers of this router: a link to each address, kept up for ever, or for
// as long as a name in DNS has it, and the registry that knows what is behind
// it.
//
// Used by the router's loop thread only (the links' events reach it through the
// inbox). Never blocks on the network.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "baton/v1/worker.pb.h"
#include "router/discovery/worker_discovery.h"
#include "router/prefix_hints.h"
#include "router/role_control.h"
#include "router/router_inbox.h"
#include "router/router_metrics.h"
#include "router/served_model.h"
#include "router/worker_link.h"
#include "router/worker_registry.h"
#include "scheduling/failure_detector.h"

namespace baton::router {

class Cluster final {
 public:
  struct Options {
    // "HOST:PORT", or "dns:NAME:PORT" (router/discovery/dns_target.h): the
    // constructor CHECKs that it is one of them.
    std::vector<std::string> prefill_addresses;
    std::vector<std::string> decode_addresses;
    WorkerRegistry::Options registry;
    PrefixHints::Options prefixes;
    RoleControl::Options roles;
    // A worker that does not say hello for this long is connected to anew.
    absl::Duration hello_timeout = absl::Seconds(10);
    // When a worker that is silent is lost, though the connection stands.
    scheduling::FailureDetector::Options detector;
    // One whose loop is silent for this long does not count as alive either,
    // whatever heartbeats it answers. Long enough for the longest step of a
    // slow machine: workers report between steps.
    absl::Duration silence_timeout = absl::Seconds(60);
    // Waits before a broken stream is opened again, doubling up to the last.
    absl::Duration min_reconnect = absl::Milliseconds(50);
    absl::Duration max_reconnect = absl::Seconds(2);
    // What the router asked a worker for ends when the worker hears nothing of
    // it for this long; within it, a heartbeat is sent five times.
    absl::Duration lease = absl::Seconds(5);
  };

  // What one event means to requests.
  struct News {
    scheduling::WorkerId worker = scheduling::kNoWorker;
    std::string worker_name;
    // The worker is gone, and with it all that was asked of it. Otherwise
    // `message` is a Grant, a Refusal, a TokenFrame or an Outcome.
    bool lost = false;
    v1::WorkerMessage message;
  };

  // `model`, `inbox` and `metrics` outlive the cluster. Connects in Advance.
  Cluster(const Options& options, const ServedModel& model,
          const v1::RouterHello& hello, const MakeWorkerLink& make_link,
          RouterInbox* inbox, RouterMetrics* metrics, absl::Time now);

  std::optional<News> Take(LinkEvent event, absl::Time now);

  // Does what time asks for: connects, gives up on silent workers, pairs.
  // Returns when to be called again at the latest.
  absl::Time Advance(absl::Time now);

  // What DNS had for one of the sources. Addresses that are new are connected
  // to. One that DNS does not have any more is dropped when it is not
  // connected, or gets no requests and is dropped when it has none; nothing
  // that failed counts.
  void TakeFound(const FoundWorkers& found, absl::Time now);

  // What is to be looked up, by FoundWorkers::source.
  std::vector<DnsTarget> Sources() const;

  // A message to a worker that is lost, or that cannot be sent, is dropped: the
  // news of the loss follows.
  void Send(scheduling::WorkerId worker, v1::RouterMessage message);

  // The worker said that it takes no more requests.
  void Draining(scheduling::WorkerId worker, absl::Time now);

  WorkerRegistry& registry() { return registry_; }
  // Who has how much of a prompt.
  PrefixHints& prefixes() { return prefixes_; }
  // What the roles of dual workers follow.
  RoleControl& roles() { return roles_; }

 private:
  struct Source {
    scheduling::WorkerRole role = scheduling::WorkerRole::kDecode;
    DnsTarget target;
    // Of the last look-up that found some.
    std::set<std::string> listed;
    // Why the last one did not; empty: it did.
    std::string failure;
    bool too_many = false;  // said once
  };

  struct Peer {
    // Null: nobody's place, as WorkerRegistry::Worker::removed.
    std::unique_ptr<WorkerLink> link;
    // The source that had it last; -1: the operator named it.
    int source = -1;
    // Look-ups in a row that went well and did not have it.
    int missed = 0;
    // To be removed when its stream has ended.
    bool leaving = false;
    bool said_hello = false;
    bool breaking = false;
    // Of those that answer heartbeats.
    bool answers = false;
    // What grammars are about was sent on this stream.
    bool has_vocabulary = false;
    scheduling::FailureDetector detector;
    absl::Time asked_at = absl::InfinitePast();
    bool silent = false;  // that is why it is breaking
    absl::Time connecting_since;
    absl::Time last_heard_at;  // of its loop
    absl::Time next_connect_at;
    absl::Time next_heartbeat_at;  // at the latest
    absl::Duration backoff;
  };

  void Add(scheduling::WorkerRole role, const std::string& address, int source,
           absl::Time now);
  void AddSource(scheduling::WorkerRole role, const std::string& target);
  // Those of a role, by address.
  absl::flat_hash_map<std::string, int> PeersOf(
      scheduling::WorkerRole role) const;
  // Whether any source of its role has the peer's address.
  bool Listed(int index) const;
  // Return whether something has changed.
  bool TakeListed(int source, absl::Time now);
  bool TakeUnlisted(int source, bool any_listed, absl::Time now);
  // Drops who is not in DNS any more and is not needed.
  void DropUnlisted(absl::Time now);
  void Remove(int index, absl::Time now);
  void CountDiscovered();
  void TakeHello(int index, const v1::WorkerMessage& message, absl::Time now);
  News TakeEnd(int index, const std::string& reason, absl::Time now);
  void TakePrefixes(int index, v1::WorkerMessage message);
  absl::Time AdvancePeer(int index, absl::Time now);
  absl::Time SendHeartbeat(int index, absl::Time now);
  // When the worker is lost if it stays silent.
  absl::Time LostAt(const Peer& peer, absl::Time now) const;
  // Whoever was not heard while this thread did not run may have spoken.
  void TakeStall(absl::Time now);
  void Break(int index, const std::string& why);
  // Before the first sequence with a grammar; once a stream. As
  // WorkerLink::Send.
  bool SendVocabulary(int index);
  void UpdateGauges(absl::Time now);

  const Options options_;
  v1::RouterMessage hello_;
  v1::Vocabulary vocabulary_;  // what grammars are about
  const MakeWorkerLink make_link_;
  RouterInbox* const inbox_;
  RouterMetrics* const metrics_;
  WorkerRegistry registry_;
  PrefixHints prefixes_;
  RoleControl roles_;
  std::vector<Source> sources_;
  std::vector<Peer> peers_;
  // When Advance wanted to be called again.
  absl::Time wanted_at_ = absl::InfiniteFuture();
  // As of the gauges.
  int breakers_open_ = 0;
  int64_t stuck_changes_ = 0;
  int64_t role_changes_ = 0;
};

}  // namespace baton::router
