#include "cli/text_output.h"

#include <unistd.h>

#include "cli/generate_summary.h"

namespace baton::cli {

TextOutput::TextOutput(std::FILE* out)
    : out_(out), is_terminal_(isatty(fileno(out)) == 1) {}

void TextOutput::Write(const std::string& text) {
  if (text.empty()) return;
  const std::string shown = is_terminal_ ? SafeForTerminal(text) : text;
  std::fwrite(shown.data(), 1, shown.size(), out_);
  std::fflush(out_);
  ends_line_ = text.back() == '\n';
}

void TextOutput::EndLine() {
  if (!ends_line_) std::fputc('\n', out_);
  ends_line_ = true;
  std::fflush(out_);
}

}  // namespace baton::cli
