#include "router/access/key_usage.h"

#include <algorithm>

#include "common/log.h"

namespace baton::router {
namespace {

// A guess at when a request that runs may be over.
constexpr absl::Duration kConcurrentRetry = absl::Seconds(1);

// Rounding must not make someone who waited as told wait again.
constexpr double kRounding = 1e-6;

}  // namespace

void MinuteBucket::SetRate(int64_t per_minute, absl::Time now) {
  if (per_minute_ == 0) {
    level_ = static_cast<double>(per_minute);
  } else {
    Fill(now);
    level_ = std::min(level_, static_cast<double>(per_minute));
  }
  per_minute_ = per_minute;
  filled_at_ = now;
}

void MinuteBucket::Fill(absl::Time now) {
  if (now <= filled_at_) return;
  const double full = static_cast<double>(per_minute_);
  const double minutes = absl::FDivDuration(now - filled_at_, absl::Minutes(1));
  level_ = std::min(full, level_ + minutes * full);
  filled_at_ = now;
}

absl::Duration MinuteBucket::Wait(int64_t amount, absl::Time now) {
  if (per_minute_ == 0) return absl::ZeroDuration();
  Fill(now);
  const double missing =
      static_cast<double>(std::min(amount, per_minute_)) - level_;
  if (missing <= kRounding) return absl::ZeroDuration();
  return absl::Minutes(missing / static_cast<double>(per_minute_));
}

void MinuteBucket::Take(int64_t amount, absl::Time now) {
  if (per_minute_ == 0) return;
  Fill(now);
  level_ -= static_cast<double>(amount);
}

void KeyUsage::SetLimits(const KeyLimits& limits, absl::Time now) {
  limits_ = limits;
  requests_.SetRate(limits.requests_per_minute, now);
  tokens_.SetRate(limits.tokens_per_minute, now);
}

KeyUsage::Verdict KeyUsage::Begin(int32_t count, int32_t beside,
                                  absl::Time now) {
  const int32_t most = limits_.max_concurrent;
  if (most > 0 && count + beside > most) return {Refusal::kNeverConcurrent, {}};
  if (most > 0 && running_ + count > most) {
    return {Refusal::kConcurrent, kConcurrentRetry};
  }
  if (const absl::Duration wait = tokens_.Wait(1, now);
      wait > absl::ZeroDuration()) {
    return {Refusal::kTokens, wait};
  }
  if (const absl::Duration wait = requests_.Wait(count, now);
      wait > absl::ZeroDuration()) {
    return {Refusal::kRequests, wait};
  }
  requests_.Take(count, now);
  running_ += count;
  return {};
}

void KeyUsage::Finish(int32_t count) {
  CHECK_GE(running_, count);
  running_ -= count;
}

void KeyUsage::CountTokens(int64_t tokens, absl::Time now) {
  tokens_.Take(tokens, now);
}

}  // namespace baton::router
