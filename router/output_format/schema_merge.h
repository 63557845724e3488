// What several schemas allow together, as one schema: for "allOf", and for
// keywords beside "$ref", "anyOf" or "oneOf". One thread at a time.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/output_format/schema_document.h"
#include "router/output_format/schema_overlap.h"

namespace baton::router {

// Schemas that are made so, of one document, at most.
inline constexpr size_t kMaxMergedSchemas = 1024;
// Schemas that lead from one to the next, by "allOf" and "$ref".
inline constexpr int kMaxMergedDepth = 200;
// Bytes of their texts.
inline constexpr size_t kMaxMergedBytes = size_t{2} << 20;

class SchemaMerger final {
 public:
  // Both must outlive it.
  SchemaMerger(SchemaDocument* document, SchemaOverlap* overlap)
      : document_(*document), overlap_(*overlap) {}

  // One that allows what `schema` does. It has either no "$ref", "allOf",
  // "anyOf" and "oneOf", or "anyOf" and nothing else; what is below it may have
  // all of them. The same text gives the same node, so that schemas that name
  // themselves come to an end.
  //
  // InvalidArgument and Unimplemented as WriteJsonSchema says;
  // ResourceExhausted beyond the bounds above.
  absl::StatusOr<const SchemaNode*> Merge(const SchemaNode& schema);

 private:
  // Counts so much more text.
  absl::Status Take(size_t bytes);

  SchemaDocument& document_;
  SchemaOverlap& overlap_;
  size_t bytes_ = 0;
  size_t schemas_ = 0;
};

}  // namespace baton::router
