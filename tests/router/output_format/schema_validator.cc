#include "tests/router/output_format/schema_validator.h"

#include <cmath>
#include <regex>

namespace baton::router {
namespace {

using json = nlohmann::json;

bool IsOfType(const json& value, const std::string& type) {
  if (type == "integer") {
    return value.is_number() &&
           std::floor(value.get<double>()) == value.get<double>();
  }
  if (type == "number") return value.is_number();
  return type == value.type_name();
}

size_t Characters(const std::string& utf8) {
  size_t count = 0;
  for (const char c : utf8) count += (c & 0xC0) != 0x80;
  return count;
}

class Validator final {
 public:
  explicit Validator(const json* root) : root_(*root) {}

  std::string Check(const json& schema, const json& value) const {
    if (schema == true) return "";
    if (schema == false) return "is forbidden";
    if (const auto ref = schema.find("$ref"); ref != schema.end()) {
      const std::string at = ref->get<std::string>().substr(1);
      std::string wrong = Check(root_.at(json::json_pointer(at)), value);
      if (!wrong.empty()) return wrong;
    }
    if (schema.contains("oneOf")) {
      size_t good = 0;
      for (const json& each : schema["oneOf"]) {
        good += Check(each, value).empty();
      }
      if (good != 1) return "oneOf";
    }
    for (const char* all : {"anyOf", "allOf"}) {
      if (!schema.contains(all)) continue;
      size_t good = 0;
      for (const json& each : schema[all]) good += Check(each, value).empty();
      if (good < (all[1] == 'n' ? 1 : schema[all].size())) return all;
    }
    if (std::string wrong = Listed(schema, value); !wrong.empty()) return wrong;
    if (value.is_string()) return String(schema, value.get<std::string>());
    if (value.is_number()) return Number(schema, value.get<double>());
    if (value.is_array()) return Array(schema, value);
    if (value.is_object()) return Object(schema, value);
    return "";
  }

 private:
  static std::string Listed(const json& schema, const json& value) {
    if (schema.contains("type")) {
      const json& type = schema["type"];
      bool good = false;
      for (const json& each : type.is_array() ? type : json::array({type})) {
        good = good || IsOfType(value, each.get<std::string>());
      }
      if (!good) return "type";
    }
    if (schema.contains("const") && schema["const"] != value) return "const";
    if (!schema.contains("enum")) return "";
    for (const json& each : schema["enum"]) {
      if (each == value) return "";
    }
    return "enum";
  }

  static std::string String(const json& schema, const std::string& value) {
    if (Characters(value) < schema.value("minLength", 0u)) return "minLength";
    if (Characters(value) > schema.value("maxLength", 1u << 31)) {
      return "maxLength";
    }
    if (schema.contains("pattern") &&
        !std::regex_search(value,
                           std::regex(schema["pattern"].get<std::string>()))) {
      return "pattern";
    }
    return "";
  }

  static std::string Number(const json& schema, double value) {
    const auto bound = [&schema](const char* keyword, double fallback) {
      return schema.value(keyword, fallback);
    };
    if (value < bound("minimum", -INFINITY)) return "minimum";
    if (value > bound("maximum", INFINITY)) return "maximum";
    if (value <= bound("exclusiveMinimum", -INFINITY)) {
      return "exclusiveMinimum";
    }
    if (value >= bound("exclusiveMaximum", INFINITY)) {
      return "exclusiveMaximum";
    }
    return "";
  }

  std::string Array(const json& schema, const json& value) const {
    if (value.size() < schema.value("minItems", 0u)) return "minItems";
    if (schema.value("uniqueItems", false)) {
      for (size_t i = 0; i < value.size(); ++i) {
        for (size_t k = 0; k < i; ++k) {
          if (value[i] == value[k]) return "uniqueItems";
        }
      }
    }
    if (value.size() > schema.value("maxItems", 1u << 31)) return "maxItems";
    const json prefix = schema.value("prefixItems", json::array());
    for (size_t i = 0; i < value.size(); ++i) {
      const json& item =
          i < prefix.size() ? prefix[i] : schema.value("items", json(true));
      if (std::string wrong = Check(item, value[i]); !wrong.empty()) {
        return std::to_string(i) + "/" + wrong;
      }
    }
    return "";
  }

  std::string Object(const json& schema, const json& value) const {
    for (const json& name : schema.value("required", json::array())) {
      if (!value.contains(name.get<std::string>())) return "required";
    }
    if (value.size() < schema.value("minProperties", 0u)) {
      return "minProperties";
    }
    if (value.size() > schema.value("maxProperties", 1u << 31)) {
      return "maxProperties";
    }
    const json properties = schema.value("properties", json::object());
    const json patterns = schema.value("patternProperties", json::object());
    for (const auto& [name, each] : value.items()) {
      const json names = schema.value("propertyNames", json(true));
      if (std::string wrong = Check(names, name); !wrong.empty()) {
        return name + "/" + wrong;
      }
      bool matches = false;
      for (const auto& [pattern, of] : patterns.items()) {
        if (!std::regex_search(name, std::regex(pattern))) continue;
        matches = true;
        if (std::string wrong = Check(of, each); !wrong.empty()) {
          return name + "/" + wrong;
        }
      }
      if (matches && !properties.contains(name)) continue;
      const json& of = properties.contains(name)
                           ? properties[name]
                           : schema.value("additionalProperties", json(true));
      if (std::string wrong = Check(of, each); !wrong.empty()) {
        return name + "/" + wrong;
      }
    }
    return "";
  }

  const json& root_;
};

}  // namespace

std::string Violation(const json& root, const json& schema, const json& value) {
  return Validator(&root).Check(schema, value);
}

}  // namespace baton::router
