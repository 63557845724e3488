// The methods of str that search and cut; for string_methods.cc, and for the
// filters that do the same.
//
// The thread of the Run. REQUIRES: self is a string.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/text/jinja/run.h"
#include "router/text/jinja/value.h"

namespace baton::router::jinja {

absl::StatusOr<Value> StringCount(Run& run, const Value& self, CallArgs& args);
absl::StatusOr<Value> StringFind(Run& run, const Value& self, CallArgs& args);
absl::StatusOr<Value> StringFindLast(Run& run, const Value& self,
                                     CallArgs& args);
absl::StatusOr<Value> StringIndex(Run& run, const Value& self, CallArgs& args);
absl::StatusOr<Value> StringIndexLast(Run& run, const Value& self,
                                      CallArgs& args);
absl::StatusOr<Value> StringStartsWith(Run& run, const Value& self,
                                       CallArgs& args);
absl::StatusOr<Value> StringEndsWith(Run& run, const Value& self,
                                     CallArgs& args);
absl::StatusOr<Value> StringPartition(Run& run, const Value& self,
                                      CallArgs& args);
absl::StatusOr<Value> StringPartitionLast(Run& run, const Value& self,
                                          CallArgs& args);
absl::StatusOr<Value> StringRemovePrefix(Run& run, const Value& self,
                                         CallArgs& args);
absl::StatusOr<Value> StringRemoveSuffix(Run& run, const Value& self,
                                         CallArgs& args);
absl::StatusOr<Value> StringReplace(Run& run, const Value& self,
                                    CallArgs& args);
absl::StatusOr<Value> StringSplit(Run& run, const Value& self, CallArgs& args);
absl::StatusOr<Value> StringSplitLast(Run& run, const Value& self,
                                      CallArgs& args);
absl::StatusOr<Value> StringSplitLines(Run& run, const Value& self,
                                       CallArgs& args);
absl::StatusOr<Value> StringStrip(Run& run, const Value& self, CallArgs& args);
absl::StatusOr<Value> StringLeftStrip(Run& run, const Value& self,
                                      CallArgs& args);
absl::StatusOr<Value> StringRightStrip(Run& run, const Value& self,
                                       CallArgs& args);

// Fails where the lines of a text would be too many to list.
absl::Status CheckLines(Run& run, absl::string_view text);

// text.replace(old, with, count); all of them where count is negative.
absl::StatusOr<std::string> Replaced(Run& run, absl::string_view text,
                                     absl::string_view old,
                                     absl::string_view with, int64_t count);

}  // namespace baton::router::jinja
