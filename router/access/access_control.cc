#include "router/access/access_control.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "router/access/key_usage.h"

namespace baton::router {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;

absl::StatusOr<std::vector<KeyEntry>> ReadKeys(const std::string& file) {
  BATON_ASSIGN_OR_RETURN(const std::string text,
                         ReadSmallFile(file, kMaxFileBytes));
  return ParseKeyFile(text, file);
}

// The key in "Bearer KEY"; empty when there is none, or one that is too long.
absl::string_view KeyIn(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "Bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  const absl::string_view key =
      absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
  return key.size() <= kMaxKeyBytes ? key : "";
}

std::string Describe(KeyUsage::Refusal refusal, const KeyLimits& limits) {
  switch (refusal) {
    case KeyUsage::Refusal::kNone:
      break;
    case KeyUsage::Refusal::kConcurrent:
    case KeyUsage::Refusal::kNeverConcurrent:
      return absl::StrCat(limits.max_concurrent, " requests at a time");
    case KeyUsage::Refusal::kRequests:
      return absl::StrCat(limits.requests_per_minute, " requests per minute");
    case KeyUsage::Refusal::kTokens:
      return absl::StrCat(limits.tokens_per_minute, " tokens per minute");
  }
  LOG(FATAL) << "no refusal";
}

const char* ReasonLabel(KeyUsage::Refusal refusal) {
  switch (refusal) {
    case KeyUsage::Refusal::kNone:
      break;
    case KeyUsage::Refusal::kConcurrent:
    case KeyUsage::Refusal::kNeverConcurrent:
      return "max_concurrent";
    case KeyUsage::Refusal::kRequests:
      return "requests_per_minute";
    case KeyUsage::Refusal::kTokens:
      return "tokens_per_minute";
  }
  LOG(FATAL) << "no refusal";
}

}  // namespace

// What a key has used. Shared by the keys of a file, those of the file before
// it, and the requests that run.
class KeyState final {
 public:
  // The counters may be null.
  KeyState(std::string name, const Clock* clock, prometheus::Counter* requests,
           prometheus::Counter* tokens)
      : name_(std::move(name)),
        clock_(clock),
        requests_total_(requests),
        tokens_total_(tokens) {}

  const std::string& name() const { return name_; }

  void SetEntry(const KeyEntry& entry) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    usage_.SetLimits(entry.limits, clock_->Now());
    tenant_ = TenantOf(entry);
    rights_ = std::make_shared<const KeyRights>(entry.rights);
  }

  std::string tenant() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return tenant_;
  }

  std::shared_ptr<const KeyRights> rights() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return rights_;
  }

  // Also the limits in force then.
  KeyUsage::Verdict Begin(int32_t count, int32_t beside, KeyLimits* limits)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    *limits = usage_.limits();
    const KeyUsage::Verdict verdict =
        usage_.Begin(count, beside, clock_->Now());
    if (verdict.refusal == KeyUsage::Refusal::kNone &&
        requests_total_ != nullptr) {
      requests_total_->Increment(count);
    }
    return verdict;
  }

  void Finish(int32_t count) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    usage_.Finish(count);
  }

  void CountTokens(int64_t tokens) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    usage_.CountTokens(tokens, clock_->Now());
    if (tokens_total_ != nullptr) {
      tokens_total_->Increment(static_cast<double>(tokens));
    }
  }

 private:
  const std::string name_;
  const Clock* const clock_;
  prometheus::Counter* const requests_total_;
  prometheus::Counter* const tokens_total_;

  absl::Mutex mu_;
  KeyUsage usage_ ABSL_GUARDED_BY(mu_);
  std::string tenant_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const KeyRights> rights_ ABSL_GUARDED_BY(mu_);
};

namespace {

// Of everyone, where there are no keys.
std::shared_ptr<const KeyRights> AllRights() {
  static const auto* const all =
      new std::shared_ptr<const KeyRights>(std::make_shared<const KeyRights>());
  return *all;
}

}  // namespace

KeyGrant::KeyGrant(std::shared_ptr<KeyState> state, const KeyLimits& limits,
                   std::string tenant, std::shared_ptr<const KeyRights> rights)
    : state_(std::move(state)),
      tenant_(std::move(tenant)),
      rights_(std::move(rights)),
      max_tokens_(limits.max_tokens),
      weight_(std::max(1, limits.weight)) {}

KeyGrant::~KeyGrant() {
  if (state_ != nullptr) state_->Finish(requests_);
}

const std::string& KeyGrant::name() const {
  static const auto* const everyone = new std::string;
  return state_ == nullptr ? *everyone : state_->name();
}

void KeyGrant::CountTokens(int64_t tokens) {
  CHECK_GE(tokens, 0);
  if (state_ != nullptr) state_->CountTokens(tokens);
}

AccessControl::AccessControl(std::string file, WatchedFiles watched,
                             const Clock* clock, metrics::Metrics* metrics)
    : file_(std::move(file)),
      clock_(clock),
      metrics_(metrics),
      watched_(std::move(watched)),
      keys_(std::make_shared<const Keys>()) {}

AccessControl::~AccessControl() = default;

absl::StatusOr<std::unique_ptr<AccessControl>> AccessControl::Open(
    const std::string& file, const Clock* clock, metrics::Metrics* metrics) {
  std::vector<std::string> files;
  if (!file.empty()) files.push_back(file);
  // Looks before it reads: what changes meanwhile is read again.
  WatchedFiles watched(std::move(files), clock);
  std::unique_ptr<AccessControl> control(
      new AccessControl(file, std::move(watched), clock, metrics));
  if (file.empty()) return control;
  BATON_ASSIGN_OR_RETURN(const std::vector<KeyEntry> entries, ReadKeys(file));
  absl::MutexLock lock(&control->mu_);
  control->Use(entries);
  return control;
}

void AccessControl::Use(const std::vector<KeyEntry>& entries) {
  auto keys = std::make_shared<Keys>();
  std::map<std::string, std::shared_ptr<KeyState>> states;
  for (const KeyEntry& entry : entries) {
    const auto before = states_.find(entry.name);
    std::shared_ptr<KeyState> state =
        before != states_.end() ? before->second : MakeState(entry.name);
    state->SetEntry(entry);
    states.emplace(entry.name, state);
    keys->push_back({entry.hash, std::move(state)});
  }
  states_ = std::move(states);
  keys_ = std::move(keys);
  LOG(INFO) << "using " << entries.size() << " API keys of " << file_;
}

std::shared_ptr<KeyState> AccessControl::MakeState(const std::string& name) {
  if (metrics_ == nullptr) {
    return std::make_shared<KeyState>(name, clock_, nullptr, nullptr);
  }
  const metrics::Labels labels = {{"key", name}};
  return std::make_shared<KeyState>(
      name, clock_,
      metrics_->Counter("baton_api_key_requests_total",
                        "Requests that an API key's limits let in", labels),
      metrics_->Counter("baton_api_key_tokens_total",
                        "Prompt and output tokens of an API key", labels));
}

std::shared_ptr<const AccessControl::Keys> AccessControl::Current() {
  absl::MutexLock lock(&mu_);
  if (!watched_.Changed()) return keys_;
  const absl::StatusOr<std::vector<KeyEntry>> entries = ReadKeys(file_);
  if (entries.ok()) {
    Use(*entries);
  } else {
    LOG(WARNING) << "keeping the API keys of before: "
                 << entries.status().message();
    if (MayReadLater(entries.status())) watched_.LookAgain();
  }
  return keys_;
}

absl::StatusOr<std::shared_ptr<KeyState>> AccessControl::Find(
    absl::string_view authorization) {
  const absl::string_view key = KeyIn(authorization);
  if (key.empty()) {
    CountRejection("missing", "");
    return absl::UnauthenticatedError(
        "this router needs an API key: send \"Authorization: Bearer KEY\"");
  }
  const KeyHash hash = HashKey(key);
  const std::shared_ptr<const Keys> keys = Current();
  // Looks at all of them, without a branch on what it finds.
  size_t found = 0;
  for (size_t i = 0; i < keys->size(); ++i) {
    const int differs =
        CRYPTO_memcmp((*keys)[i].hash.data(), hash.data(), hash.size());
    found |= (i + 1) * static_cast<size_t>(differs == 0);
  }
  if (found == 0) {
    CountRejection("unknown", "");
    return absl::UnauthenticatedError("this router does not know the API key");
  }
  return (*keys)[found - 1].state;
}

absl::StatusOr<std::unique_ptr<KeyGrant>> AccessControl::Admit(
    absl::string_view authorization, absl::Duration* retry_after) {
  if (!required()) {
    return std::make_unique<KeyGrant>(nullptr, KeyLimits(), "", AllRights());
  }
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<KeyState> state, Find(authorization));
  KeyLimits limits;
  const KeyUsage::Verdict verdict = state->Begin(1, /*beside=*/0, &limits);
  if (verdict.refusal == KeyUsage::Refusal::kNone) {
    std::string tenant = state->tenant();
    std::shared_ptr<const KeyRights> rights = state->rights();
    return std::make_unique<KeyGrant>(std::move(state), limits,
                                      std::move(tenant), std::move(rights));
  }
  return Refuse(*state, verdict, limits, retry_after);
}

absl::Status AccessControl::AdmitMore(KeyGrant* grant, int32_t more,
                                      absl::Duration* retry_after) {
  if (grant->state_ == nullptr || more == 0) return absl::OkStatus();
  KeyLimits limits;
  const KeyUsage::Verdict verdict =
      grant->state_->Begin(more, grant->requests_, &limits);
  if (verdict.refusal != KeyUsage::Refusal::kNone) {
    return Refuse(*grant->state_, verdict, limits, retry_after);
  }
  grant->requests_ += more;
  return absl::OkStatus();
}

absl::Status AccessControl::Refuse(const KeyState& state,
                                   const KeyUsage::Verdict& verdict,
                                   const KeyLimits& limits,
                                   absl::Duration* retry_after) {
  CountRejection(ReasonLabel(verdict.refusal), state.name());
  const std::string limit = Describe(verdict.refusal, limits);
  if (verdict.refusal == KeyUsage::Refusal::kNeverConcurrent) {
    return absl::InvalidArgumentError(
        absl::StrCat("the API key \"", state.name(), "\" allows ", limit,
                     ": ask for fewer answers in one call"));
  }
  if (retry_after != nullptr) *retry_after = verdict.retry_after;
  return absl::ResourceExhaustedError(absl::StrCat(
      "the API key \"", state.name(), "\" has reached its limit of ", limit));
}

absl::Status AccessControl::Authenticate(absl::string_view authorization) {
  return RightsOf(authorization).status();
}

absl::StatusOr<std::shared_ptr<const KeyRights>> AccessControl::RightsOf(
    absl::string_view authorization) {
  if (!required()) return AllRights();
  BATON_ASSIGN_OR_RETURN(const auto state, Find(authorization));
  return state->rights();
}

void AccessControl::CountRejection(const std::string& reason,
                                   const std::string& key) {
  if (metrics_ == nullptr) return;
  metrics_
      ->Counter("baton_api_key_rejections_total",
                "Requests refused for want of a key, or by a key's limits",
                {{"reason", reason}, {"key", key}})
      ->Increment();
}

}  // namespace baton::router
