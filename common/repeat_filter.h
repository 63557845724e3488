// What was said lately, so that a log has it once and not each time: for what
// others cause, and try again and again. Any thread.
#pragma once

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton {

class RepeatFilter final {
 public:
  // Whether `text` was not said in the minute before `now`, which never goes
  // back; it is said then. Texts should be few: beyond some dozens, all are
  // forgotten.
  bool IsNews(const std::string& text, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  std::map<std::string, absl::Time> said_at_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton
