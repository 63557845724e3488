#include "router/request_urgency.h"

#include <algorithm>

namespace baton::router {
namespace {

// Infinite when there is no target, or the client has the first token: a retry
// of a stream.
absl::Time FirstTokenDue(const RequestRecord& record) {
  const absl::Duration target = record.answer.ttft_target;
  return target <= absl::ZeroDuration() || record.trace.has_first_event()
             ? absl::InfiniteFuture()
             : record.trace.received_at + target;
}

double TtftTimeLeft(const RequestRecord& record, absl::Time now) {
  constexpr double kLeast = 1e-3;
  const absl::Time due = FirstTokenDue(record);
  if (due == absl::InfiniteFuture()) return 0;
  return std::max(kLeast, absl::ToDoubleSeconds(due - now));
}

}  // namespace

scheduling::Urgency UrgencyOf(const RequestRecord& record, absl::Time now) {
  return {
      .request_class = record.answer.request_class,
      .priority = record.answer.priority,
      .ttft_target_seconds = TtftTimeLeft(record, now),
      .itl_target_seconds = absl::ToDoubleSeconds(record.answer.itl_target)};
}

double TtftToKeep(const RequestRecord& record, bool is_late, absl::Time now) {
  const absl::Time due = FirstTokenDue(record);
  if (is_late || due == absl::InfiniteFuture()) return 0;
  return std::max(0.0, absl::ToDoubleSeconds(due - now));
}

double BatchItlOf(const RequestRecord& record, const ClassTargets& targets,
                  bool stands_by, absl::Time now) {
  // So long a client's own target may hold up others, and the operator's.
  constexpr absl::Duration kOwnPatience = absl::Seconds(1);
  constexpr absl::Duration kPatience = absl::Seconds(30);
  // No target keeps a stream waiting that lost its worker.
  if (record.trace.has_first_event()) return 0;
  const absl::Duration of_class =
      record.answer.request_class == RequestClass::kBatch
          ? targets.batch.itl
          : targets.interactive.itl;
  const absl::Duration patience =
      of_class > absl::ZeroDuration() ? kPatience : kOwnPatience;
  if (record.answer.itl_target <= absl::ZeroDuration() ||
      (!stands_by && now - record.trace.received_at > patience)) {
    return 0;
  }
  return absl::ToDoubleSeconds(std::max(record.answer.itl_target, of_class));
}

}  // namespace baton::router
