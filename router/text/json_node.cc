#include "router/text/json_node.h"

#include <exception>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/json_shape.h"
#include "common/status_macros.h"

namespace baton::router {
namespace {

// The largest tokenizer.json in public use has about 35 MB.
constexpr size_t kMaxFileBytes = size_t{128} << 20;
std::string Shown(const nlohmann::json& value) {
  constexpr size_t kMaxShown = 80;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true,
                                nlohmann::json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = absl::StrCat(text.substr(0, 77), "...");
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& path,
                                          size_t max_bytes) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  const std::streamoff size = in.tellg();
  if (size < 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path));
  }
  if (static_cast<uint64_t>(size) > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", size, " bytes, more than the ", max_bytes,
                     " that are allowed"));
  }
  std::string bytes(static_cast<size_t>(size), '\0');
  in.seekg(0);
  in.read(bytes.data(), size);
  if (in.gcount() != size) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path));
  }
  return bytes;
}

absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const std::string bytes,
                         ReadSmallFile(path, kMaxFileBytes));
  return ParseJson(bytes, path);
}

absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text,
                                         const std::string& name) {
  // No real file is as deep.
  if (absl::Status shape = CheckJsonBounds(text, {.max_depth = 64});
      !shape.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " ", shape.message()));
  }
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is not valid JSON: ", error.what()));
  }
}

std::optional<int64_t> WholeNumber(const nlohmann::json& value, int64_t max) {
  if (!value.is_number_integer()) return std::nullopt;
  // What does not fit an int64_t is unsigned.
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(max)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  const int64_t number = value.get<int64_t>();
  if (number < 0 || number > max) return std::nullopt;
  return number;
}

std::string JsonNode::PathOf(absl::string_view field) const {
  return path_.empty() ? std::string(field) : absl::StrCat(path_, ".", field);
}

absl::Status JsonNode::Invalid(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(
      file_, ": ", path_.empty() ? "the document" : path_, " ", what));
}

absl::Status JsonNode::Unsupported(absl::string_view field) const {
  static const nlohmann::json absent;
  const nlohmann::json& value = value_->is_object() && value_->contains(field)
                                    ? *value_->find(std::string(field))
                                    : absent;
  return absl::UnimplementedError(absl::StrCat(file_, ": ", PathOf(field),
                                               " is ", Shown(value),
                                               ", which is not supported"));
}

bool JsonNode::Has(absl::string_view field) const {
  if (!value_->is_object()) return false;
  const auto it = value_->find(std::string(field));
  return it != value_->end() && !it->is_null();
}

absl::StatusOr<JsonNode> JsonNode::Field(absl::string_view field) const {
  if (!value_->is_object()) return Invalid("is not an object");
  const auto it = value_->find(std::string(field));
  if (it == value_->end() || it->is_null()) {
    return Invalid(absl::StrCat("has no field \"", field, "\""));
  }
  return JsonNode(&*it, file_, PathOf(field));
}

absl::StatusOr<std::vector<JsonNode>> JsonNode::Elements() const {
  if (!value_->is_array()) return Invalid("is not an array");
  std::vector<JsonNode> elements;
  elements.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    elements.push_back(
        JsonNode(&(*value_)[i], file_, absl::StrCat(path_, "[", i, "]")));
  }
  return elements;
}

absl::StatusOr<std::string> JsonNode::AsString() const {
  if (!value_->is_string()) return Invalid("is not a string");
  return value_->get_ref<const std::string&>();
}

absl::StatusOr<std::string> JsonNode::String(absl::string_view field) const {
  BATON_ASSIGN_OR_RETURN(const JsonNode node, Field(field));
  return node.AsString();
}

absl::StatusOr<std::vector<JsonNode>> JsonNode::Array(
    absl::string_view field) const {
  BATON_ASSIGN_OR_RETURN(const JsonNode node, Field(field));
  return node.Elements();
}

absl::StatusOr<int64_t> JsonNode::AsCount(int64_t max) const {
  const std::optional<int64_t> count = WholeNumber(*value_, max);
  if (!count.has_value()) {
    return Invalid(absl::StrCat("is ", Shown(*value_),
                                ", not a whole number from 0 to ", max));
  }
  return *count;
}

absl::StatusOr<int64_t> JsonNode::Count(absl::string_view field,
                                        int64_t max) const {
  BATON_ASSIGN_OR_RETURN(const JsonNode node, Field(field));
  return node.AsCount(max);
}

absl::StatusOr<std::string> JsonNode::String(absl::string_view field,
                                             absl::string_view fallback) const {
  if (!Has(field)) return std::string(fallback);
  return String(field);
}

absl::StatusOr<bool> JsonNode::Bool(absl::string_view field,
                                    bool fallback) const {
  if (!Has(field)) return fallback;
  BATON_ASSIGN_OR_RETURN(const JsonNode node, Field(field));
  if (!node.value_->is_boolean()) return node.Invalid("is not a boolean");
  return node.value_->get<bool>();
}

}  // namespace baton::router
