// The keywords of JSON Schema that are known. Any thread.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/output_format/schema_document.h"
#include "router/output_format/schema_types.h"

namespace baton::router {

enum class KeywordKind {
  kAnnotation,   // says nothing about what is allowed
  kType,         // "type"
  kCombination,  // other schemas say what is allowed
  kValues,       // lists what is allowed
  kConstraint,   // says what values of some types have to be like
  kUnknown,
};

struct Keyword {
  absl::string_view name;
  KeywordKind kind = KeywordKind::kUnknown;
  JsonTypes types;  // kConstraint: that it is about
};

Keyword FindKeyword(absl::string_view name);

// Under which keywords a schema has those of an array's first elements, one for
// each, and that of the others. Drafts before 2020-12 have an array of schemas
// under the name of what is one schema now, and otherwise heed no
// "additionalItems". Unimplemented for both drafts at a time.
struct ElementKeywords {
  absl::string_view first = "prefixItems";
  absl::string_view others = "items";
};
absl::StatusOr<ElementKeywords> FindElementKeywords(const SchemaNode& schema);

// InvalidArgument for what is neither an object nor a boolean, Unimplemented
// for a keyword that is not known.
absl::Status CheckSchema(const SchemaNode& schema);

}  // namespace baton::router
