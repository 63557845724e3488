// One tool call as a model writes it, read byte by byte: what is behind the
// marker that says that there is one. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "router/tool_calls/text_parameters.h"

namespace baton::router {

// Around a call, where each has them.
inline constexpr absl::string_view kOpenMarker = "<tool_call>";
inline constexpr absl::string_view kCloseMarker = "</tool_call>";

// What is around calls. Of those that are empty there are none. In no marker
// does its first byte come again, so what fails to be one can begin another
// only with the byte that failed.
struct CallMarkers {
  absl::string_view open;   // before a call, or, of a list, before that
  absl::string_view close;  // behind each call
  // Around all calls: no content if there is one.
  absl::string_view section_open;
  absl::string_view section_close;
};

// Of each function that has some.
using TextsOfTools = absl::flat_hash_map<std::string, TextParameters>;

// What a call has to be, to be one.
struct ToolCallRules {
  static constexpr size_t kMaxNameBytes = 256;

  // JSON: whether the arguments may be called "parameters", too.
  bool parameters = false;
  // Names that there are; any will do if it is empty.
  absl::flat_hash_set<std::string> names;
  // Where values have no quotes.
  TextsOfTools texts;
};

class ToolCallBody {
 public:
  enum class Step : uint8_t {
    kMore,
    kLast,  // the call ends with this byte
    kBad,   // with this byte it is no call, or its arguments are broken
  };

  virtual ~ToolCallBody() = default;

  // The next byte. REQUIRES: kMore was what came of the one before.
  virtual Step Take(char c) = 0;

  // It is a call for sure: its name is known, and its arguments have begun.
  virtual bool begun() const = 0;
  virtual const std::string& name() const = 0;
  // Whether the arguments are there to their end, whatever comes behind.
  virtual bool has_all_arguments() const = 0;
  // Whether the marker behind the call was part of it.
  virtual bool closed() const = 0;
  // What there is of the arguments' JSON and was not taken yet.
  virtual std::string TakeArguments() = 0;
};

}  // namespace baton::router
