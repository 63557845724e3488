#include "router/output_format/schema_document.h"

#include <cmath>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/log.h"
#include "common/utf8.h"
#include "router/output_format/json_schema.h"

namespace baton::router {
namespace {

constexpr size_t kMaxShown = 80;
constexpr size_t kMaxShownPointer = 200;

std::string Cut(const std::string& text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  return absl::StrCat(CutUtf8(text, max_bytes - 3), "...");
}

// Looks at a text while it is parsed. Once there is a problem, it keeps
// nothing more.
class BoundsCheck final {
 public:
  bool Keep(int depth, SchemaJson::parse_event_t event,
            const SchemaJson& value) {
    using Event = SchemaJson::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      names_.emplace_back();
      if (depth >= kMaxSchemaDepth) {
        Fail(absl::StrCat("is nested deeper than ", kMaxSchemaDepth));
      }
    } else if (event == Event::object_end || event == Event::array_end) {
      names_.pop_back();
    } else if (event == Event::key && problem_.empty()) {
      CheckName(value);
    }
    return problem_.empty();
  }

  const std::string& problem() const { return problem_; }

 private:
  void CheckName(const SchemaJson& name) {
    if (!names_.back().insert(name.get<std::string>()).second) {
      Fail(absl::StrCat("has ", ShownInSchema(name), " twice in one object"));
    } else if (names_.back().size() > kMaxSchemaMembers) {
      Fail(absl::StrCat("has an object with more than ", kMaxSchemaMembers,
                        " members"));
    }
  }
  void Fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
  }

  // Of the objects and arrays that are open.
  std::vector<absl::flat_hash_set<std::string>> names_;
  std::string problem_;
};

// The step of a pointer that a name is.
std::string Step(absl::string_view name) {
  return absl::StrReplaceAll(name, {{"~", "~0"}, {"/", "~1"}});
}

// The bytes that %XX in a URI stands for.
std::string Unescape(absl::string_view uri) {
  std::string text;
  for (size_t i = 0; i < uri.size(); ++i) {
    if (uri[i] == '%' && i + 2 < uri.size() &&
        absl::ascii_isxdigit(static_cast<unsigned char>(uri[i + 1])) &&
        absl::ascii_isxdigit(static_cast<unsigned char>(uri[i + 2]))) {
      text += absl::HexStringToBytes(uri.substr(i + 1, 2));
      i += 2;
    } else {
      text += uri[i];
    }
  }
  return text;
}

}  // namespace

bool AreEqual(const SchemaJson& a, const SchemaJson& b) {
  return nlohmann::json(a) == nlohmann::json(b);
}

std::string ShownInSchema(const SchemaJson& value) {
  return Cut(value.dump(-1, ' ', /*ensure_ascii=*/false,
                        SchemaJson::error_handler_t::replace),
             kMaxShown);
}

std::string QuotedInSchema(absl::string_view text) {
  return ShownInSchema(SchemaJson(std::string(text)));
}

std::string SchemaNode::Pointer() const {
  std::vector<const SchemaNode*> way;  // from here to the root
  for (const SchemaNode* at = this; at != nullptr; at = at->within_) {
    way.push_back(at);
  }
  std::string pointer(way.back()->keyword_);
  for (size_t i = way.size() - 1; i-- > 0;) {
    const SchemaNode& at = *way[i];
    absl::StrAppend(&pointer, "/", Step(at.keyword_));
    if (at.name_.data() != nullptr) {
      absl::StrAppend(&pointer, "/", Step(at.name_));
    } else if (at.index_ >= 0) {
      absl::StrAppend(&pointer, "/", at.index_);
    }
  }
  return Cut(pointer, kMaxShownPointer);
}

const SchemaJson* SchemaNode::Find(absl::string_view keyword) const {
  if (!value_->is_object()) return nullptr;
  const auto it = value_->find(std::string(keyword));
  return it == value_->end() ? nullptr : &*it;
}

absl::StatusOr<uint32_t> SchemaNode::Count(absl::string_view keyword,
                                           uint32_t fallback) const {
  const SchemaJson* value = Find(keyword);
  if (value == nullptr) return fallback;
  // 2.0 counts as 2.
  const double count = value->is_number() ? value->get<double>() : -1;
  if (count < 0 || std::floor(count) != count) {
    return Invalid(keyword, absl::StrCat("that is ", ShownInSchema(*value),
                                         ", not a whole number from 0"));
  }
  if (count > kMaxSchemaCount) {
    return Unknown(keyword, absl::StrCat("above ", kMaxSchemaCount));
  }
  return static_cast<uint32_t>(count);
}

absl::StatusOr<bool> SchemaNode::Bool(absl::string_view keyword,
                                      bool fallback) const {
  const SchemaJson* value = Find(keyword);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return Invalid(keyword, "that is not a boolean");
  return value->get<bool>();
}

absl::StatusOr<std::vector<absl::string_view>> SchemaNode::Strings(
    absl::string_view keyword) const {
  std::vector<absl::string_view> strings;
  const SchemaJson* value = Find(keyword);
  if (value == nullptr) return strings;
  if (!value->is_array()) return Invalid(keyword, "that is not an array");
  for (const SchemaJson& each : *value) {
    if (!each.is_string()) {
      return Invalid(keyword, absl::StrCat("with ", ShownInSchema(each),
                                           ", which is not a string"));
    }
    strings.push_back(each.get_ref<const std::string&>());
  }
  return strings;
}

absl::Status SchemaNode::Invalid(absl::string_view keyword,
                                 absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(
      "has ", QuotedInSchema(keyword), " at ", Pointer(), " ", what));
}

absl::Status SchemaNode::Unknown(absl::string_view keyword,
                                 absl::string_view what) const {
  return absl::UnimplementedError(absl::StrCat(
      "has ", QuotedInSchema(keyword), " at ", Pointer(),
      what.empty() ? "" : " ", what, ", which Baton does not know"));
}

absl::Status SchemaNode::UnknownBeside(absl::string_view keyword,
                                       absl::string_view other) const {
  return absl::UnimplementedError(absl::StrCat(
      "has ", QuotedInSchema(keyword), " beside ", QuotedInSchema(other),
      " at ", Pointer(), ", which Baton does not know"));
}

absl::StatusOr<std::unique_ptr<SchemaDocument>> SchemaDocument::Parse(
    absl::string_view text) {
  if (text.size() > kMaxSchemaBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", text.size(), " bytes, more than the ",
                     kMaxSchemaBytes, " that are allowed"));
  }
  std::unique_ptr<SchemaDocument> document(new SchemaDocument);
  BoundsCheck check;
  document->value_ = SchemaJson::parse(
      text.begin(), text.end(),
      [&check](int depth, SchemaJson::parse_event_t event, SchemaJson& value) {
        return check.Keep(depth, event, value);
      },
      /*allow_exceptions=*/false);
  if (!check.problem().empty()) {
    return absl::InvalidArgumentError(check.problem());
  }
  if (document->value_.is_discarded()) {
    return absl::InvalidArgumentError("is not valid JSON");
  }
  document->NodeOf(&document->value_)->keyword_ = "#";
  return document;
}

SchemaNode* SchemaDocument::NodeOf(const SchemaJson* value) {
  const auto [it, is_new] = node_of_.try_emplace(value, nullptr);
  if (is_new) {
    SchemaNode& node = nodes_.emplace_back();
    node.value_ = value;
    node.number_ = nodes_.size() - 1;
    it->second = &node;
  }
  return it->second;
}

const SchemaNode* SchemaDocument::Child(const SchemaNode& of,
                                        absl::string_view keyword,
                                        const SchemaJson* value,
                                        absl::string_view name, int64_t index) {
  SchemaNode* node = NodeOf(value);
  if (node->keyword_.data() == nullptr) {
    node->within_ = &of;
    node->keyword_ = keyword;
    node->name_ = name;
    node->index_ = index;
  }
  return node;
}

const SchemaNode* SchemaDocument::Child(const SchemaNode& of,
                                        absl::string_view keyword) {
  return Child(of, keyword, of.Find(keyword), {}, -1);
}

const SchemaNode* SchemaDocument::Child(const SchemaNode& of,
                                        absl::string_view keyword,
                                        absl::string_view name) {
  const auto it = of.Find(keyword)->find(std::string(name));
  CHECK(it != of.Find(keyword)->end()) << keyword;
  // The name in the document, which lives on.
  return Child(of, keyword, &*it, it.key(), -1);
}

const SchemaNode* SchemaDocument::Child(const SchemaNode& of,
                                        absl::string_view keyword,
                                        size_t index) {
  return Child(of, keyword, &(*of.Find(keyword))[index], {},
               static_cast<int64_t>(index));
}

const SchemaNode* SchemaDocument::Derive(const SchemaNode& of,
                                         SchemaJson value) {
  const auto [it, is_new] = derived_nodes_.try_emplace(value.dump(), nullptr);
  if (is_new) {
    const Derived& derived =
        derived_.emplace_back(Derived{std::move(value), of.Pointer()});
    SchemaNode* const node = NodeOf(&derived.value);
    node->keyword_ = derived.pointer;
    it->second = node;
  }
  return it->second;
}

absl::StatusOr<const SchemaNode*> SchemaDocument::Target(const SchemaNode& of) {
  const SchemaJson& reference = *of.Find("$ref");
  if (!reference.is_string()) return of.Invalid("$ref", "that is not a string");
  const absl::string_view text = reference.get_ref<const std::string&>();
  if (text != "#" && !absl::StartsWith(text, "#/")) {
    return of.Unknown("$ref", absl::StrCat("to ", ShownInSchema(reference)));
  }
  const SchemaJson* value = Follow(text);
  if (value == nullptr) {
    return of.Invalid("$ref", absl::StrCat("to ", ShownInSchema(reference),
                                           ", which is not there"));
  }
  SchemaNode* node = NodeOf(value);
  if (node->keyword_.data() == nullptr) node->keyword_ = text;
  return node;
}

const SchemaJson* SchemaDocument::Follow(absl::string_view reference) {
  const auto [it, is_new] = followed_.try_emplace(reference, nullptr);
  if (is_new) it->second = Find(reference);
  return it->second;
}

const SchemaJson* SchemaDocument::Find(absl::string_view reference) const {
  if (!absl::ConsumePrefix(&reference, "#")) return nullptr;
  const SchemaJson* at = &value_;
  if (reference.empty()) return at;
  if (!absl::ConsumePrefix(&reference, "/")) return nullptr;
  for (const absl::string_view part : absl::StrSplit(reference, '/')) {
    const std::string step =
        absl::StrReplaceAll(Unescape(part), {{"~1", "/"}, {"~0", "~"}});
    if (at->is_object()) {
      const auto it = at->find(step);
      if (it == at->end()) return nullptr;
      at = &*it;
    } else {
      uint32_t index = 0;
      if (!at->is_array() || !absl::SimpleAtoi(step, &index) ||
          index >= at->size()) {
        return nullptr;
      }
      at = &(*at)[index];
    }
  }
  return at;
}

}  // namespace baton::router
