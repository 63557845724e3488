// What `baton generate` says when the text is out: counts, TTFT and its stages,
// the gaps between tokens, the hand-off. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "baton/v1/inference.pb.h"

namespace baton::cli {

// The value that `fraction` of the values do not exceed (nearest rank).
// REQUIRES: values not empty, 0 <= fraction <= 1.
absl::Duration Percentile(std::vector<absl::Duration> values, double fraction);

// "512 B", "1.5 KiB", "96.0 MiB".
std::string FormatBytes(uint64_t bytes);

// "0.42 ms", "12.3 ms", "1.53 s": three digits that matter.
std::string FormatSeconds(double seconds);

// Ends with a line feed. `token_times` are when each token event came, as the
// client saw it; `tokens` counts tokens, which an event may have several of.
std::string SummarizeGenerate(const v1::GenerateResponse& last,
                              absl::Span<const absl::Time> token_times,
                              int64_t tokens);

// `text` with control characters other than line feed and tab made visible as
// U+FFFD: what a model says must not steer the user's terminal.
std::string SafeForTerminal(const std::string& text);

}  // namespace baton::cli
