#include "load_generator/sse_reader.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton::load_generator {
namespace {

constexpr size_t kMaxEventBytes = size_t{16} << 20;

}  // namespace

bool SseReader::Feed(absl::string_view bytes,
                     absl::FunctionRef<void(absl::string_view)> event) {
  while (true) {
    const size_t end = bytes.find('\n');
    if (end == absl::string_view::npos) {
      absl::StrAppend(&line_, bytes);
      return line_.size() + data_.size() <= kMaxEventBytes;
    }
    absl::StrAppend(&line_, bytes.substr(0, end));
    bytes.remove_prefix(end + 1);
    if (line_.size() + data_.size() > kMaxEventBytes) return false;
    absl::string_view line = line_;
    if (absl::EndsWith(line, "\r")) line.remove_suffix(1);
    Line(line, event);
    line_.clear();
  }
}

void SseReader::Line(absl::string_view line,
                     absl::FunctionRef<void(absl::string_view)> event) {
  if (line.empty()) {
    if (!data_.empty()) event(data_);
    data_.clear();
    return;
  }
  constexpr absl::string_view kField = "data:";
  if (!absl::StartsWith(line, kField)) return;  // a comment, or another field
  line.remove_prefix(kField.size());
  if (absl::StartsWith(line, " ")) line.remove_prefix(1);
  absl::StrAppend(&data_, data_.empty() ? "" : "\n", line);
}

}  // namespace baton::load_generator
