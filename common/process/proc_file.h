// The small files of text in /proc, /sys and the control groups. The kernel
// makes them as they are read, so their sizes say nothing.
//
// A file that cannot be read is no error here: which of them exist depends on
// the kernel and its settings. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace baton::process {

// The whole file, or as much of it as can be read; often nothing.
std::string ReadProcFile(const std::string& path);

// The file's one whole number, white space around it ignored; none when the
// file cannot be read or holds anything else ("max", two numbers).
std::optional<int64_t> ReadProcNumber(const std::string& path);

}  // namespace baton::process
