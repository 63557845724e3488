// Whether files have changed, for what is read anew when they do (certificates,
// keys): asked often, looks at most once a second.
//
// Compares what stat(2) says, links followed, so it also sees a file that was
// renamed over another one and a link that points elsewhere. Not safe for
// threads: the owner's lock guards it. Never reads a file.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace baton {

class WatchedFiles final {
 public:
  // `clock` outlives the object. Takes what it sees first as known.
  WatchedFiles(std::vector<std::string> paths, const Clock* clock);

  // True once after each change; a file that appears or goes is one. What is
  // read after that is at least as new as what was seen.
  bool Changed();

  // What changed could not be read, for a reason that may pass: the next look
  // finds it changed again.
  void LookAgain() { look_again_ = true; }

 private:
  // Of one file; all zero when there is none.
  struct Stamp {
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = 0;
    int64_t modified_ns = 0;
    int64_t status_changed_ns = 0;

    friend bool operator==(const Stamp&, const Stamp&) = default;
  };

  static Stamp StampOf(const std::string& path);
  std::vector<Stamp> Look() const;

  const std::vector<std::string> paths_;
  const Clock* const clock_;
  absl::Time next_look_;
  std::vector<Stamp> seen_;
  bool look_again_ = false;
};

// Whether reading the same files later may give what it did not give now: not
// where they are wrong or gone, which only a change of theirs mends.
bool MayReadLater(const absl::Status& error);

// All of a small file. Errors name the path: those of open(2) and read(2);
// InvalidArgument when it is a folder or longer than `max_bytes`.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path,
                                          int64_t max_bytes);

}  // namespace baton
