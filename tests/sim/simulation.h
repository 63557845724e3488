// A whole cluster in one thread, under a virtual clock, with everything drawn
// from one seed: routers, workers, clients, the order of all events, and what
// goes wrong. The state machines are the real ones; engine, clock and networks
// are simulated.
//
// A run has two parts: turmoil, in which parties crash, come back, stand still,
// drain, connections break, messages are lost, repeated, altered and late, and
// clients go away; then quiet, in which everything is up and time goes on until
// nothing can be left.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/client.h"
#include "tests/sim/coverage.h"
#include "tests/sim/sim_router.h"
#include "tests/sim/sim_worker.h"
#include "tests/sim/turmoil.h"
#include "tests/sim/world.h"

namespace baton::sim {

class Simulation final {
 public:
  explicit Simulation(uint64_t seed, kv_transfer::Fence removed_fence =
                                         kv_transfer::Fence::kNone);
  ~Simulation();

  // Runs to the end, or to the first violation, which it returns.
  std::optional<std::string> Run();

  const Coverage& coverage() const { return world_.coverage; }
  // The same for every run of a seed.
  uint64_t digest() const { return world_.journal.digest(); }
  // For people: the last events before the end.
  std::string LastEvents() const { return world_.journal.Tail(); }

 private:
  enum class Kind { kRouter, kPrefill, kDecode, kDual };
  struct Party {
    Kind kind{};
    SimWorker::Place place;
    // One life; none while it is down.
    std::unique_ptr<SimWorker> worker;
    std::unique_ptr<SimRouter> router;
    // Until which step it stays down, stands still.
    int down_until = 0;
    int stalled_until = 0;
    bool draining = false;
    absl::Time last_turn;

    bool up() const { return worker != nullptr || router != nullptr; }
  };
  struct Question {
    std::unique_ptr<Client> client;
    int router = 0;  // party
    int at_step = 0;
  };

  void AddParty(Kind kind, int number);
  void DrawQuestions();
  bool Awake(int party) const;

  // One event of the turmoil.
  void Step();
  void Fault();
  void AskWhatIsDue();
  void Start(int party);
  void End(int party);
  void Wake();
  void Turn(int party);
  void Crash(int party);
  void Stall(int party);
  void Drain(int party);
  void ChangeRole(int party);
  void CancelSomebody();

  void BeQuiet();
  void QuietRound(absl::Duration pause);
  bool AllEnded() const;
  void CheckTheEnd();

  kv_transfer::FakeNetwork::Fate Judge(kv_transfer::ByteSpan header,
                                       bool has_payload);
  void OnArrival(const kv_transfer::FakeNetwork::Arrival& arrival);
  int AnyOf(Kind kind);

  const TurmoilPlan turmoil_;
  World world_;
  ClusterPlan plan_;
  std::vector<std::string> prefill_addresses_;
  std::vector<std::string> decode_addresses_;
  std::vector<Question> questions_;
  std::vector<Party> parties_;
  int step_ = 0;
  bool quiet_ = false;
  Client::Excuses excuses_;
  router::RequestKey last_key_ = 0;
};

}  // namespace baton::sim
