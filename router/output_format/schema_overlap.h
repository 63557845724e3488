// Whether schemas may allow the same value, as far as it is easily seen. One
// thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "router/output_format/schema_document.h"
#include "router/output_format/schema_types.h"

namespace baton::router {

class SchemaOverlap final {
 public:
  // The largest array that is looked at, two schemas by two.
  static constexpr size_t kMaxSchemas = 256;
  // References, one after the other, that are followed.
  static constexpr int kMaxReferences = 8;

  // Of a document, which must outlive it.
  explicit SchemaOverlap(SchemaDocument* document) : document_(*document) {}

  // Whether it is evident that no value is allowed by two of the schemas, by
  // their types, the values that they list, or those that they list for a
  // property that both require; of values of these types.
  bool EvidentlyNone(const SchemaJson& schemas, JsonTypes among = AnyType());

 private:
  // All that are allowed, rising, written so that equal ones are the same;
  // nothing if that cannot be told.
  using Values = std::optional<std::vector<std::string>>;
  // What a schema lists.
  struct Marks {
    Values values;
    std::map<absl::string_view, Values> required;
  };

  static Values ListedValues(const SchemaJson& schema);
  // Of what a schema refers to, if it does.
  const Marks& MarksOf(const SchemaJson& schema);
  bool Apart(const Values& a, const Values& b);
  bool Apart(const Marks& a, const Marks& b, JsonTypes both);

  SchemaDocument& document_;
  absl::flat_hash_map<const SchemaJson*, std::unique_ptr<Marks>> marks_;
  // Values and properties that may still be looked at: an end for documents
  // that would take very long.
  int64_t looks_left_ = 1 << 21;
};

}  // namespace baton::router
