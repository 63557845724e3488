#include "router/console/console_files.h"

#include <algorithm>

namespace baton::router {

const ConsoleFile* FindConsoleFile(absl::string_view path) {
  const absl::Span<const ConsoleFile> files = ConsoleFiles();
  const auto it =
      std::find_if(files.begin(), files.end(),
                   [&](const ConsoleFile& file) { return file.path == path; });
  return it == files.end() ? nullptr : &*it;
}

}  // namespace baton::router
