// Where prefixes are kept besides the prefix cache, as schedulers see it
// (worker/kv_offload.h has it).
//
// Used by the worker's loop thread only.
#pragma once

#include <cstdint>

#include "scheduling/sequence.h"
#include "scheduling/step_cost.h"

namespace baton::scheduling {

class PrefixLoader {
 public:
  virtual ~PrefixLoader() = default;

  // How many of the sequence's first tokens it has, of at most `max_tokens`.
  virtual int32_t StoredTokens(const Sequence& sequence,
                               int32_t max_tokens) const = 0;

  // Begins to load what it has behind the sequence's computed tokens, up to
  // MaxCached() of them in all, into the sequence's blocks: it is loading()
  // until that has come, or is given up. False: there is nothing, or computing
  // it, in chunks of `chunk` tokens, is faster. REQUIRES: the sequence has
  // blocks for all of its tokens, and is not loading.
  virtual bool Load(Sequence* sequence, const StepCost& cost,
                    int32_t chunk) = 0;
};

}  // namespace baton::scheduling
