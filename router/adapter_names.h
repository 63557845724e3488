// The LoRA adapters that a router's workers have, as clients ask for them.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace baton::router {

// From names to identities (WorkerHello.adapters).
using AdapterNames = std::map<std::string, std::string, std::less<>>;

// Longer ones are no worker's.
inline constexpr size_t kMaxAdapterIdentityBytes = 64;

}  // namespace baton::router
