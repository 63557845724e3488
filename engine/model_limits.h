// What the readers of model files accept at most: far beyond any model, and
// small enough that no matrix, and no KV of one sequence, has a size in bytes
// that leaves int64_t. Plain values.
#pragma once

#include <cstdint>

#include "common/stretched_context.h"

namespace baton::engine {

inline constexpr int64_t kMaxHiddenSize = 1 << 17;
inline constexpr int64_t kMaxLayers = 1 << 12;
inline constexpr int64_t kMaxHeads = 1 << 12;
inline constexpr int64_t kMaxHeadDim = 1 << 10;
inline constexpr int64_t kMaxIntermediateSize = 1 << 20;
inline constexpr int64_t kMaxExperts = 1 << 10;
// Of all layers together.
inline constexpr int64_t kMaxModelExperts = 1 << 18;
inline constexpr int64_t kMaxVocabSize = 1 << 22;
inline constexpr int64_t kMaxPosition = kMaxContext;

}  // namespace baton::engine
