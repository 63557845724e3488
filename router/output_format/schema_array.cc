// JSON arrays, as a schema has them.
#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "router/output_format/schema_keywords.h"
#include "router/output_format/schema_writer.h"

namespace baton::router {
namespace {

using Expression = scheduling::GrammarBuilder::Expression;
using scheduling::GrammarBuilder;
using scheduling::kAnyNumber;

struct ArrayShape {
  std::vector<const SchemaNode*> prefix;  // of the first elements, each
  const SchemaNode* rest = nullptr;       // of the others; null: any value
  uint32_t least = 0;
  uint32_t most = kAnyNumber;

  uint32_t num_prefix() const { return static_cast<uint32_t>(prefix.size()); }
};

// The schemas of the first elements and of the others, under these keywords.
absl::Status ReadElements(const SchemaNode& schema, absl::string_view first,
                          absl::string_view others, SchemaWriter* writer,
                          ArrayShape* shape) {
  if (const SchemaJson* prefix = schema.Find(first)) {
    if (!prefix->is_array()) {
      return schema.Invalid(first, "that is not an array");
    }
    for (size_t i = 0; i < prefix->size() && i < shape->most; ++i) {
      shape->prefix.push_back(writer->document().Child(schema, first, i));
    }
  }
  if (const SchemaJson* items = schema.Find(others)) {
    if (*items == false) {
      shape->most = std::min(shape->most, shape->num_prefix());
    } else {
      shape->rest = writer->document().Child(schema, others);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ArrayShape> ReadShape(const SchemaNode& schema,
                                     SchemaWriter* writer) {
  BATON_ASSIGN_OR_RETURN(const bool unique, schema.Bool("uniqueItems", false));
  if (unique) return schema.Unknown("uniqueItems");
  ArrayShape shape;
  BATON_ASSIGN_OR_RETURN(shape.least, schema.Count("minItems", 0));
  BATON_ASSIGN_OR_RETURN(shape.most, schema.Count("maxItems", kAnyNumber));
  BATON_ASSIGN_OR_RETURN(const ElementKeywords keywords,
                         FindElementKeywords(schema));
  BATON_RETURN_IF_ERROR(
      ReadElements(schema, keywords.first, keywords.others, writer, &shape));
  return shape;
}

class ArrayWriter final {
 public:
  ArrayWriter(const ArrayShape* shape, SchemaWriter* writer)
      : shape_(*shape),
        writer_(*writer),
        grammar_(writer->grammar()),
        text_(writer->text()) {}

  // At least one element.
  SchemaWay Write() {
    const uint32_t required = std::max(shape_.least, 1u);
    std::vector<Expression> parts;
    for (uint32_t i = 0; i < std::min(required, shape_.num_prefix()); ++i) {
      if (i > 0) parts.push_back(text_.Comma());
      parts.push_back(Element(shape_.prefix[i]));
      way_.needs.push_back(shape_.prefix[i]);
    }
    if (required <= shape_.num_prefix()) {
      parts.push_back(MaybeMore(required));
    } else {
      if (shape_.num_prefix() == 0) parts.push_back(Element(shape_.rest));
      const uint32_t before = std::max(shape_.num_prefix(), 1u);
      AddRest(required - before, before, &parts);
      if (shape_.rest != nullptr) way_.needs.push_back(shape_.rest);
    }
    way_.expression = text_.Between("[", grammar_.Sequence(parts), "]");
    return std::move(way_);
  }

 private:
  Expression Element(const SchemaNode* schema) {
    return schema == nullptr ? text_.Value() : writer_.Call(*schema);
  }

  // What may follow the first `from`, of which all have their own schema. A
  // rule for each of those that are not required, or long prefixes would make
  // deep expressions.
  Expression MaybeMore(uint32_t from) {
    std::vector<Expression> rest;
    AddRest(0, shape_.num_prefix(), &rest);
    Expression more = grammar_.Sequence(rest);
    for (uint32_t i = shape_.num_prefix(); i-- > from;) {
      const GrammarBuilder::Rule rule = grammar_.NewRule();
      grammar_.Define(rule, more);
      more = grammar_.Optional(grammar_.Sequence(
          {text_.Comma(), Element(shape_.prefix[i]), grammar_.Call(rule)}));
    }
    return more;
  }

  // The elements behind the first `before`, which is no less than the prefix,
  // and `least` of them at least.
  void AddRest(uint32_t least, uint32_t before, std::vector<Expression>* to) {
    if (shape_.most <= before) return;
    // A rule, since there may be many copies.
    const GrammarBuilder::Rule rule = grammar_.NewRule();
    grammar_.Define(rule,
                    grammar_.Sequence({text_.Comma(), Element(shape_.rest)}));
    to->push_back(grammar_.Repeat(
        grammar_.Call(rule), least,
        shape_.most == kAnyNumber ? kAnyNumber : shape_.most - before));
  }

  const ArrayShape& shape_;
  SchemaWriter& writer_;
  GrammarBuilder& grammar_;
  JsonText& text_;
  SchemaWay way_;
};

}  // namespace

absl::Status WriteArrays(const SchemaNode& schema, SchemaWriter* writer,
                         SchemaWays* ways) {
  BATON_ASSIGN_OR_RETURN(const ArrayShape shape, ReadShape(schema, writer));
  if (shape.least > shape.most) return absl::OkStatus();
  if (shape.least == 0) ways->push_back({writer->grammar().Literal("[]"), {}});
  if (shape.most > 0) ways->push_back(ArrayWriter(&shape, writer).Write());
  return absl::OkStatus();
}

}  // namespace baton::router
