// Weights in the block formats of GGUF, turned into floats exactly as the
// formats define them (github.com/ggml-org/ggml, ggml-quants).
//
// Pure functions, any thread.
#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "engine/weight_matrix.h"

namespace baton::engine {

// Writes the weights that `blocks` hold.
// REQUIRES: `encoding` is one of kGguf..., `out` has as many elements as the
// blocks.
void ReadGgufBlocks(WeightEncoding encoding, absl::Span<const std::byte> blocks,
                    absl::Span<float> out);

}  // namespace baton::engine
