// Jinja's filters: `value | join(', ')`, ... with Hugging Face's `tojson`.
//
// The thread of the Run.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/text/jinja/objects.h"
#include "router/text/jinja/run.h"
#include "router/text/jinja/value.h"

namespace baton::router::jinja {

bool IsFilter(absl::string_view name);

// args.positional[0] through the filter `name`, given the other arguments.
// Fails where there is no such filter. REQUIRES: there is a first argument.
absl::StatusOr<Value> ApplyFilter(Run& run, absl::string_view name,
                                  CallArgs args);

// For filters*.cc.

using Filters = absl::flat_hash_map<absl::string_view, Builtin>;
void AddTextFilters(Filters* filters);
void AddNumberFilters(Filters* filters);
void AddSequenceFilters(Filters* filters);
void AddSelectingFilters(Filters* filters);
void AddOrderingFilters(Filters* filters);

// What an `attribute` argument names in an item: "a.b.0". Undefined where it is
// not there.
absl::StatusOr<Value> AttributeOf(Run& run, const Value& item,
                                  const Value& attribute);

// A string in lower case; any other value as it is. How filters compare unless
// told to be case sensitive.
absl::StatusOr<Value> IgnoringCase(Run& run, const Value& value);

}  // namespace baton::router::jinja
