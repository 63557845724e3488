// Who may use the router: API keys with limits, from a file that is read anew
// when it changes; or everyone, when no file was given.
//
// A client's key is compared with every key of the file in a time that does not
// depend on either. Neither keys nor the header that carries them are ever
// logged, or part of an error.
//
// Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/metrics/metrics.h"
#include "common/watched_files.h"
#include "router/access/key_file.h"
#include "router/access/key_usage.h"

namespace baton::router {

class KeyState;

// The requests of one call of a key, for as long as any of them runs: their
// places among those that run at a time are free again when this is gone.
class KeyGrant final {
 public:
  // `state` is null when everyone may.
  KeyGrant(std::shared_ptr<KeyState> state, const KeyLimits& limits,
           std::string tenant, std::shared_ptr<const KeyRights> rights);
  ~KeyGrant();
  KeyGrant(const KeyGrant&) = delete;
  KeyGrant& operator=(const KeyGrant&) = delete;

  // Of the key; empty when everyone may.
  const std::string& name() const;
  // Whose key it is: keys of one tenant may learn of each other's prompts.
  // Empty when everyone may.
  const std::string& tenant() const { return tenant_; }
  // What the request may ask for.
  const KeyRights& rights() const { return *rights_; }
  // Most output tokens of the request; 0: no limit.
  int32_t max_tokens() const { return max_tokens_; }
  // Its share of what is placed while requests wait, >= 1.
  int32_t weight() const { return weight_; }

  // Prompt and output tokens, when they are known; once or in parts.
  void CountTokens(int64_t tokens);

 private:
  friend class AccessControl;

  const std::shared_ptr<KeyState> state_;
  const std::string tenant_;
  const std::shared_ptr<const KeyRights> rights_;
  const int32_t max_tokens_;
  const int32_t weight_;
  int32_t requests_ = 1;
};

class AccessControl final {
 public:
  // Of an empty file name everyone may, under the name "". Errors name the
  // file, and its line and field. `clock` and `metrics` (which may be null)
  // outlive the object and its grants.
  static absl::StatusOr<std::unique_ptr<AccessControl>> Open(
      const std::string& file, const Clock* clock,
      metrics::Metrics* metrics = nullptr);

  ~AccessControl();

  // `authorization` is the header's value, "Bearer KEY"; empty when there is
  // none. Unauthenticated without a key that the file has; ResourceExhausted
  // beyond a limit, and then *retry_after says when to come back.
  absl::StatusOr<std::unique_ptr<KeyGrant>> Admit(
      absl::string_view authorization, absl::Duration* retry_after);

  // A call turned out to be `more` requests than the one that it was admitted
  // for. Before the grant is shared. ResourceExhausted as above, then nothing
  // was taken; InvalidArgument where they are more than may ever run at a time.
  absl::Status AdmitMore(KeyGrant* grant, int32_t more,
                         absl::Duration* retry_after);

  // Only whether the key is known, for pages and calls that cost nothing.
  absl::Status Authenticate(absl::string_view authorization);
  // The same, and what its requests may ask for.
  absl::StatusOr<std::shared_ptr<const KeyRights>> RightsOf(
      absl::string_view authorization);

  // Whether there is a file of keys.
  bool required() const { return !file_.empty(); }

 private:
  struct Key {
    KeyHash hash;
    std::shared_ptr<KeyState> state;
  };
  using Keys = std::vector<Key>;

  AccessControl(std::string file, WatchedFiles watched, const Clock* clock,
                metrics::Metrics* metrics);

  // The keys that the file has now.
  std::shared_ptr<const Keys> Current() ABSL_LOCKS_EXCLUDED(mu_);
  void Use(const std::vector<KeyEntry>& entries)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<KeyState> MakeState(const std::string& name);
  absl::StatusOr<std::shared_ptr<KeyState>> Find(
      absl::string_view authorization);
  // What a verdict means for the client; counts it.
  absl::Status Refuse(const KeyState& state, const KeyUsage::Verdict& verdict,
                      const KeyLimits& limits, absl::Duration* retry_after);
  void CountRejection(const std::string& reason, const std::string& key);

  const std::string file_;
  const Clock* const clock_;
  metrics::Metrics* const metrics_;

  absl::Mutex mu_;
  WatchedFiles watched_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Keys> keys_ ABSL_GUARDED_BY(mu_);
  // By name: a key's usage goes on when the file is read anew.
  std::map<std::string, std::shared_ptr<KeyState>> states_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::router
