// What keeps the cached prefixes of one tenant's prompts from those of others:
// a salt that goes before the first block of a prompt (scheduling/
// block_hash.h), made of the tenant's name, of what the client gave, and of the
// adapter that computes the prompt.
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

// What `adapter` (RequestSpec::adapter) computes is of use to nobody else.
//
// Empty when there is neither tenant, salt nor adapter. Otherwise, in which no
// two of them are alike: the length of the tenant's name in one byte, the name
// (empty in kShared), `cache_salt`; with an adapter, before that a byte 255,
// the length of its identity in one byte, and the identity.
// REQUIRES: a name of at most 254 bytes (kMaxKeyNameBytes), an identity of at
// most kMaxAdapterIdentityBytes.
std::string MakePrefixSalt(PrefixScope scope, absl::string_view tenant,
                           absl::string_view cache_salt,
                           absl::string_view adapter = "");

}  // namespace baton::router
