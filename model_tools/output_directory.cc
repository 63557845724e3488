#include "model_tools/output_directory.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/output_file.h"

namespace baton::model_tools {
namespace {

namespace fs = std::filesystem;

absl::Status RemoveTree(const std::string& dir) {
  std::error_code error;
  fs::remove_all(dir, error);
  if (error) return FileError(error.value(), "cannot remove", dir);
  return absl::OkStatus();
}

// OK when `dir` may be made: nothing is there, or nothing of value.
absl::Status CheckReplaceable(const std::string& dir, const std::string& marker,
                              bool replace) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(dir, error))) return absl::OkStatus();
  if (!fs::is_directory(dir, error)) {
    return absl::AlreadyExistsError(
        absl::StrCat(dir, " exists and is not a directory"));
  }
  if (fs::is_empty(dir, error)) return absl::OkStatus();
  if (!fs::is_regular_file(dir + "/" + marker, error)) {
    return absl::AlreadyExistsError(
        absl::StrCat(dir, " holds something else; name another directory"));
  }
  if (replace) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      dir, " holds a model that was made before; --replace replaces it"));
}

// "a/b/" -> "a/b".
std::string WithoutSlash(std::string dir) {
  while (dir.size() > 1 && dir.back() == '/') dir.pop_back();
  return dir;
}

}  // namespace

absl::StatusOr<OutputDirectory> OutputDirectory::Begin(
    const std::string& dir, const std::string& marker, bool replace) {
  const std::string name = WithoutSlash(dir);
  BATON_RETURN_IF_ERROR(CheckReplaceable(name, marker, replace));
  const std::string partial = name + ".partial";
  BATON_RETURN_IF_ERROR(CheckReplaceable(partial, marker, /*replace=*/true));
  BATON_RETURN_IF_ERROR(RemoveTree(partial));
  std::error_code error;
  fs::create_directory(partial, error);
  if (error) return FileError(error.value(), "cannot create", partial);
  OutputDirectory output(name);
  BATON_RETURN_IF_ERROR(WriteTextFile(output.File(marker), ""));
  return output;
}

OutputDirectory::OutputDirectory(OutputDirectory&& other) noexcept
    : dir_(std::move(other.dir_)), path_(std::exchange(other.path_, "")) {}

OutputDirectory::~OutputDirectory() {
  if (path_.empty()) return;
  const absl::Status removed = RemoveTree(path_);
  if (!removed.ok()) LOG(WARNING) << removed;
}

std::string OutputDirectory::File(absl::string_view name) const {
  return absl::StrCat(path_, "/", name);
}

absl::Status OutputDirectory::CheckSpace(int64_t bytes) const {
  std::error_code error;
  const fs::space_info space = fs::space(path_, error);
  if (error || space.available >= static_cast<uintmax_t>(bytes)) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrFormat("no space for %s: it needs %.0f MB, the disk has %.0f MB",
                      path_, bytes / 1e6, space.available / 1e6));
}

absl::Status OutputDirectory::Commit() {
  BATON_RETURN_IF_ERROR(RemoveTree(dir_));
  std::error_code error;
  fs::rename(path_, dir_, error);
  if (error) return FileError(error.value(), "cannot create", dir_);
  path_.clear();
  return absl::OkStatus();
}

}  // namespace baton::model_tools
