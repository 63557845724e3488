// How long the context of a model is that was stretched by YaRN: whoever
// stretches one writes by how much, and leaves the length as it was. The router
// and the engine must agree on it.
//
// Pure, any thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace baton {

// No context is longer.
inline constexpr int32_t kMaxContext = 1 << 27;

// Of a model that says `positions`, and that it had `original` ones before they
// became `factor` times as many.
inline int32_t StretchedContext(int32_t positions, double original,
                                double factor) {
  const double stretched = std::min<double>(original * factor, kMaxContext);
  return std::max(positions, static_cast<int32_t>(stretched));
}

}  // namespace baton
