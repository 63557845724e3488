// The types of JSON values, and what a look at a schema tells about those that
// it allows. One thread at a time.
#pragma once

#include <bitset>

#include "absl/status/statusor.h"
#include "router/output_format/schema_document.h"

namespace baton::router {

enum class JsonType {
  kNull,
  kBoolean,
  kInteger,   // numbers that are whole
  kFraction,  // and that are not
  kString,
  kArray,
  kObject,
};
using JsonTypes = std::bitset<7>;

JsonTypes Only(JsonType type);
bool Has(JsonTypes types, JsonType type);
JsonTypes AnyType();
JsonTypes NumberTypes();

JsonTypes TypeOf(const SchemaJson& value);

// What "type" says of these, numbers that are not whole never without integers:
// an array of names.
SchemaJson TypeNames(JsonTypes types);

// What its "type" says, and "nullable" beside that; any type where it has none.
// InvalidArgument for what is no type.
absl::StatusOr<JsonTypes> DeclaredTypes(const SchemaNode& schema);

// Types that no value is of that `schema` allows are not among these; others
// may be, too: it looks at a limited part of large schemas.
JsonTypes PossibleTypes(const SchemaJson& schema, SchemaDocument* document);

}  // namespace baton::router
