#include "router/output_format/schema_writer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/output_format/schema_keywords.h"

namespace baton::router {
namespace {

using Expression = scheduling::GrammarBuilder::Expression;

// The first keyword of the schema that is of this kind; null if none is.
const std::string* FirstOf(const SchemaJson& schema, KeywordKind kind) {
  for (const auto& [name, value] : schema.items()) {
    if (FindKeyword(name).kind == kind) {
      return &schema.find(name).key();
    }
  }
  return nullptr;
}

}  // namespace

absl::Status SchemaWriter::Write(scheduling::GrammarBuilder::Rule rule) {
  PlaceOf(*document_.root(), rule);
  // More come while these are written.
  for (size_t i = 0; i < places_.size(); ++i) {
    const SchemaNode& schema = *places_[i].schema;
    SchemaWays ways;
    BATON_RETURN_IF_ERROR(WriteWays(schema, &ways));
    std::vector<Expression> choices;
    for (SchemaWay& way : ways) {
      choices.push_back(way.expression);
      places_[i].needs.push_back(std::move(way.needs));
    }
    grammar_.Define(places_[i].rule, grammar_.Choice(choices));
    if (grammar_.full()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("has more parts than a grammar may have, ",
                       scheduling::kMaxGrammarExpressions));
    }
  }
  return CheckPossible();
}

Expression SchemaWriter::Call(const SchemaNode& schema) {
  return PlaceOf(schema, std::nullopt);
}

Expression SchemaWriter::PlaceOf(
    const SchemaNode& schema,
    std::optional<scheduling::GrammarBuilder::Rule> rule) {
  if (schema.number() >= place_of_.size()) {
    place_of_.resize(schema.number() + 1);
  }
  std::optional<size_t>& place = place_of_[schema.number()];
  if (!place.has_value()) {
    place = places_.size();
    if (!rule.has_value()) rule = grammar_.NewRule();
    places_.push_back(
        {.schema = &schema, .rule = *rule, .call = grammar_.Call(*rule)});
  }
  return places_[*place].call;
}

absl::Status SchemaWriter::WriteWays(const SchemaNode& schema,
                                     SchemaWays* ways) {
  BATON_RETURN_IF_ERROR(CheckSchema(schema));
  const SchemaJson& value = schema.value();
  if (value.is_boolean()) {
    if (value.get<bool>()) ways->push_back({text_.Value(), {}});
    return absl::OkStatus();
  }
  if (const std::string* keyword = FirstOf(value, KeywordKind::kCombination)) {
    return WriteCombination(schema, *keyword, ways);
  }
  if (FirstOf(value, KeywordKind::kValues) != nullptr) {
    BATON_ASSIGN_OR_RETURN(const ListedValues values, ReadListed(schema));
    for (const SchemaJson* listed : values) {
      ways->push_back({grammar_.Literal(listed->dump()), {}});
    }
    return absl::OkStatus();
  }
  return WriteTypes(schema, ways);
}

absl::StatusOr<bool> SchemaWriter::StandsAlone(const SchemaNode& schema,
                                               absl::string_view keyword) {
  if (keyword == "unevaluatedProperties") return false;
  const SchemaJson& says = *schema.Find(keyword);
  if (keyword == "allOf" && says.is_array() && says.size() > 1) return false;
  for (const auto& [name, value] : schema.value().items()) {
    const KeywordKind kind = FindKeyword(name).kind;
    if (name == keyword || kind == KeywordKind::kAnnotation) continue;
    if (kind != KeywordKind::kType) return false;
    // It may say nothing new.
    BATON_ASSIGN_OR_RETURN(const JsonTypes declared, DeclaredTypes(schema));
    SchemaJson alone = SchemaJson::object();
    alone[std::string(keyword)] = says;
    if ((PossibleTypes(alone, &document_) & ~declared).any()) return false;
  }
  return true;
}

absl::Status SchemaWriter::WriteCombination(const SchemaNode& schema,
                                            absl::string_view keyword,
                                            SchemaWays* ways) {
  const auto add = [this, ways](const SchemaNode* other) {
    ways->push_back({Call(*other), {other}});
  };
  BATON_ASSIGN_OR_RETURN(const bool stands_alone, StandsAlone(schema, keyword));
  if (!stands_alone) {
    BATON_ASSIGN_OR_RETURN(const SchemaNode* merged, merger_.Merge(schema));
    add(merged);
    return absl::OkStatus();
  }
  if (keyword == "$ref") {
    BATON_ASSIGN_OR_RETURN(const SchemaNode* target, document_.Target(schema));
    add(target);
    return absl::OkStatus();
  }
  const SchemaJson& schemas = *schema.Find(keyword);
  if (!schemas.is_array() || schemas.empty()) {
    return schema.Invalid(keyword, "that is not an array of schemas");
  }
  if (keyword == "oneOf" && !overlap_.EvidentlyNone(schemas)) {
    return schema.Unknown(keyword, "with schemas that may overlap");
  }
  for (size_t i = 0; i < schemas.size(); ++i) {
    add(document_.Child(schema, keyword, i));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<ListedValues>> SchemaWriter::Listed(
    const SchemaNode& schema) {
  BATON_RETURN_IF_ERROR(CheckSchema(schema));
  const SchemaJson& value = schema.value();
  if (value.is_boolean()) return std::nullopt;
  if (const std::string* keyword = FirstOf(value, KeywordKind::kCombination)) {
    if (*keyword != "$ref") return std::nullopt;
    BATON_ASSIGN_OR_RETURN(const bool stands_alone,
                           StandsAlone(schema, *keyword));
    if (!stands_alone) return std::nullopt;
    BATON_ASSIGN_OR_RETURN(const SchemaNode* target, document_.Target(schema));
    // One that leads to another lists nothing of its own.
    if (target->Has("$ref")) return std::nullopt;
    return Listed(*target);
  }
  if (FirstOf(value, KeywordKind::kValues) == nullptr) return std::nullopt;
  return ReadListed(schema);
}

absl::StatusOr<ListedValues> SchemaWriter::ReadListed(
    const SchemaNode& schema) const {
  BATON_ASSIGN_OR_RETURN(const JsonTypes types, DeclaredTypes(schema));
  const SchemaJson* only = schema.Find("const");
  const SchemaJson* all = schema.Find("enum");
  if (all != nullptr && !all->is_array()) {
    return schema.Invalid("enum", "that is not an array");
  }
  for (const auto& [name, value] : schema.value().items()) {
    const Keyword keyword = FindKeyword(name);
    if (keyword.kind == KeywordKind::kConstraint &&
        (keyword.types & types).any()) {
      return schema.UnknownBeside(name, all != nullptr ? "enum" : "const");
    }
  }
  ListedValues values;
  const auto add = [&](const SchemaJson& value) {
    if ((TypeOf(value) & types).any()) values.push_back(&value);
  };
  if (all == nullptr) {
    add(*only);
    return values;
  }
  for (const SchemaJson& value : *all) {
    if (only == nullptr || AreEqual(*only, value)) add(value);
  }
  return values;
}

absl::Status SchemaWriter::WriteTypes(const SchemaNode& schema,
                                      SchemaWays* ways) {
  BATON_ASSIGN_OR_RETURN(const JsonTypes types, DeclaredTypes(schema));
  JsonTypes constrained;
  for (const auto& [name, value] : schema.value().items()) {
    constrained |= FindKeyword(name).types;
  }
  constrained &= types;
  if (constrained.none() && types.all()) {
    ways->push_back({text_.Value(), {}});
    return absl::OkStatus();
  }
  const auto add = [ways](Expression any) { ways->push_back({any, {}}); };
  if (Has(constrained, JsonType::kObject)) {
    BATON_RETURN_IF_ERROR(WriteObjects(schema, this, ways));
  } else if (Has(types, JsonType::kObject)) {
    add(text_.Object());
  }
  if (Has(constrained, JsonType::kArray)) {
    BATON_RETURN_IF_ERROR(WriteArrays(schema, this, ways));
  } else if (Has(types, JsonType::kArray)) {
    add(text_.Array());
  }
  if (Has(constrained, JsonType::kString)) {
    BATON_RETURN_IF_ERROR(WriteStrings(schema, this, ways));
  } else if (Has(types, JsonType::kString)) {
    add(text_.String());
  }
  const bool fractions = Has(types, JsonType::kFraction);
  if (Has(constrained, JsonType::kInteger)) {
    BATON_RETURN_IF_ERROR(WriteNumberValues(schema, fractions, this, ways));
  } else if (Has(types, JsonType::kInteger)) {
    add(fractions ? text_.Number() : text_.Integer());
  }
  if (Has(types, JsonType::kBoolean)) add(text_.Boolean());
  if (Has(types, JsonType::kNull)) add(text_.Null());
  return absl::OkStatus();
}

absl::Status SchemaWriter::CheckPossible() const {
  std::vector<bool> possible(place_of_.size());  // by nodes
  const auto is_possible = [&possible](const SchemaNode* schema) {
    return possible[schema->number()];
  };
  for (bool changed = true; changed && !possible[0];) {
    changed = false;
    // Most need what comes behind them.
    for (size_t i = places_.size(); i-- > 0;) {
      const Place& place = places_[i];
      if (is_possible(place.schema)) continue;
      const bool now = std::any_of(
          place.needs.begin(), place.needs.end(), [&](const auto& needs) {
            return std::all_of(needs.begin(), needs.end(), is_possible);
          });
      possible[place.schema->number()] = now;
      changed = changed || now;
    }
  }
  if (possible[0]) return absl::OkStatus();
  for (const Place& place : places_) {
    if (!place.needs.empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("allows nothing, since nothing can stand at ",
                     place.schema->Pointer()));
  }
  return absl::InvalidArgumentError("allows nothing that comes to an end");
}

}  // namespace baton::router
