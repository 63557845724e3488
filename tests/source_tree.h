// The files of the tree, for the tests of the house's rules
// (layering_test.cc, source_rules_test.cc). Header only.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton::source_tree {

using Strings = std::vector<std::string>;

inline std::string TopFolder(absl::string_view path) {
  const size_t slash = path.find('/');
  return slash == absl::string_view::npos ? ""
                                          : std::string(path.substr(0, slash));
}

struct SourceFile {
  std::string path;  // from the root
  std::string text;
};

// All source files and CMakeLists.txt of the tree, sorted.
inline std::vector<SourceFile> ReadTree() {
  namespace fs = std::filesystem;
  const fs::path root = BATON_SOURCE_DIR;
  std::vector<SourceFile> files;
  for (auto it = fs::recursive_directory_iterator(root);
       it != fs::recursive_directory_iterator(); ++it) {
    const fs::path& path = it->path();
    const std::string name = path.filename().string();
    if (it->is_directory()) {
      const bool is_build =
          fs::exists(path / "CMakeCache.txt") || path == root / "build";
      if (name[0] == '.' || is_build) it.disable_recursion_pending();
      continue;
    }
    const std::string extension = path.extension().string();
    static const std::set<std::string> kExtensions = {".h", ".inl", ".cc",
                                                      ".cu", ".cuh"};
    if (kExtensions.count(extension) == 0 && name != "CMakeLists.txt") {
      continue;
    }
    std::ifstream in(path, std::ios::binary);
    files.push_back({path.lexically_relative(root).generic_string(),
                     std::string(std::istreambuf_iterator<char>(in), {})});
  }
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

}  // namespace baton::source_tree
