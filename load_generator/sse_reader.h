// Server-sent events, as the OpenAI API streams them: the data of each event,
// however the bytes were cut on their way.
//
// One thread.
#pragma once

#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace baton::load_generator {

class SseReader final {
 public:
  // Calls `event` with the data of each event that these bytes complete
  // (without "data:" and the space after it). False when an event is longer
  // than 16 MiB: then nothing more is read.
  bool Feed(absl::string_view bytes,
            absl::FunctionRef<void(absl::string_view)> event);

 private:
  void Line(absl::string_view line,
            absl::FunctionRef<void(absl::string_view)> event);

  std::string line_;  // has no end yet
  std::string data_;  // of the event so far
};

}  // namespace baton::load_generator
