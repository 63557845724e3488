// A folder of a test's own, which is gone with the object.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

#include <gtest/gtest.h>

#include "common/log.h"

namespace baton::test {

class ScratchDir final {
 public:
  // In `parent`, which is there.
  explicit ScratchDir(const std::string& parent = testing::TempDir())
      : path_(parent + "/baton-test-XXXXXX") {
    PCHECK(mkdtemp(path_.data()) != nullptr) << path_;
  }
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace baton::test
