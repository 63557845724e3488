#include "common/process/proc_file.h"

#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"

namespace baton::process {

std::string ReadProcFile(const std::string& path) {
  const std::ifstream in(path);
  std::ostringstream text;
  // A stream's iterators would throw where a file opens and then cannot be
  // read: a directory, or a control group that was removed meanwhile.
  text << in.rdbuf();
  return text.str();
}

std::optional<int64_t> ReadProcNumber(const std::string& path) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(ReadProcFile(path), &value)) return std::nullopt;
  return value;
}

}  // namespace baton::process
