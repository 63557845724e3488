// The files of the console, the page at "/", as they lie in this folder; they
// are part of the program. Any thread; nothing here fails or changes.
//
// The page runs under "Content-Security-Policy: default-src 'self'": no script
// or style stands in the HTML, and nothing comes from elsewhere.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton::router {

struct ConsoleFile {
  absl::string_view path;          // "/" or "/console/NAME"
  absl::string_view content_type;  // "text/css; charset=utf-8"
  absl::string_view body;
  absl::string_view etag;  // of the body, with its quotes: "\"5f3a...\""
};

// All of them, in no particular order.
absl::Span<const ConsoleFile> ConsoleFiles();

// The file at exactly that path; null when there is none.
const ConsoleFile* FindConsoleFile(absl::string_view path);

}  // namespace baton::router
