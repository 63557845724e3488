// A prompt as prefix caches know it, and what they are said to have of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/stable_hash.h"
#include "scheduling/placement.h"

namespace baton::router {

struct PromptPrefix {
  // Its KV is shared among requests of the same salt only; what the client
  // gave, and then with its tenant (router/prefix_salt.h).
  std::string salt;
  // The names of its full blocks (scheduling/block_hash.h), of so many tokens
  // each. None: nobody is asked for them.
  int32_t block_size = 0;
  std::vector<Hash128> names;

  // The loop's own: who had how much of it, when it last looked
  // (router/prefix_hints.h).
  std::vector<scheduling::CachedPrompt> cached;
  absl::Time looked_at = absl::InfinitePast();
};

}  // namespace baton::router
