#include "router/placement_log.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "common/utf8.h"

namespace baton::router {
namespace {

using scheduling::PlacementCandidate;
using scheduling::PlacementVerdict;
using scheduling::WorkerId;

void DescribeCandidate(const PlacementCandidate& candidate,
                       const WorkerNames& names, v1::PlacementCandidate* wire) {
  wire->set_worker(names.NameOf(candidate.id));
  wire->set_role(scheduling::WorkerRoleName(candidate.role));
  wire->set_standing(scheduling::StandingName(candidate.standing));
  wire->set_load(candidate.load);
  wire->set_sequences(static_cast<uint32_t>(candidate.sequences));
  wire->set_free_blocks(static_cast<uint32_t>(candidate.free_blocks));
  wire->set_total_blocks(static_cast<uint32_t>(candidate.total_blocks));
}

}  // namespace

void WorkerNames::Learn(const std::vector<PlacementCandidate>& candidates,
                        const WorkerRegistry& registry) {
  for (const PlacementCandidate& candidate : candidates) {
    const auto it = names_.lower_bound(candidate.id);
    if (it != names_.end() && it->first == candidate.id) continue;
    names_.emplace_hint(it, candidate.id, registry.NameOf(candidate.id));
  }
  // Connections count up: the first ones are the oldest.
  while (names_.size() > kMax) names_.erase(names_.begin());
}

std::string WorkerNames::NameOf(WorkerId id) const {
  if (id == scheduling::kNoWorker) return "";
  const auto it = names_.find(id);
  return it == names_.end() ? "gone" : it->second;
}

void PlacementLog::Add(Entry entry) {
  if (entries_.size() == kMaxEntries) {
    entries_.erase(entries_.begin() + 1);
    ++left_out_;
  }
  entries_.push_back(std::move(entry));
}

void PlacementLog::Ended(absl::string_view why) {
  if (entries_.empty() || !entries_.back().ended.empty()) return;
  // Whole characters: the wire takes nothing else.
  entries_.back().ended = CutUtf8(why, kMaxEndedBytes);
}

size_t PlacementLog::ByteSize() const {
  size_t bytes = entries_.capacity() * sizeof(Entry);
  for (const Entry& entry : entries_) {
    bytes += entry.candidates.capacity() * sizeof(PlacementCandidate) +
             entry.ended.capacity();
  }
  return bytes;
}

void PlacementLog::Describe(absl::Time received_at, const WorkerNames& names,
                            v1::ExplainRequestResponse* response) const {
  for (const Entry& entry : entries_) {
    v1::PlacementRecord* record = response->add_placements();
    record->set_at_seconds(absl::ToDoubleSeconds(entry.at - received_at));
    record->set_decode_worker(names.NameOf(entry.verdict.decode));
    record->set_prefill_worker(names.NameOf(entry.verdict.prefill));
    record->set_decision(scheduling::PlacementKindName(entry.verdict.kind));
    record->set_reason(scheduling::PlacementReasonName(entry.verdict.reason));
    // Of many, they come in no order.
    std::vector<PlacementCandidate> candidates = entry.candidates;
    std::sort(candidates.begin(), candidates.end(),
              [](const auto& a, const auto& b) {
                return std::tie(a.role, a.id) < std::tie(b.role, b.id);
              });
    for (const PlacementCandidate& candidate : candidates) {
      DescribeCandidate(candidate, names, record->add_candidates());
    }
    record->set_ended(entry.ended);
    record->set_prefill_tokens(static_cast<uint32_t>(entry.prefill_tokens));
    record->set_total_tokens(static_cast<uint32_t>(entry.total_tokens));
    record->set_cached_tokens(static_cast<uint32_t>(entry.cached_tokens));
    if (entry.waited_for.has_value()) {
      record->set_waited_for(
          scheduling::PlacementReasonName(*entry.waited_for));
    }
  }
  response->set_placements_left_out(left_out_);
}

}  // namespace baton::router
