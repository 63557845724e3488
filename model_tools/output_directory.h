// A directory that is written whole or not at all: its files go to DIR.partial,
// which is renamed at the end. Only an end of the process leaves it, and the
// next attempt replaces it.
//
// A marker file says that a directory is one of ours, and which command's; no
// other is ever replaced.
//
// Not thread-safe; one attempt per directory at a time.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::model_tools {

class OutputDirectory final {
 public:
  // Creates DIR.partial, whose parent must exist, with an empty file `marker`,
  // which the caller fills. AlreadyExists when `dir` holds something else, or
  // what the same command wrote and `replace` is not set; else of the file
  // system, with the path.
  static absl::StatusOr<OutputDirectory> Begin(const std::string& dir,
                                               const std::string& marker,
                                               bool replace);

  OutputDirectory(OutputDirectory&& other) noexcept;
  OutputDirectory& operator=(OutputDirectory&&) = delete;
  // Removes what was not committed.
  ~OutputDirectory();

  // DIR.partial.
  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const;

  // ResourceExhausted when the disk has less.
  absl::Status CheckSpace(int64_t bytes) const;

  // Puts it in the place of `dir`.
  absl::Status Commit();

 private:
  explicit OutputDirectory(std::string dir)
      : dir_(std::move(dir)), path_(dir_ + ".partial") {}

  std::string dir_;
  std::string path_;  // empty: moved away or committed
};

}  // namespace baton::model_tools
