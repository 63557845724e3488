#include "router/output_format/schema_overlap.h"

#include <algorithm>
#include <cmath>

namespace baton::router {
namespace {

const SchemaJson* Find(const SchemaJson& schema, const std::string& keyword) {
  if (!schema.is_object()) return nullptr;
  const auto it = schema.find(keyword);
  return it == schema.end() ? nullptr : &*it;
}

// Of a value that is no array or object. 1 and 1.0 are equal, and so, here, are
// large integers that are the same double.
std::string Written(const SchemaJson& value) {
  if (!value.is_number()) return value.dump();
  constexpr double kExact = 9007199254740992.0;  // 2^53
  const double number = value.get<double>();
  if (std::floor(number) != number || std::abs(number) >= kExact) {
    return SchemaJson(number).dump();
  }
  return std::to_string(static_cast<int64_t>(number));
}

}  // namespace

bool SchemaOverlap::EvidentlyNone(const SchemaJson& schemas, JsonTypes among) {
  if (schemas.size() > kMaxSchemas) return false;
  struct Branch {
    JsonTypes types;
    const Marks* marks;
  };
  std::vector<Branch> branches;
  for (const SchemaJson& schema : schemas) {
    const Branch branch{PossibleTypes(schema, &document_) & among,
                        &MarksOf(schema)};
    for (const Branch& other : branches) {
      const JsonTypes both = branch.types & other.types;
      if (both.any() && !Apart(*branch.marks, *other.marks, both)) return false;
    }
    branches.push_back(branch);
  }
  return true;
}

SchemaOverlap::Values SchemaOverlap::ListedValues(const SchemaJson& schema) {
  std::vector<std::string> values;
  // How arrays and objects are equal is not looked into.
  if (const SchemaJson* only = Find(schema, "const")) {
    if (only->is_structured()) return std::nullopt;
    values.push_back(Written(*only));
  } else if (const SchemaJson* all = Find(schema, "enum")) {
    for (const SchemaJson& each : *all) {
      if (each.is_structured()) return std::nullopt;
      values.push_back(Written(each));
    }
  } else {
    return std::nullopt;
  }
  std::sort(values.begin(), values.end());
  return values;
}

const SchemaOverlap::Marks& SchemaOverlap::MarksOf(const SchemaJson& schema) {
  const SchemaJson* at = &schema;
  for (int i = 0; i < kMaxReferences; ++i) {
    const SchemaJson* reference = Find(*at, "$ref");
    if (reference == nullptr || !reference->is_string()) break;
    const SchemaJson* target =
        document_.Follow(reference->get_ref<const std::string&>());
    if (target == nullptr) break;
    at = target;
  }
  std::unique_ptr<Marks>& marks = marks_[at];
  if (marks != nullptr) return *marks;
  marks = std::make_unique<Marks>();
  marks->values = ListedValues(*at);
  const SchemaJson* required = Find(*at, "required");
  const SchemaJson* properties = Find(*at, "properties");
  if (required == nullptr || properties == nullptr) return *marks;
  for (const SchemaJson& name : *required) {
    if (!name.is_string()) continue;
    const auto& key = name.get_ref<const std::string&>();
    if (const SchemaJson* property = Find(*properties, key)) {
      Values values = ListedValues(*property);
      if (values.has_value()) marks->required[key] = std::move(values);
    }
  }
  return *marks;
}

bool SchemaOverlap::Apart(const Values& a, const Values& b) {
  if (!a.has_value() || !b.has_value()) return false;
  auto left = a->begin();
  auto right = b->begin();
  while (left != a->end() && right != b->end()) {
    if (--looks_left_ < 0 || *left == *right) return false;
    ++(*left < *right ? left : right);
  }
  return true;
}

bool SchemaOverlap::Apart(const Marks& a, const Marks& b, JsonTypes both) {
  if (Apart(a.values, b.values)) return true;
  if (both != Only(JsonType::kObject)) return false;
  return std::any_of(
      a.required.begin(), a.required.end(), [this, &b](const auto& mark) {
        if (--looks_left_ < 0) return false;
        const auto other = b.required.find(mark.first);
        return other != b.required.end() && Apart(mark.second, other->second);
      });
}

}  // namespace baton::router
