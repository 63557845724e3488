#include "router/output_format/schema_types.h"

#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace baton::router {
namespace {

// Schemas that PossibleTypes looks at.
constexpr size_t kMaxSteps = 200;
// Of the values of an "enum", that count as one more.
constexpr size_t kValuesOfAStep = 16;

size_t Bit(JsonType type) { return static_cast<size_t>(type); }

std::optional<JsonTypes> TypesNamed(const SchemaJson& name) {
  if (name == "null") return Only(JsonType::kNull);
  if (name == "boolean") return Only(JsonType::kBoolean);
  if (name == "integer") return Only(JsonType::kInteger);
  if (name == "number") return NumberTypes();
  if (name == "string") return Only(JsonType::kString);
  if (name == "array") return Only(JsonType::kArray);
  if (name == "object") return Only(JsonType::kObject);
  return std::nullopt;
}

class TypeFinder final {
 public:
  explicit TypeFinder(SchemaDocument* document) : document_(*document) {}

  JsonTypes Find(const SchemaJson& schema) {
    if (schema == false) return {};
    if (++steps_ > kMaxSteps || !schema.is_object()) return AnyType();
    JsonTypes types = AnyType();
    const auto nullable = schema.find("nullable");
    const JsonTypes or_null = nullable != schema.end() && *nullable == true
                                  ? Only(JsonType::kNull)
                                  : JsonTypes();
    for (const auto& [keyword, value] : schema.items()) {
      types &=
          Says(keyword, value) | (keyword == "type" ? or_null : JsonTypes());
    }
    return types;
  }

 private:
  JsonTypes Says(const std::string& keyword, const SchemaJson& value) {
    if (keyword == "type") {
      if (!value.is_array()) return TypesNamed(value).value_or(AnyType());
      JsonTypes types;
      for (const SchemaJson& name : value) {
        types |= TypesNamed(name).value_or(AnyType());
      }
      return types;
    }
    if (keyword == "const") return TypeOf(value);
    if (keyword == "enum" && value.is_array()) {
      steps_ += value.size() / kValuesOfAStep;
      if (steps_ > kMaxSteps) return AnyType();
      JsonTypes types;
      for (const SchemaJson& each : value) types |= TypeOf(each);
      return types;
    }
    if ((keyword == "anyOf" || keyword == "oneOf") && value.is_array()) {
      JsonTypes types;
      for (const SchemaJson& schema : value) types |= Find(schema);
      return types;
    }
    if (keyword == "allOf" && value.is_array()) {
      JsonTypes types = AnyType();
      for (const SchemaJson& schema : value) types &= Find(schema);
      return types;
    }
    if (keyword == "$ref" && value.is_string()) {
      const SchemaJson* target =
          document_.Follow(value.get_ref<const std::string&>());
      if (target != nullptr) return Find(*target);
    }
    return AnyType();
  }

  SchemaDocument& document_;
  size_t steps_ = 0;
};

}  // namespace

JsonTypes Only(JsonType type) { return JsonTypes().set(Bit(type)); }

bool Has(JsonTypes types, JsonType type) { return types.test(Bit(type)); }

JsonTypes AnyType() { return JsonTypes().set(); }

JsonTypes NumberTypes() {
  return Only(JsonType::kInteger) | Only(JsonType::kFraction);
}

JsonTypes TypeOf(const SchemaJson& value) {
  if (value.is_null()) return Only(JsonType::kNull);
  if (value.is_boolean()) return Only(JsonType::kBoolean);
  if (value.is_string()) return Only(JsonType::kString);
  if (value.is_array()) return Only(JsonType::kArray);
  if (value.is_object()) return Only(JsonType::kObject);
  if (!value.is_number_float()) return Only(JsonType::kInteger);
  const double number = value.get<double>();
  return Only(std::floor(number) == number ? JsonType::kInteger
                                           : JsonType::kFraction);
}

SchemaJson TypeNames(JsonTypes types) {
  SchemaJson names = SchemaJson::array();
  for (const char* const name :
       {"null", "boolean", "number", "integer", "string", "array", "object"}) {
    const JsonTypes named = *TypesNamed(name);
    if ((named & ~types).any()) continue;
    names.push_back(name);
    types &= ~named;
  }
  return names;
}

absl::StatusOr<JsonTypes> DeclaredTypes(const SchemaNode& schema) {
  BATON_ASSIGN_OR_RETURN(const bool nullable, schema.Bool("nullable", false));
  const SchemaJson* declared = schema.Find("type");
  if (declared == nullptr) return AnyType();
  const SchemaJson one = SchemaJson::array({*declared});
  const SchemaJson& names = declared->is_array() ? *declared : one;
  if (names.empty()) return schema.Invalid("type", "that is empty");
  JsonTypes types;
  for (const SchemaJson& name : names) {
    const std::optional<JsonTypes> named = TypesNamed(name);
    if (!named.has_value()) {
      return schema.Invalid(
          "type",
          absl::StrCat("that is ", ShownInSchema(name), ", which is no type"));
    }
    types |= *named;
  }
  if (nullable) types |= Only(JsonType::kNull);
  return types;
}

JsonTypes PossibleTypes(const SchemaJson& schema, SchemaDocument* document) {
  return TypeFinder(document).Find(schema);
}

}  // namespace baton::router
