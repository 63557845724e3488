// Schemas as rules of a grammar: one for each place of a document, so that
// what is used again, or within itself, is written once. One thread at a time.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "router/output_format/json_text.h"
#include "router/output_format/schema_document.h"
#include "router/output_format/schema_merge.h"
#include "router/output_format/schema_overlap.h"
#include "router/output_format/schema_types.h"
#include "scheduling/grammar.h"

namespace baton::router {

// One of the ways to be what a schema allows.
struct SchemaWay {
  scheduling::GrammarBuilder::Expression expression;
  // The schemas that have to allow something for this way to exist.
  std::vector<const SchemaNode*> needs;
};
using SchemaWays = std::vector<SchemaWay>;

// What a schema lists ("enum", "const"), of the types that it has.
using ListedValues = std::vector<const SchemaJson*>;

class SchemaWriter final {
 public:
  using Expression = scheduling::GrammarBuilder::Expression;

  // Both must outlive it.
  SchemaWriter(SchemaDocument* document, scheduling::GrammarBuilder* grammar)
      : document_(*document),
        grammar_(*grammar),
        text_(grammar),
        overlap_(document),
        merger_(document, &overlap_) {}

  // Writes all of the document, as WriteJsonSchema says.
  absl::Status Write(scheduling::GrammarBuilder::Rule rule);

  // For those that write the values of one type: what `schema` allows. It is
  // written later, since schemas may be nested without end.
  Expression Call(const SchemaNode& schema);

  // What it lists, itself or where its "$ref" leads; nullopt if it is another
  // kind of schema.
  absl::StatusOr<std::optional<ListedValues>> Listed(const SchemaNode& schema);

  SchemaDocument& document() { return document_; }
  scheduling::GrammarBuilder& grammar() { return grammar_; }
  JsonText& text() { return text_; }

 private:
  // A schema that is to be written, or is.
  struct Place {
    const SchemaNode* schema;
    scheduling::GrammarBuilder::Rule rule;
    Expression call;
    std::vector<std::vector<const SchemaNode*>> needs;  // of each of its ways
  };

  Expression PlaceOf(const SchemaNode& schema,
                     std::optional<scheduling::GrammarBuilder::Rule> rule);
  absl::Status WriteWays(const SchemaNode& schema, SchemaWays* ways);
  // Whether what other schemas say is all that the schema says.
  absl::StatusOr<bool> StandsAlone(const SchemaNode& schema,
                                   absl::string_view keyword);
  absl::Status WriteCombination(const SchemaNode& schema,
                                absl::string_view keyword, SchemaWays* ways);
  absl::StatusOr<ListedValues> ReadListed(const SchemaNode& schema) const;
  absl::Status WriteTypes(const SchemaNode& schema, SchemaWays* ways);
  absl::Status CheckPossible() const;

  SchemaDocument& document_;
  scheduling::GrammarBuilder& grammar_;
  JsonText text_;
  SchemaOverlap overlap_;
  SchemaMerger merger_;
  std::vector<Place> places_;
  std::vector<std::optional<size_t>> place_of_;  // of each node
};

// The values of one type that `schema` allows, where it has keywords for them.
absl::Status WriteObjects(const SchemaNode& schema, SchemaWriter* writer,
                          SchemaWays* ways);
absl::Status WriteArrays(const SchemaNode& schema, SchemaWriter* writer,
                         SchemaWays* ways);
absl::Status WriteStrings(const SchemaNode& schema, SchemaWriter* writer,
                          SchemaWays* ways);
// Of integers and, with `fractions`, of other numbers too.
absl::Status WriteNumberValues(const SchemaNode& schema, bool fractions,
                               SchemaWriter* writer, SchemaWays* ways);

}  // namespace baton::router
