#include "common/line_limit.h"

#include <utility>

namespace baton {

std::optional<int64_t> LineLimit::Take(absl::Time now) {
  absl::MutexLock lock(&mu_);
  if (now - second_ >= absl::Seconds(1)) {
    second_ = now;
    written_ = 0;
  }
  if (written_ == per_second_) {
    ++left_out_;
    return std::nullopt;
  }
  ++written_;
  return std::exchange(left_out_, 0);
}

}  // namespace baton
