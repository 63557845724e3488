// The file of API keys: who may use the router, and how much.
//
//   # comment
//   NAME sha256:HEX [max-concurrent=N] [requests-per-minute=N]
//                   [tokens-per-minute=N] [max-tokens=N] [weight=N]
//                   [max-priority=N] [class=batch] [models=NAME,NAME]
//                   [tenant=NAME]
//
// one key a line; HEX is the SHA-256 of the key, in 64 digits. Keys are 256
// random bits, so that the hash cannot be turned back by trying, and a slow,
// salted hash as for passwords would only make each request dearer.
//
// Pure but for NewKey; any thread. Errors never quote a key.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::router {

using KeyHash = std::array<uint8_t, 32>;

// 0: no limit.
struct KeyLimits {
  // Requests at a time.
  int32_t max_concurrent = 0;
  // With as many at once after a quiet minute.
  int64_t requests_per_minute = 0;
  // Prompt and output tokens.
  int64_t tokens_per_minute = 0;
  // Most output tokens of one request.
  int32_t max_tokens = 0;
  // Of its requests among those of others that wait (scheduling/
  // waiting_line.h), at most kMaxKeyWeight; 0: 1.
  int32_t weight = 0;

  friend bool operator==(const KeyLimits&, const KeyLimits&) = default;
};

// What requests of a key may ask for.
struct KeyRights {
  // Higher priorities are cut to it; within kMaxKeyPriority of zero.
  std::optional<int32_t> max_priority;
  // All are of class batch, whatever they say.
  bool batch_only = false;
  // Names by which clients ask for the model and its adapters, sorted; others
  // are not there for the key. Empty: all are.
  std::vector<std::string> models;

  bool HasModel(absl::string_view name) const;

  friend bool operator==(const KeyRights&, const KeyRights&) = default;
};

struct KeyEntry {
  std::string name;
  KeyHash hash = {};
  KeyLimits limits;
  KeyRights rights;
  // Whose key it is, spelled as a name is; empty: the name itself.
  std::string tenant;
};

// Keys of the same tenant belong together (router/prefix_salt.h).
const std::string& TenantOf(const KeyEntry& entry);

// More would make the search through all of them felt, and metrics by name
// too many.
inline constexpr size_t kMaxKeys = 1000;

inline constexpr int32_t kMaxKeyWeight = 1000;

// As of requests (scheduling/request.h).
inline constexpr int32_t kMaxKeyPriority = 100;

// Of models=.
inline constexpr size_t kMaxKeyModels = 100;
inline constexpr size_t kMaxKeyModelBytes = 256;

// The longest name of a key or a tenant.
inline constexpr size_t kMaxKeyNameBytes = 64;

// The longest key that a client may send.
inline constexpr size_t kMaxKeyBytes = 256;

KeyHash HashKey(absl::string_view key);

// A new key, "sk-baton-" and 43 characters of 256 random bits.
std::string NewKey();

// InvalidArgument naming file, line and field. At least one key.
absl::StatusOr<std::vector<KeyEntry>> ParseKeyFile(absl::string_view text,
                                                   const std::string& file);

// The entry's line, without an end of line.
std::string FormatKeyLine(const KeyEntry& entry);

}  // namespace baton::router
