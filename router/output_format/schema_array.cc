// JSON arrays, as a schema has them.
#include <algorithm>
#include <bit>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/output_format/schema_keywords.h"
#include "router/output_format/schema_writer.h"

namespace baton::router {
namespace {

using Expression = scheduling::GrammarBuilder::Expression;
using scheduling::GrammarBuilder;
using scheduling::kAnyNumber;

// There is a rule for each set of them that may have come.
constexpr size_t kMaxUniqueValues = 10;

struct ArrayShape {
  std::vector<const SchemaNode*> prefix;  // of the first elements, each
  const SchemaNode* rest = nullptr;       // of the others; null: any value
  uint32_t least = 0;
  uint32_t most = kAnyNumber;

  // All elements are among these, which differ, and none comes twice.
  std::optional<ListedValues> unique;

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

absl::Status ReadUnique(const SchemaNode& schema, SchemaWriter* writer,
                        ArrayShape* shape) {
  std::optional<ListedValues> listed;
  if (shape->rest != nullptr && shape->prefix.empty()) {
    BATON_ASSIGN_OR_RETURN(listed, writer->Listed(*shape->rest));
  }
  ListedValues values;
  for (const SchemaJson* value : listed.value_or(ListedValues())) {
    const bool is_new = std::none_of(
        values.begin(), values.end(),
        [&](const SchemaJson* known) { return AreEqual(*known, *value); });
    if (is_new) values.push_back(value);
  }
  if (!listed.has_value() || values.size() > kMaxUniqueValues) {
    return schema.Unknown("uniqueItems",
                          absl::StrCat("of other items than at most ",
                                       kMaxUniqueValues, " listed values"));
  }
  shape->most = std::min(shape->most, static_cast<uint32_t>(values.size()));
  shape->unique = std::move(values);
  return absl::OkStatus();
}

absl::StatusOr<ArrayShape> ReadShape(const SchemaNode& schema,
                                     SchemaWriter* writer) {
  ArrayShape shape;
  BATON_ASSIGN_OR_RETURN(shape.least, schema.Count("minItems", 0));
  BATON_ASSIGN_OR_RETURN(shape.most, schema.Count("maxItems", kAnyNumber));
  BATON_ASSIGN_OR_RETURN(const ElementKeywords keywords,
                         FindElementKeywords(schema));
  BATON_RETURN_IF_ERROR(
      ReadElements(schema, keywords.first, keywords.others, writer, &shape));
  BATON_ASSIGN_OR_RETURN(const bool unique, schema.Bool("uniqueItems", false));
  // One is always unique.
  if (unique && shape.most > 1) {
    BATON_RETURN_IF_ERROR(ReadUnique(schema, writer, &shape));
  }
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

// At least one of the values, none twice.
SchemaWay WriteUnique(const ArrayShape& shape, SchemaWriter* writer) {
  GrammarBuilder& grammar = writer->grammar();
  const ListedValues& values = *shape.unique;
  std::vector<Expression> literals;
  for (const SchemaJson* value : values) {
    literals.push_back(grammar.Literal(value->dump()));
  }
  // What may follow each set; of those that are reached later first.
  const uint32_t all = (1u << values.size()) - 1;
  std::vector<Expression> behind(all + 1);
  for (uint32_t set = all + 1; set-- > 0;) {
    const uint32_t number = static_cast<uint32_t>(std::popcount(set));
    if (number > shape.most) continue;
    std::vector<Expression> ways;
    if (number >= std::max(shape.least, 1u)) {
      ways.push_back(grammar.Sequence({}));
    }
    for (size_t i = 0; i < values.size() && number < shape.most; ++i) {
      if ((set >> i & 1) != 0) continue;
      std::vector<Expression> parts = {literals[i], behind[set | 1u << i]};
      if (number > 0) parts.insert(parts.begin(), writer->text().Comma());
      ways.push_back(grammar.Sequence(parts));
    }
    const GrammarBuilder::Rule rule = grammar.NewRule();
    grammar.Define(rule, grammar.Choice(ways));
    behind[set] = grammar.Call(rule);
  }
  return {writer->text().Between("[", behind[0], "]"), {}};
}

}  // namespace

absl::Status WriteArrays(const SchemaNode& schema, SchemaWriter* writer,
                         SchemaWays* ways) {
  BATON_ASSIGN_OR_RETURN(const ArrayShape shape, ReadShape(schema, writer));
  if (shape.least > shape.most) return absl::OkStatus();
  if (shape.least == 0) ways->push_back({writer->grammar().Literal("[]"), {}});
  if (shape.most == 0) return absl::OkStatus();
  ways->push_back(shape.unique.has_value()
                      ? WriteUnique(shape, writer)
                      : ArrayWriter(&shape, writer).Write());
  return absl::OkStatus();
}

}  // namespace baton::router
