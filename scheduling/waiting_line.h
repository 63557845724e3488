// The requests of a router that wait for workers: whose turn it is, whom there
// is room for, and how long a wait will be.
//
//   resumed   had their turn, and lost their workers: before all others, in
//             the order of arrival
//   on time   of the interactive class, and not late
//   late      of the interactive class, but their first token cannot come in
//             time any more: they cost those little that still can be in time
//   batch     of the batch class
//
// The last three lanes share what is placed by weight, so that none starves; in
// each, tenants do by theirs; of a tenant, the highest priority goes first,
// then who came first. Sharing is start-time fair queueing (Goyal, Vin and
// Cheng, 1996), counted in tokens: prompt and most output when a request is
// placed, of which is given back what was not used. Among the lanes, the one
// whose next request would end first goes first.
//
// The number of waiting requests is bounded. In a full line, a tenant with more
// in it makes room for one with less, and each lane for those above it.
//
// Pure: one thread, no clock; `now` never goes back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "scheduling/placement.h"
#include "scheduling/request.h"

namespace baton::scheduling {

enum class Lane { kResumed, kOnTime, kLate, kBatch };
inline constexpr size_t kLanes = 4;

// Stable lower-case name ("on_time"), for labels.
const char* LaneName(Lane lane);

struct WaitingRequest {
  // Larger: came later. Unique.
  uint64_t key = 0;
  RequestClass request_class = RequestClass::kInteractive;
  int32_t priority = 0;
  std::string tenant;
  // The tenant's, >= 1.
  int32_t weight = 1;
  // Prompt and most output, >= 1.
  int64_t tokens = 1;
  // When its turn must have come for its first token to be in time; infinite:
  // whenever.
  absl::Time start_by = absl::InfiniteFuture();
};

// Of a prompt on the fastest worker, when it is idle; 0: not known.
double LeastPrefillSeconds(const ClusterSnapshot& cluster, int32_t tokens);

// When the turn of a request must have come for its first token to be in time:
// a prompt takes at least `prefill_seconds`, and a tenth of the target is for
// what else there is.
inline absl::Time StartBy(absl::Time received, absl::Duration ttft_target,
                          double prefill_seconds) {
  return received + 0.9 * ttft_target - absl::Seconds(prefill_seconds);
}

// How many tokens leave the line each second, while there is one.
class DrainRate final {
 public:
  // Some wait from here on; ignored while some do already.
  void Begin(absl::Time now);
  // These left.
  void Left(int64_t tokens, absl::Time now);
  // Nobody waits any more.
  void End() { since_ = absl::InfinitePast(); }

  // 0: not known.
  double tokens_per_second() const {
    return seconds_ > 0 ? tokens_ / seconds_ : 0;
  }

 private:
  absl::Time since_ = absl::InfinitePast();
  // With forgetting.
  double tokens_ = 0;
  double seconds_ = 0;
};

class WaitingLine final {
 public:
  struct Options {
    // Most that wait, >= 1. Resumed ones are not refused.
    int32_t max_requests = 1024;
    // Most interactive ones that come too late to be in time, >= 0: more are
    // refused at once.
    int32_t max_late = 64;
    // Of the lanes, >= 1.
    int32_t on_time_weight = 16;
    int32_t late_weight = 2;
    int32_t batch_weight = 1;
  };

  struct Admission {
    enum class Verdict {
      kJoined,
      kFull,
      kLate,  // would not be in time, and enough such wait already
    };
    Verdict verdict = Verdict::kJoined;
    // Joined, but in the place of this one, which is out.
    std::optional<uint64_t> evicted;
    // Until it is worth to ask again (refused), for the evicted one otherwise.
    absl::Duration retry_after;
  };

  explicit WaitingLine(const Options& options);

  // A new request.
  Admission Admit(const WaitingRequest& request, absl::Time now);
  // One whose turn had come, and comes again.
  void Resume(const WaitingRequest& request, absl::Time now);

  // Whose turn it is; none: nobody waits but those set aside. Whoever is late
  // by now has gone to that lane.
  std::optional<uint64_t> Next(absl::Time now);
  // It cannot be placed for reasons of its own: the others go on without it,
  // until EndTurn. REQUIRES: it waits.
  void SetAside(uint64_t key);
  // None that is late can be placed: the others go on without them, until
  // EndTurn.
  void SetLateAside() { late_aside_ = true; }
  void EndTurn(absl::Time now);
  // Whether it is late, and late ones have had their share: what it takes now,
  // it takes from those that come next and can be in time, even if none of them
  // waits here. It should go only where nobody would miss it. REQUIRES: it
  // waits, and is not set aside.
  bool StandsBy(uint64_t key) const;
  // Whether it is in the lane of those that are late. REQUIRES: it waits.
  bool IsLate(uint64_t key) const {
    return waiters_.at(key).lane == Lane::kLate;
  }
  // Whether it is a batch request that comes again, as after a preemption. It
  // goes first, but where there is no room for it, SetAside lets the others
  // try: who took its blocks was more urgent. REQUIRES: it waits.
  bool GivesWay(uint64_t key) const;
  // Its turn has come, and its first token could not be in time: it becomes
  // late, even if nobody else waits: others may come. False, and nothing
  // happens, when it is not in that lane. REQUIRES: it waits.
  bool StandBack(uint64_t key);
  // It is placed. Returns from which lane. REQUIRES: it waits.
  Lane Place(uint64_t key, absl::Time now);
  // So many tokens that Place counted were not used.
  void GiveBack(Lane lane, const std::string& tenant, int64_t tokens);
  // Nobody can be placed for reasons that say nothing of how fast the line is.
  void Pause() { drain_.End(); }
  // It waits no more; ignored when it does not.
  void Remove(uint64_t key);

  size_t size() const { return waiters_.size(); }
  bool empty() const { return waiters_.empty(); }
  bool contains(uint64_t key) const { return waiters_.contains(key); }
  // REQUIRES: not empty.
  uint64_t oldest() const { return waiters_.begin()->first; }
  int32_t size_of(Lane lane) const {
    return lanes_[static_cast<size_t>(lane)].count;
  }
  // In the order of arrival.
  std::vector<uint64_t> Keys() const;
  // How many are to be placed before it, if none comes or goes, its tenant's
  // own and those of lanes before its own; others share with it.
  // REQUIRES: it waits.
  int32_t NumBefore(uint64_t key) const;
  // Those that came to the late lane, since the beginning.
  int64_t num_late() const { return num_late_; }

  // Whether a request that came now would be refused, evict another or be late.
  // Who could make room by placing does so before that.
  bool IsTightFor(const WaitingRequest& request, absl::Time now);
  // How long a request would wait, if it came now; zero when that is not known.
  absl::Duration PredictedWait(const WaitingRequest& request) const;

  void CheckInvariants() const;

 private:
  // Of one tenant in one lane: those that are urgent first.
  using Order = std::pair<int32_t, uint64_t>;  // -priority, key
  struct Flow {
    // When what was placed of it ends, in the lane's virtual time.
    double finish = 0;
    int32_t weight = 1;
    int64_t tokens = 0;  // of those that wait
    std::set<Order> requests;
  };
  struct LaneState {
    // Of the lane among lanes, and its own for its tenants; virtual.
    double finish = 0;
    double clock = 0;
    int64_t tokens = 0;
    int32_t count = 0;
    std::map<std::string, Flow> flows;
  };
  struct Waiter {
    WaitingRequest request;
    Lane lane = Lane::kOnTime;
    bool aside = false;
  };

  LaneState& StateOf(Lane lane) { return lanes_[static_cast<size_t>(lane)]; }
  const LaneState& StateOf(Lane lane) const {
    return lanes_[static_cast<size_t>(lane)];
  }
  int32_t WeightOf(Lane lane) const;
  static Order OrderOf(const WaitingRequest& request, Lane lane);
  // Resumed ones are all of one.
  static const std::string& FlowOf(const Waiter& waiter);

  void Join(const WaitingRequest& request, Lane lane);
  void Leave(uint64_t key);
  void AddToFlow(const Waiter& waiter);
  void TakeFromFlow(const Waiter& waiter);
  // Who is late by now goes to that lane.
  void MoveLate(absl::Time now);
  void MakeLate(uint64_t key);
  // Forgets tenants that have nothing to remember.
  void Tidy(LaneState* lane);
  std::optional<Lane> NextLane() const;
  // When the lane's next request would end, in the lanes' virtual time. The one
  // that ends first goes first: who begins first would let a batch request that
  // has just come pass those of the other lane, of which one was just placed.
  // REQUIRES: the lane is not empty.
  double NextFinish(Lane lane) const;
  const Flow* NextFlow(const LaneState& lane) const;
  // Who is to make room for `request`, which would join `lane`.
  std::optional<uint64_t> Victim(const WaitingRequest& request,
                                 Lane lane) const;
  std::optional<uint64_t> LastOfLargest(const LaneState& lane,
                                        double larger_than) const;
  static Lane LaneOf(const WaitingRequest& request);
  // Tokens that go before it.
  double TokensAhead(const WaitingRequest& request, Lane lane) const;
  absl::Duration WaitFor(double tokens) const;

  const Options options_;
  LaneState lanes_[kLanes];
  double clock_ = 0;  // of the lanes, virtual
  std::map<uint64_t, Waiter> waiters_;
  std::vector<uint64_t> aside_;
  bool late_aside_ = false;
  std::set<std::pair<absl::Time, uint64_t>> start_by_;  // of those on time
  int32_t late_ = 0;  // that wait, those set aside included
  int64_t num_late_ = 0;
  DrainRate drain_;
};

}  // namespace baton::scheduling
