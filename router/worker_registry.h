// The workers that the operator named, or that a name in DNS has: who is there,
// in which life, what it can hold, what it reported, who fits whom, and who is
// paired with whom.
//
// Keeps the snapshot that placement reads. Two workers fit when their
// fingerprints fit, and a worker fits the router when it runs the
// router's model. What a worker said is remembered while it is away, so that a
// misfit cannot slip in during the restart of the one it does not fit.
//
// A message of one worker takes time in the number of workers at most, a turn
// in theirs and that of the pairs that something is due of: a cluster of a
// thousand has hundreds of thousands of pairs.
//
// Pure but for logging: no IO, no clock. Used by the router's loop thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "baton/v1/worker.pb.h"
#include "router/adapter_names.h"
#include "router/served_model.h"
#include "scheduling/circuit_breaker.h"
#include "scheduling/placement.h"

namespace baton::router {

class WorkerRegistry final {
 public:
  struct Options {
    // Whether decode workers may prefill at all.
    bool local_prefill = true;
    // How long after start requests wait for the prefill workers that were
    // named, before decode workers prefill by themselves.
    absl::Duration pairing_grace = absl::Seconds(2);
    // A prefill worker that could not connect to a decode worker is asked again
    // after this, doubling up to the last; one that does not answer, after the
    // last.
    absl::Duration min_pair_retry = absl::Milliseconds(500);
    absl::Duration max_pair_retry = absl::Seconds(8);
    // Of each worker, and of each pair.
    scheduling::CircuitBreaker::Options breaker;
    // A worker reports every second, and takes a step whenever it has something
    // to compute. One that did neither for so long hangs: it gets no requests
    // until it does.
    absl::Duration stuck_after = absl::Seconds(60);
    // Whether workers that do not compute to the same bits may serve together:
    // a request that is placed again could then go on with other words.
    bool mixed_backends = true;
  };

  // One address, by index.
  struct Worker {
    // Nobody's: the place of an address that is gone, until another takes it.
    bool removed = false;
    scheduling::WorkerRole role = scheduling::WorkerRole::kDecode;
    std::string address;
    // kNoWorker while it is not connected.
    scheduling::WorkerId id = scheduling::kNoWorker;
    // Whether `hello` was ever said.
    bool known = false;
    v1::WorkerHello hello;
    // The hello's fingerprint as bytes, the backend where that counts, and
    // whether it takes grammars:
    // equal ones fit.
    std::string fingerprint;
    bool draining = false;
    // DNS does not have it any more: it gets no new requests.
    bool withdrawn = false;
    // Of a dual worker: this side gets no requests now; and the worker's role.
    bool standby = false;
    scheduling::WorkerRole process_role = scheduling::WorkerRole::kDecode;
    // Those of this connection's that are not over.
    int attempts = 0;
    // Why the last attempt to connect failed; empty: it did not.
    std::string unreachable;
    // Why it is never placed; empty when it fits.
    std::string misfit;
    // Counts its load reports.
    uint64_t reports = 0;
    // Of the last report, and when there last was a step, or nothing to
    // compute.
    uint64_t steps = 0;
    absl::Time progressed_at;
    bool stuck = false;
    // Of this connection.
    scheduling::CircuitBreaker breaker;
  };

  // Two connected workers that fit each other.
  struct Link {
    int prefill = 0;  // indices
    int decode = 0;
    std::string why_not;  // empty: used
    // As last reported; empty and 0 until the link was measured.
    std::string transport;
    double bandwidth_bytes = 0;
    absl::Duration latency;
  };

  // To be sent to a prefill worker.
  struct PairCommand {
    int prefill = 0;  // index
    v1::Pair pair;
  };

  // `model` outlives the registry. `start` begins the pairing grace.
  WorkerRegistry(const ServedModel& model, const Options& options,
                 absl::Time start);

  // Names an address. The indices count up from 0; those of removed workers
  // are given again.
  int Add(scheduling::WorkerRole role, const std::string& address);

  // Workers of that role are looked up; `why_none` says what came of it last,
  // for who asks why there is none. Empty: it went well.
  void SetSource(scheduling::WorkerRole role, const std::string& target,
                 const std::string& why_none);
  // Whether DNS still has the address.
  void SetWithdrawn(int index, bool withdrawn, absl::Time now);
  // Nothing that was asked of the worker is under way.
  bool Idle(int index) const { return workers_[index].attempts == 0; }
  // Forgets the address. REQUIRES: it is not connected.
  void Remove(int index, absl::Time now);

  // The worker said hello. Returns the name of this connection.
  // REQUIRES: it is not connected.
  scheduling::WorkerId Connected(int index, const v1::WorkerHello& hello,
                                 absl::Time now);
  // The connection is gone. Returns what its name was, kNoWorker if the worker
  // had not said hello.
  scheduling::WorkerId Lost(int index);
  // It cannot be connected to, for the reason given.
  void Unreachable(int index, const std::string& why);
  void Reported(int index, const v1::LoadReport& load, absl::Time now);
  // Ignored of a worker that is not connected.
  void AdaptersChanged(int index, const v1::AdapterNews& news);
  void PairReported(int index, const v1::PairReport& report, absl::Time now);
  // The worker said that it takes no more requests.
  void Draining(scheduling::WorkerId id);

  // How attempts fare: keeps requests away from a worker, or from the data
  // connection of a pair, that fails again and again. Unknown ids are ignored.
  void AttemptSent(scheduling::WorkerId prefill, scheduling::WorkerId decode,
                   absl::Time now);
  // It is over, whatever came of it.
  void AttemptEnded(scheduling::WorkerId prefill, scheduling::WorkerId decode);
  void LegSucceeded(scheduling::WorkerId id, absl::Time now);
  void LegFailed(scheduling::WorkerId id, absl::Time now);
  void TransferSucceeded(scheduling::WorkerId prefill,
                         scheduling::WorkerId decode, absl::Time now);
  void TransferFailed(scheduling::WorkerId prefill, scheduling::WorkerId decode,
                      absl::Time now);
  // Whether a worker gets no requests, or only a probe, for now.
  bool BreakerOpen(int index, absl::Time now) const;
  int NumBreakersOpen(absl::Time now) const;

  // How many times a worker was found to hang, or not to any more.
  int64_t num_stuck_changes() const { return num_stuck_changes_; }

  // As in scheduling/placement_room.h; 0 of an unknown id.
  int32_t BlocksTaken(scheduling::WorkerId id,
                      const scheduling::PlacementRequest& request) const;
  // What this router placed and what ended: the load that reports do not show
  // yet. Unknown ids (lost meanwhile) are ignored.
  // `tokens` are those that are to be computed there.
  void PlacedDecode(scheduling::WorkerId id, int32_t blocks);
  void EndedDecode(scheduling::WorkerId id, int32_t blocks);
  // Returns the number of the worker's last report.
  uint64_t PlacedPrefill(scheduling::WorkerId id, int32_t tokens);
  // `report` is what PlacedPrefill returned: tokens that a later report has
  // counted are the report's affair.
  void EndedPrefill(scheduling::WorkerId id, int32_t tokens, uint64_t report);
  void NextRound() { ++snapshot_.round; }

  // Pairs to ask for now; each is asked again until it is paired. Updates the
  // snapshot to `now`: call it once in each turn.
  std::vector<PairCommand> DuePairs(absl::Time now);
  // When DuePairs, the end of the pairing grace or a circuit breaker is next of
  // interest.
  absl::Time NextDue(absl::Time now) const;

  const scheduling::ClusterSnapshot& snapshot() const { return snapshot_; }
  const std::vector<Worker>& workers() const { return workers_; }
  // The index of a connected worker, -1 for others.
  int IndexOf(scheduling::WorkerId id) const;
  // The operator's name for it, or its address before it said hello.
  std::string NameOf(scheduling::WorkerId id) const;
  std::string Describe(int index) const;

  // Whether a prompt could be placed if there is room.
  bool CouldPlace() const;
  // Which kind is missing, and what is known of each worker of it.
  std::string WhyNot() const;
  // A worker and its role; a dual one once, by the id of a side of it.
  struct RoleState {
    scheduling::WorkerId id = scheduling::kNoWorker;
    bool dual = false;
    scheduling::WorkerRole role = scheduling::WorkerRole::kDecode;
    // Of its prefill and of its decode side; 0 without one.
    int64_t queued_tokens = 0;
    int32_t streams = 0;
  };
  // Of those that could get requests in one role. A dual worker of which only
  // one side is there counts as one that cannot change.
  std::vector<RoleState> RoleStates() const;
  // Whether decode workers may compute prompts at all (Options).
  bool local_prefill() const { return options_.local_prefill; }
  // Connected workers that are a side of a dual one.
  int num_dual() const { return num_dual_; }
  // How many times a worker's role was another than before.
  int64_t num_role_changes() const { return num_role_changes_; }

  // Usable workers; prefill workers only when paired with a usable decode
  // worker.
  int NumServing(scheduling::WorkerRole role) const;
  // Pairs of connected workers that have a data connection.
  int NumPairs() const { return num_pairs_; }
  std::vector<Link> Links(absl::Time now) const;
  // Why a worker gets no requests; empty: it does.
  std::string WhyUnusable(int index) const;
  // Whether that is its role alone.
  bool StandsBy(int index, absl::Time now) const;
  // Most tokens of one sequence that some usable decode worker can hold, at
  // most the model's; the model's when there is none.
  int32_t MaxContext() const;
  // Whether all workers that could be placed on keep answers to a grammar.
  bool TakesGrammars() const;
  // The fingerprint of a usable decode worker; null when there is none.
  const v1::ModelFingerprint* Fingerprint() const;
  // How connected workers that fit compute (WorkerHello.backend), each once.
  // More than one: an answer may depend on which workers gave it.
  const std::vector<std::string>& backends() const { return backends_; }
  // The LoRA adapters of connected decode workers that fit. Of several that
  // have one name, the one that most of them have. Never null; another object
  // only when something of it is another.
  std::shared_ptr<const AdapterNames> adapters() const { return adapters_; }

 private:
  struct PairState {
    bool paired = false;
    absl::Time due;  // when to ask (again)
    absl::Duration backoff;
    scheduling::CircuitBreaker breaker;
    std::string reason;  // of the last refusal
    v1::PairReport
        measured;  // the last report that says what the link is worth
    // As pair_timers_ has it; InfiniteFuture: not there.
    absl::Time timer = absl::InfiniteFuture();
  };
  using PairKey = std::pair<int, int>;  // prefill index, decode index

  // Whether the worker gets requests, as of `now`.
  void RefreshWorker(int index, absl::Time now);
  void RefreshGrace(absl::Time now);
  // The places in the snapshot, after one came or went.
  void RefreshPlaces();
  // Which fields of two fingerprints differ; empty: none.
  static std::string Difference(const Worker& a, const Worker& b);
  // The same, and the backend where that counts.
  std::string DifferenceAmongServing(const Worker& a, const Worker& b) const;
  // Returns whose misfit is another than before.
  std::vector<int> UpdateMisfits(int changed);
  // Says so when there are several that were not there together before.
  void UpdateBackends();
  // Says so when workers mean different adapters by one name, and when they had
  // not before.
  void UpdateAdapters();
  std::string DescribeMisfit(int index) const;
  // One model at a time, or a retry could go on with another model's words: of
  // workers that fit but differ, the largest group serves, of those that have
  // workers of both kinds, if any has; on a tie, that of the worker named
  // first.
  void ExcludeMinorities(std::vector<std::string>* misfits) const;
  std::string MisfitWithModel(const Worker& worker) const;
  scheduling::WorkerSnapshot* Find(scheduling::WorkerId id);
  const scheduling::WorkerSnapshot* Find(scheduling::WorkerId id) const;
  // The pairs of a worker that connected, or fits others than before.
  void RefreshPairsOf(int index, absl::Time now);
  void ErasePairsOf(int index);
  void ErasePair(const PairKey& key);
  // Brings the snapshot and the timers to what the state says. Called after
  // each change of it.
  void UpdatePair(const PairKey& key, PairState* state, absl::Time now);
  void SetTimer(const PairKey& key, PairState* state, absl::Time at);
  // Enters a link into the prefill worker's snapshot, or takes it out.
  void SetLink(const PairKey& key, bool usable, double bandwidth);
  PairState* FindPair(scheduling::WorkerId prefill,
                      scheduling::WorkerId decode);
  bool Usable(const Worker& worker) const;
  // The same, but for its role.
  bool UsableInRole(const Worker& worker) const;
  bool Stuck(const Worker& worker, absl::Time now) const;

  const ServedModel& model_;
  const Options options_;
  const absl::Time start_;
  int64_t num_stuck_changes_ = 0;
  std::vector<std::string> backends_;  // sorted
  std::shared_ptr<const AdapterNames> adapters_ =
      std::make_shared<AdapterNames>();
  std::set<std::string> disputed_;  // names of several adapters

  // Where workers are looked up, and why there is none.
  std::map<std::pair<scheduling::WorkerRole, std::string>, std::string>
      sources_;
  std::vector<Worker> workers_;
  // Of connected workers: where they are in workers_, and by that index where
  // in the snapshot (-1: not connected).
  absl::flat_hash_map<scheduling::WorkerId, int> index_of_;
  std::vector<int> place_;
  std::map<PairKey, PairState> pairs_;  // of connected workers that fit
  // When a pair is to be asked for, or its breaker lets a request through.
  std::set<std::pair<absl::Time, PairKey>> pair_timers_;
  int num_pairs_ = 0;  // that are paired
  int num_dual_ = 0;
  int64_t num_role_changes_ = 0;
  scheduling::ClusterSnapshot snapshot_;  // connected workers
  uint64_t last_id_ = 0;
  bool prefill_named_ = false;
  bool ever_paired_ = false;
  bool grace_over_ = false;
};

}  // namespace baton::router
