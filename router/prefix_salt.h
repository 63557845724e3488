// What keeps the cached prefixes of one tenant's prompts from those of others:
// a salt that goes before the first block of a prompt (scheduling/
// block_hash.h), made of the tenant's name and of what the client gave.
//
// The same in every router, and after a restart: what a tenant left behind in
// prefix caches stays its own. There is no secret in it, and nothing of a key.
//
// Pure, any thread.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace baton::router {

// Whose requests share cached prefixes, when their salts are the same.
enum class PrefixScope {
  kTenant,  // those of a tenant
  kShared,  // everyone's
};

// Empty when there is neither tenant nor salt. Otherwise, in which no two pairs
// of tenant and salt are alike: the length of the tenant's name in one byte,
// the name (empty in kShared), `cache_salt`.
// REQUIRES: a name of at most 255 bytes (kMaxKeyNameBytes).
std::string MakePrefixSalt(PrefixScope scope, absl::string_view tenant,
                           absl::string_view cache_salt);

}  // namespace baton::router
