#include "common/repeat_filter.h"

namespace baton {
namespace {

constexpr size_t kMaxTexts = 64;
constexpr absl::Duration kQuiet = absl::Minutes(1);

}  // namespace

bool RepeatFilter::IsNews(const std::string& text, absl::Time now) {
  absl::MutexLock lock(&mu_);
  if (said_at_.size() >= kMaxTexts && said_at_.count(text) == 0) {
    said_at_.clear();
  }
  absl::Time& said_at =
      said_at_.try_emplace(text, absl::InfinitePast()).first->second;
  if (now - said_at < kQuiet) return false;
  said_at = now;
  return true;
}

}  // namespace baton
