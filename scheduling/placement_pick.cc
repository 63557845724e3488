#include "scheduling/placement_pick.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/log.h"
#include "scheduling/placement_room.h"

namespace baton::scheduling {
namespace {

// How often a draw is repeated that has no prefill worker to it.
constexpr uint64_t kDraws = 4;

// The round as a number that looks random: SplitMix64's last steps (Steele,
// Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
uint64_t Mixed(uint64_t round, uint64_t salt) {
  uint64_t z = round * 0x9E3779B97F4A7C15 + (salt + 1) * 0xD1B54A32D192ED03;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// `count` different ones of `from`, or all when there are no more.
template <typename T>
std::vector<T> Draw(const std::vector<T>& from, int count, uint64_t round,
                    uint64_t salt) {
  if (from.size() <= static_cast<size_t>(count)) return from;
  std::vector<size_t> taken;
  std::vector<T> drawn;
  for (int i = 0; i < count; ++i) {
    const size_t left = from.size() - taken.size();
    size_t at = Mixed(round, salt * 16 + static_cast<uint64_t>(i)) % left;
    // Of those that are left, the one at that place.
    for (size_t other : taken) at += at >= other;
    taken.insert(std::upper_bound(taken.begin(), taken.end(), at), at);
    drawn.push_back(from[at]);
  }
  return drawn;
}

// The least of `candidates` by `cost` that is acceptable; among equals, the one
// whose turn it is. Null when none is.
template <typename T, typename Cost, typename Accept>
const T* Least(const std::vector<T>& candidates, uint64_t round, Cost cost,
               Accept accept) {
  using Key = decltype(cost(candidates.front()));
  std::vector<std::pair<Key, const T*>> keyed;
  keyed.reserve(candidates.size());
  for (const T& candidate : candidates) {
    keyed.emplace_back(cost(candidate), &candidate);
  }
  const auto first_of = [&](auto begin, auto end) -> const T* {
    const auto count = static_cast<size_t>(end - begin);
    for (size_t i = 0; i < count; ++i) {
      const T* candidate =
          (begin + static_cast<ptrdiff_t>((round + i) % count))->second;
      if (accept(*candidate)) return candidate;
    }
    return nullptr;
  };
  // Mostly one of the least will do; no need to order the others.
  std::vector<std::pair<Key, const T*>> least;
  for (const auto& entry : keyed) {
    if (!least.empty() && least.front().first < entry.first) continue;
    if (!least.empty() && entry.first < least.front().first) least.clear();
    least.push_back(entry);
  }
  if (least.empty()) return nullptr;
  if (const T* found = first_of(least.begin(), least.end())) return found;
  // Equal ones stay in the operator's order: pointers into one vector.
  std::sort(keyed.begin(), keyed.end());
  auto begin = keyed.begin() + static_cast<ptrdiff_t>(least.size());
  while (begin != keyed.end()) {
    const auto end = std::find_if(begin, keyed.end(), [&](const auto& entry) {
      return begin->first < entry.first;
    });
    if (const T* found = first_of(begin, end)) return found;
    begin = end;
  }
  return nullptr;
}

struct PairedPrefill {
  const WorkerSnapshot* worker = nullptr;
  double bandwidth = 0;
};

PlacementVerdict None(PlacementReason reason) {
  return {.kind = PlacementVerdict::Kind::kNone, .reason = reason};
}

class Picker final {
 public:
  Picker(const ClusterSnapshot& cluster, const PlacementRequest& request,
         WorkerPreference* preference)
      : cluster_(cluster), request_(request), preference_(preference) {}

  // On one of `decoders`, each of which could hold the request when idle.
  PlacementVerdict PlaceAmong(const Workers& decoders) {
    FindPrefill();
    Workers with_room;
    for (const WorkerSnapshot* decode : decoders) {
      if (DecodeHasRoom(*decode, request_)) {
        with_room.push_back(decode);
      }
    }
    const bool any_pair = std::any_of(
        decoders.begin(), decoders.end(),
        [&](const auto* decode) { return IsPaired(prefill_, *decode); });
    if (!any_pair) return PlaceLocal(with_room);
    if (with_room.empty()) return None(PlacementReason::kDecodeFull);
    const WorkerSnapshot* decode = PickDecode(with_room);
    if (decode == nullptr) return None(PlacementReason::kPrefillFull);
    const WorkerSnapshot& prefill = PickPrefill(*decode);
    return {.kind = PlacementVerdict::Kind::kPrefillAndDecode,
            .reason = preference_->reason(),
            .prefill = prefill.id,
            .decode = decode->id};
  }

 private:
  // Those that could compute the prompt when idle, and those that can now.
  void FindPrefill() {
    FindPrefill(/*take_excluded=*/false);
    // Better than none, where decode workers compute no prompts.
    if (prefill_.empty() && !cluster_.allow_local_prefill &&
        request_.allow_excluded_decode) {
      FindPrefill(/*take_excluded=*/true);
    }
  }

  void FindPrefill(bool take_excluded) {
    prefill_.clear();
    prefill_with_room_.clear();
    for (const WorkerSnapshot& worker : cluster_.workers) {
      if (worker.role != WorkerRole::kPrefill || !MayServe(worker, request_) ||
          worker.paired_with.empty() ||
          (!take_excluded && Contains(request_.excluded, worker.id)) ||
          !CouldEverHold(worker, request_.prefill_tokens)) {
        continue;
      }
      prefill_.push_back(&worker);
      if (PrefillHasRoom(worker, request_)) {
        prefill_with_room_.push_back(&worker);
      }
    }
  }

  // Why none of the prefill workers may compute this prompt.
  PlacementReason WhyNoPrefill() const {
    bool any = false;
    bool any_without_adapter = false;
    for (const WorkerSnapshot& worker : cluster_.workers) {
      if (worker.role != WorkerRole::kPrefill || !worker.usable ||
          worker.paired_with.empty()) {
        continue;
      }
      if (!HasAdapter(worker, request_)) {
        any_without_adapter = true;
        continue;
      }
      any = true;
      // Then it is excluded.
      if (CouldEverHold(worker, request_.prefill_tokens)) {
        return PlacementReason::kOnlyExcluded;
      }
    }
    if (any) return PlacementReason::kTooLarge;
    return any_without_adapter ? PlacementReason::kNoAdapter
                               : PlacementReason::kPairingPending;
  }

  static bool IsPaired(const Workers& prefill, const WorkerSnapshot& decode) {
    LinkFinder link(decode.id);
    return std::any_of(prefill.begin(), prefill.end(),
                       [&](const auto* worker) { return link.Find(*worker); });
  }

  PlacementVerdict PlaceLocal(Workers with_room) {
    if (!cluster_.allow_local_prefill) return None(WhyNoPrefill());
    std::erase_if(with_room, [&](const WorkerSnapshot* worker) {
      return !MayComputeThere(*worker, request_);
    });
    if (with_room.empty()) return None(PlacementReason::kDecodeFull);
    if (preference_->num_drawn() > 0) {
      with_room = Draw(with_room, preference_->num_drawn(), cluster_.round, 0);
    }
    const auto* decode = Least(
        with_room, cluster_.round,
        [&](const WorkerSnapshot* worker) {
          return preference_->DecodeCost(*worker, /*computes=*/true);
        },
        [](const WorkerSnapshot*) { return true; });
    CHECK(decode != nullptr);
    return {.kind = PlacementVerdict::Kind::kDecodeOnly,
            .reason = PlacementReason::kNoPrefillWorker,
            .decode = (*decode)->id};
  }

  const WorkerSnapshot* PickDecode(const Workers& with_room) {
    if (prefill_with_room_.empty()) return nullptr;
    const auto pick = [&](const Workers& from) -> const WorkerSnapshot* {
      const auto* decode = Least(
          from, cluster_.round,
          [&](const WorkerSnapshot* worker) {
            return preference_->DecodeCost(*worker, /*computes=*/false);
          },
          [&](const WorkerSnapshot* worker) {
            return IsPaired(prefill_with_room_, *worker);
          });
      return decode == nullptr ? nullptr : *decode;
    };
    const int drawn = preference_->num_drawn();
    for (uint64_t salt = 0; drawn > 0 && salt < kDraws; ++salt) {
      const auto* decode = pick(Draw(with_room, drawn, cluster_.round, salt));
      if (decode != nullptr) return decode;
    }
    return pick(with_room);
  }

  // REQUIRES: one that has room is paired with `decode`.
  const WorkerSnapshot& PickPrefill(const WorkerSnapshot& decode) {
    LinkFinder link(decode.id);
    std::vector<PairedPrefill> paired;
    double fastest = 0;
    for (const WorkerSnapshot* worker : prefill_with_room_) {
      if (!link.Find(*worker)) continue;
      paired.push_back({worker, link.bandwidth()});
      fastest = std::max(fastest, link.bandwidth());
    }
    if (preference_->num_drawn() > 0) {
      paired = Draw(paired, preference_->num_drawn(), cluster_.round, kDraws);
    }
    const auto* least = Least(
        paired, cluster_.round,
        [&](const PairedPrefill& prefill) {
          const bool slow =
              prefill.bandwidth > 0 && prefill.bandwidth < fastest / 2;
          return std::make_pair(preference_->PrefillCost(*prefill.worker),
                                slow);
        },
        [](const PairedPrefill&) { return true; });
    CHECK(least != nullptr);
    return *least->worker;
  }

  const ClusterSnapshot& cluster_;
  const PlacementRequest& request_;
  WorkerPreference* const preference_;
  Workers prefill_;
  Workers prefill_with_room_;
};

}  // namespace

PlacementVerdict PlaceByPreference(const ClusterSnapshot& cluster,
                                   const PlacementRequest& request,
                                   WorkerPreference* preference) {
  bool any_decode = false;
  bool any_with_adapter = false;
  Workers all;
  Workers fresh;
  for (const WorkerSnapshot& worker : cluster.workers) {
    if (worker.role != WorkerRole::kDecode || !worker.usable) continue;
    any_decode = true;
    if (!HasAdapter(worker, request)) continue;
    any_with_adapter = true;
    if (!CouldEverHold(worker, request.total_tokens)) continue;
    all.push_back(&worker);
    if (!Contains(request.excluded, worker.id)) fresh.push_back(&worker);
  }
  if (!any_decode) return None(PlacementReason::kNoDecodeWorker);
  if (!any_with_adapter) return None(PlacementReason::kNoAdapter);
  if (all.empty()) return None(PlacementReason::kTooLarge);

  Picker picker(cluster, request, preference);
  PlacementVerdict verdict = fresh.empty()
                                 ? None(PlacementReason::kOnlyExcluded)
                                 : picker.PlaceAmong(fresh);
  if (verdict.kind == PlacementVerdict::Kind::kNone &&
      request.allow_excluded_decode && fresh.size() < all.size()) {
    verdict = picker.PlaceAmong(all);
  }
  if (verdict.kind != PlacementVerdict::Kind::kNone) {
    verdict.cached_tokens = CachedPrompts(request).Tokens(
        verdict.prefill != kNoWorker ? verdict.prefill : verdict.decode);
  }
  return verdict;
}

}  // namespace baton::scheduling
