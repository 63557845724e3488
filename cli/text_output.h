// Text that a model says, written as it comes. One thread.
#pragma once

#include <cstdio>
#include <string>

namespace baton::cli {

class TextOutput final {
 public:
  explicit TextOutput(std::FILE* out);

  // Flushes. On a terminal what could steer it is made visible
  // (SafeForTerminal).
  void Write(const std::string& text);
  // A line feed, unless what was written ends with one.
  void EndLine();

  bool is_terminal() const { return is_terminal_; }
  // Whoever read the output is gone, or the disk is full.
  bool broken() const { return std::ferror(out_) != 0; }

 private:
  std::FILE* const out_;
  const bool is_terminal_;
  bool ends_line_ = false;
};

}  // namespace baton::cli
