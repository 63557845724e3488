// What happened to each request of a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "load_generator/target.h"

namespace baton::load_generator {

// Times are from the start of the run.
struct RequestRecord {
  // When it was to be sent, and when it was. Latencies count from the first: a
  // generator that falls behind must not make a server look better.
  absl::Duration planned_at;
  absl::Duration sent_at;
  // Of the first and the last output; -infinity without any.
  absl::Duration first_at = -absl::InfiniteDuration();
  absl::Duration last_at = -absl::InfiniteDuration();
  absl::Duration ended_at;
  // Between events that brought output, in milliseconds.
  std::vector<float> gaps_ms;
  // As planned.
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;
  TargetEnd end;

  bool finished() const { return end.kind == OutcomeKind::kFinished; }
  bool has_output() const { return first_at > -absl::InfiniteDuration(); }
  absl::Duration ttft() const { return first_at - planned_at; }
  absl::Duration e2e() const { return ended_at - planned_at; }
  // Time per output token after the first; 0 with fewer than two.
  absl::Duration tpot() const;
  // Output tokens, as the server counted them, else as events came.
  int32_t tokens() const;
};

}  // namespace baton::load_generator
