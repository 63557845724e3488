#include "router/output_format/schema_merge.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "router/output_format/schema_keywords.h"
#include "router/output_format/schema_types.h"
#include "scheduling/grammar.h"

namespace baton::router {
namespace {

// Schemas all of which are to hold.
class Conjunction final {
 public:
  // Nothing for a schema that says nothing.
  void Add(const SchemaJson& schema) {
    if (schema == true) return;
    if (schema == false) never_ = true;
    if (std::find(schemas_.begin(), schemas_.end(), schema) == schemas_.end()) {
      schemas_.push_back(schema);
    }
  }

  bool empty() const { return schemas_.empty(); }

  SchemaJson Json() const {
    if (never_) return false;
    if (schemas_.empty()) return true;
    if (schemas_.size() == 1) return schemas_.front();
    return SchemaJson{{"allOf", schemas_}};
  }

 private:
  bool never_ = false;
  std::vector<SchemaJson> schemas_;
};

// What one of the schemas says of objects, or of arrays.
struct ObjectPart {
  const SchemaJson* properties = nullptr;
  const SchemaJson* others = nullptr;
};
struct ArrayPart {
  const SchemaJson* first = nullptr;  // an array of schemas
  const SchemaJson* others = nullptr;
};

SchemaJson MergedProperties(const std::vector<ObjectPart>& parts) {
  using Names = absl::flat_hash_map<absl::string_view, const SchemaJson*>;
  std::vector<Names> named(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].properties == nullptr) continue;
    for (auto it = parts[i].properties->begin();
         it != parts[i].properties->end(); ++it) {
      named[i][it.key()] = &*it;
    }
  }
  SchemaJson merged = SchemaJson::object();
  auto& members = merged.get_ref<SchemaJson::object_t&>();
  absl::flat_hash_set<absl::string_view> seen;
  for (const ObjectPart& part : parts) {
    if (part.properties == nullptr) continue;
    for (auto it = part.properties->begin(); it != part.properties->end();
         ++it) {
      if (!seen.insert(it.key()).second) continue;
      Conjunction all;
      for (size_t i = 0; i < parts.size(); ++i) {
        const auto found = named[i].find(it.key());
        const SchemaJson* const says =
            found != named[i].end() ? found->second : parts[i].others;
        if (says != nullptr) all.Add(*says);
      }
      // It is none of those before, which this would look through.
      members.emplace_back(it.key(), all.Json());
    }
  }
  return merged;
}

SchemaJson MergedElements(const std::vector<ArrayPart>& parts) {
  size_t count = 0;
  for (const ArrayPart& part : parts) {
    if (part.first != nullptr) count = std::max(count, part.first->size());
  }
  SchemaJson merged = SchemaJson::array();
  for (size_t i = 0; i < count; ++i) {
    Conjunction all;
    for (const ArrayPart& part : parts) {
      const bool first = part.first != nullptr && i < part.first->size();
      const SchemaJson* const says = first ? &(*part.first)[i] : part.others;
      if (says != nullptr) all.Add(*says);
    }
    merged.push_back(all.Json());
  }
  return merged;
}

template <typename Part>
SchemaJson MergedOthers(const std::vector<Part>& parts) {
  Conjunction all;
  for (const Part& part : parts) {
    if (part.others != nullptr) all.Add(*part.others);
  }
  return all.Json();
}

// Takes apart schemas that are to hold together, and puts together what they
// say.
class Merging final {
 public:
  // "anyOf", or "oneOf" whose branches cannot both be true.
  struct Group {
    const SchemaNode* schema;
    std::string keyword;
    const SchemaJson& branches() const { return *schema->Find(keyword); }
  };

  explicit Merging(SchemaDocument* document) : document_(*document) {}

  // `depth`: of schemas that led here, within each other or by reference.
  absl::Status Add(const SchemaNode& schema, int depth) {
    if (depth > kMaxMergedDepth) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "has more than ", kMaxMergedDepth,
          " schemas that lead to each other at ", schema.Pointer()));
    }
    BATON_RETURN_IF_ERROR(CheckSchema(schema));
    // One that holds already, within itself too, says nothing new.
    if (!seen_.insert(&schema).second) return absl::OkStatus();
    if (schema.value().is_boolean()) {
      if (!schema.value().get<bool>()) types_ = {};
      return absl::OkStatus();
    }
    BATON_ASSIGN_OR_RETURN(const JsonTypes types, DeclaredTypes(schema));
    types_ &= types;
    has_type_ = has_type_ || schema.Has("type");
    // In the order of the text, in which properties come.
    bool has_objects = false;
    BATON_RETURN_IF_ERROR(AddArrays(schema));
    for (const auto& [name, value] : schema.value().items()) {
      const KeywordKind kind = FindKeyword(name).kind;
      if (!has_objects && FindKeyword(name).types == Only(JsonType::kObject)) {
        has_objects = true;
        BATON_RETURN_IF_ERROR(AddObjects(schema));
      }
      if (kind == KeywordKind::kCombination) {
        BATON_RETURN_IF_ERROR(AddCombination(schema, name, depth));
      } else if (kind == KeywordKind::kValues) {
        BATON_RETURN_IF_ERROR(AddValues(schema, name));
      } else if (kind == KeywordKind::kConstraint) {
        BATON_RETURN_IF_ERROR(AddConstraint(schema, name));
      }
    }
    return absl::OkStatus();
  }

  // Of the groups: to be called when all are added, as what others say of types
  // may keep branches apart.
  absl::Status CheckOverlap(SchemaOverlap* overlap) const {
    for (const Group& group : groups_) {
      if (group.keyword == "oneOf" &&
          !overlap->EvidentlyNone(group.branches(), types_)) {
        return group.schema->Unknown(group.keyword,
                                     "with schemas that may overlap");
      }
    }
    return absl::OkStatus();
  }

  // What all say, but for the groups and what no other keyword is about.
  SchemaJson Json() const {
    if (types_.none()) return false;
    SchemaJson json = SchemaJson::object();
    if (values_.has_value()) {
      SchemaJson values = SchemaJson::array();
      JsonTypes types;
      for (const SchemaJson& value : *values_) {
        if ((TypeOf(value) & types_).none() || !IsWithin(value)) continue;
        values.push_back(value);
        types |= TypeOf(value);
      }
      if (values.empty()) return false;
      if (Has(types, JsonType::kFraction)) types |= NumberTypes();
      json["type"] = TypeNames(types);
      json["enum"] = std::move(values);
    } else if (has_type_) {
      json["type"] = TypeNames(types_);
    }
    if (!objects_.empty()) {
      const SchemaJson properties = MergedProperties(objects_);
      if (!properties.empty()) json["properties"] = properties;
      if (std::any_of(
              objects_.begin(), objects_.end(),
              [](const ObjectPart& part) { return part.others != nullptr; })) {
        json["additionalProperties"] = MergedOthers(objects_);
      }
    }
    if (!required_.empty()) json["required"] = required_;
    if (!arrays_.empty()) {
      const SchemaJson first = MergedElements(arrays_);
      if (!first.empty()) json["prefixItems"] = first;
      const SchemaJson others = MergedOthers(arrays_);
      if (others != true) json["items"] = others;
    }
    for (const auto& [name, value] : others_.items()) {
      if (!values_.has_value() || !IsOfLists(name)) json[name] = value;
    }
    return json;
  }

  const std::vector<Group>& groups() const { return groups_; }
  // Of the outermost one; null if it has none.
  const SchemaJson* unevaluated() const { return unevaluated_; }

 private:
  // Keywords that are asked of listed values here.
  static bool IsOfLists(absl::string_view name) {
    for (const char* const each :
         {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
          "minLength", "maxLength"}) {
      if (name == each) return true;
    }
    return false;
  }
  // Whether a listed value is what these ask for.
  bool IsWithin(const SchemaJson& value) const {
    const auto says = [this](const char* name) {
      const auto it = others_.find(name);
      return it == others_.end() ? nullptr : &*it;
    };
    if (value.is_number()) {
      const SchemaJson* const least = says("minimum");
      const SchemaJson* const above = says("exclusiveMinimum");
      const SchemaJson* const most = says("maximum");
      const SchemaJson* const below = says("exclusiveMaximum");
      return (least == nullptr || value >= *least) &&
             (above == nullptr || value > *above) &&
             (most == nullptr || value <= *most) &&
             (below == nullptr || value < *below);
    }
    if (!value.is_string()) return true;
    uint32_t length = 0;
    const auto& text = value.get_ref<const std::string&>();
    for (size_t at = 0; at < text.size(); at += NextUtf8(text, at).size) {
      ++length;
    }
    const SchemaJson* const least = says("minLength");
    const SchemaJson* const most = says("maxLength");
    return (least == nullptr || length >= least->get<uint32_t>()) &&
           (most == nullptr || length <= most->get<uint32_t>());
  }

  absl::Status AddCombination(const SchemaNode& schema, const std::string& name,
                              int depth) {
    if (name == "$ref") {
      BATON_ASSIGN_OR_RETURN(const SchemaNode* target,
                             document_.Target(schema));
      return Add(*target, depth + 1);
    }
    if (name == "unevaluatedProperties") {
      // What is within another schema is about that one alone.
      if (depth > 0) return schema.Unknown(name, "within another schema");
      unevaluated_ = schema.Find(name);
      return absl::OkStatus();
    }
    const SchemaJson& schemas = *schema.Find(name);
    if (!schemas.is_array() || schemas.empty()) {
      return schema.Invalid(name, "that is not an array of schemas");
    }
    if (name != "allOf") {
      groups_.push_back({&schema, name});
      return absl::OkStatus();
    }
    for (size_t i = 0; i < schemas.size(); ++i) {
      BATON_RETURN_IF_ERROR(Add(*document_.Child(schema, name, i), depth + 1));
    }
    return absl::OkStatus();
  }

  absl::Status AddValues(const SchemaNode& schema, const std::string& name) {
    const SchemaJson& value = *schema.Find(name);
    if (name == "enum" && !value.is_array()) {
      return schema.Invalid(name, "that is not an array");
    }
    const SchemaJson one = SchemaJson::array({value});
    const SchemaJson& listed = name == "enum" ? value : one;
    if (!values_.has_value()) {
      values_ = listed;
      return absl::OkStatus();
    }
    SchemaJson both = SchemaJson::array();
    for (const SchemaJson& mine : *values_) {
      if (std::any_of(listed.begin(), listed.end(),
                      [&mine](const SchemaJson& other) {
                        return AreEqual(mine, other);
                      })) {
        both.push_back(mine);
      }
    }
    values_ = std::move(both);
    return absl::OkStatus();
  }

  absl::Status AddObjects(const SchemaNode& schema) {
    BATON_ASSIGN_OR_RETURN(const std::vector<absl::string_view> required,
                           schema.Strings("required"));
    for (const absl::string_view name : required) {
      if (std::find(required_.begin(), required_.end(), name) ==
          required_.end()) {
        required_.emplace_back(name);
      }
    }
    const ObjectPart part = {schema.Find("properties"),
                             schema.Find("additionalProperties")};
    if (part.properties != nullptr && !part.properties->is_object()) {
      return schema.Invalid("properties", "that is not an object");
    }
    if (part.properties != nullptr || part.others != nullptr) {
      objects_.push_back(part);
    }
    return absl::OkStatus();
  }

  absl::Status AddArrays(const SchemaNode& schema) {
    BATON_ASSIGN_OR_RETURN(const ElementKeywords keywords,
                           FindElementKeywords(schema));
    const ArrayPart part = {schema.Find(keywords.first),
                            schema.Find(keywords.others)};
    if (part.first != nullptr && !part.first->is_array()) {
      return schema.Invalid(keywords.first, "that is not an array");
    }
    if (part.first != nullptr || part.others != nullptr) {
      arrays_.push_back(part);
    }
    return absl::OkStatus();
  }

  absl::Status AddConstraint(const SchemaNode& schema,
                             const std::string& name) {
    for (const char* const apart :
         {"properties", "additionalProperties", "required", "items",
          "prefixItems", "additionalItems"}) {
      if (name == apart) return absl::OkStatus();
    }
    const SchemaJson& value = *schema.Find(name);
    for (const char* const least : {"minProperties", "minItems", "minLength"}) {
      if (name == least) return AddCount(schema, name, /*is_least=*/true);
    }
    for (const char* const most : {"maxProperties", "maxItems", "maxLength"}) {
      if (name == most) return AddCount(schema, name, /*is_least=*/false);
    }
    const bool lower = name == "minimum" || name == "exclusiveMinimum";
    if (lower || name == "maximum" || name == "exclusiveMaximum") {
      if (!value.is_number()) {
        return schema.Invalid(name, "that is not a number");
      }
      if (!others_.contains(name) ||
          (lower ? others_[name] < value : value < others_[name])) {
        others_[name] = value;
      }
      return absl::OkStatus();
    }
    // "additionalProperties" is about the names of its own schema.
    if (name == "patternProperties") {
      return schema.Unknown(name, "in schemas that have to hold together");
    }
    if (name == "uniqueItems") {
      BATON_ASSIGN_OR_RETURN(const bool unique, schema.Bool(name, false));
      if (unique) others_[name] = true;
      return absl::OkStatus();
    }
    if (others_.contains(name) && !AreEqual(others_[name], value)) {
      return schema.Unknown(name, "beside another one");
    }
    others_[name] = value;
    return absl::OkStatus();
  }

  absl::Status AddCount(const SchemaNode& schema, const std::string& name,
                        bool is_least) {
    BATON_ASSIGN_OR_RETURN(uint32_t count, schema.Count(name, 0));
    if (others_.contains(name)) {
      const auto before = others_[name].get<uint32_t>();
      count = is_least ? std::max(count, before) : std::min(count, before);
    }
    others_[name] = count;
    return absl::OkStatus();
  }

  SchemaDocument& document_;
  absl::flat_hash_set<const SchemaNode*> seen_;
  JsonTypes types_ = AnyType();
  bool has_type_ = false;
  std::optional<SchemaJson> values_;
  std::vector<ObjectPart> objects_;
  std::vector<std::string> required_;
  std::vector<ArrayPart> arrays_;
  SchemaJson others_ = SchemaJson::object();
  std::vector<Group> groups_;
  const SchemaJson* unevaluated_ = nullptr;
};

}  // namespace

absl::Status SchemaMerger::Take(size_t bytes) {
  bytes_ += bytes;
  if (bytes_ <= kMaxMergedBytes && schemas_ <= kMaxMergedSchemas) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "has more schemas to be put together than may be: ", kMaxMergedSchemas,
      ", of ", kMaxMergedBytes, " bytes"));
}

absl::StatusOr<const SchemaNode*> SchemaMerger::Merge(
    const SchemaNode& schema) {
  Merging merging(&document_);
  BATON_RETURN_IF_ERROR(merging.Add(schema, /*depth=*/0));
  BATON_RETURN_IF_ERROR(merging.CheckOverlap(&overlap_));
  SchemaJson merged = merging.Json();
  ++schemas_;
  BATON_RETURN_IF_ERROR(Take(merged.dump().size()));
  const SchemaJson* const unevaluated = merging.unevaluated();
  const auto& groups = merging.groups();
  if (groups.empty() || merged == false) {
    // Of what no schema has said anything about.
    if (unevaluated != nullptr && merged.is_object() &&
        !merged.contains("additionalProperties")) {
      merged["additionalProperties"] = *unevaluated;
    }
    return document_.Derive(schema, std::move(merged));
  }
  // Each branch of the first group with all the rest.
  SchemaJson rest = SchemaJson::array({std::move(merged)});
  for (size_t i = 1; i < groups.size(); ++i) {
    rest.push_back({{"anyOf", groups[i].branches()}});
  }
  const SchemaJson& first = groups.front().branches();
  BATON_RETURN_IF_ERROR(
      Take(first.dump().size() + rest.dump().size() * first.size()));
  SchemaJson branches = SchemaJson::array();
  for (const SchemaJson& branch : first) {
    SchemaJson with = {{"allOf", rest}};
    with["allOf"].push_back(branch);
    if (unevaluated != nullptr) with["unevaluatedProperties"] = *unevaluated;
    branches.push_back(std::move(with));
  }
  return document_.Derive(schema, SchemaJson{{"anyOf", std::move(branches)}});
}

}  // namespace baton::router
