// JSON objects, as a schema has them.
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/output_format/other_names.h"
#include "router/output_format/regular_expression.h"
#include "router/output_format/schema_keywords.h"
#include "router/output_format/schema_types.h"
#include "router/output_format/schema_writer.h"

namespace baton::router {
namespace {

using Expression = scheduling::GrammarBuilder::Expression;
using scheduling::GrammarBuilder;
using scheduling::kAnyNumber;

// A property that has a name.
struct Member {
  absl::string_view name;
  const SchemaNode* schema;  // null: any value
  bool required;
};

class ObjectWriter final {
 public:
  ObjectWriter(const SchemaNode* schema, SchemaWriter* writer, SchemaWays* ways)
      : schema_(*schema),
        writer_(*writer),
        grammar_(writer->grammar()),
        text_(writer->text()),
        ways_(*ways) {}

  absl::Status Write() {
    BATON_ASSIGN_OR_RETURN(const uint32_t least,
                           schema_.Count("minProperties", 0));
    BATON_ASSIGN_OR_RETURN(const uint32_t most,
                           schema_.Count("maxProperties", kAnyNumber));
    if (least > most) return absl::OkStatus();
    BATON_RETURN_IF_ERROR(ReadOthers());
    BATON_RETURN_IF_ERROR(ReadNames());
    BATON_RETURN_IF_ERROR(ReadMembers());
    bool allows_empty = true;
    SchemaWay way;
    for (const Member& member : members_) {
      if (!member.required) continue;
      allows_empty = false;
      if (member.schema != nullptr) way.needs.push_back(member.schema);
    }
    BATON_ASSIGN_OR_RETURN(const bool only_empty, ReadCounts(least, most));
    if (allows_empty && least_others_ == 0) {
      ways_.push_back({grammar_.Literal("{}"), {}});
    }
    if (least_others_ > 0 && others_ != nullptr) way.needs.push_back(others_);
    if (only_empty) return absl::OkStatus();
    way.expression =
        grammar_.Sequence({grammar_.Literal("{"), text_.Space(), WriteFirst()});
    ways_.push_back(std::move(way));
    return absl::OkStatus();
  }

 private:
  absl::Status ReadOthers() {
    const SchemaJson* others = schema_.Find("additionalProperties");
    if (others == nullptr) return absl::OkStatus();
    allows_others_ = *others != false;
    if (allows_others_ && *others != true) {
      others_ = writer_.document().Child(schema_, "additionalProperties");
    }
    return absl::OkStatus();
  }

  // What names may be, where that is said of all of them.
  absl::Status ReadNames() {
    const bool by_pattern = schema_.Has("patternProperties");
    if (!by_pattern && !schema_.Has("propertyNames")) return absl::OkStatus();
    const absl::string_view keyword =
        by_pattern ? "patternProperties" : "propertyNames";
    for (const absl::string_view other :
         {"properties", "required", "propertyNames"}) {
      if (other != keyword && schema_.Has(other)) {
        return schema_.UnknownBeside(keyword, other);
      }
    }
    return by_pattern ? ReadPattern() : ReadPropertyNames();
  }

  absl::Status ReadPropertyNames() {
    const SchemaNode& names =
        *writer_.document().Child(schema_, "propertyNames");
    BATON_ASSIGN_OR_RETURN(const std::optional<ListedValues> listed,
                           writer_.Listed(names));
    if (listed.has_value()) {
      // As properties that may be missing.
      for (const SchemaJson* name : *listed) {
        if (!allows_others_ || !name->is_string()) continue;
        const absl::string_view text = name->get_ref<const std::string&>();
        const bool is_new = std::none_of(
            members_.begin(), members_.end(),
            [text](const Member& member) { return member.name == text; });
        if (!is_new) continue;
        members_.push_back(
            {.name = text, .schema = others_, .required = false});
      }
      allows_others_ = false;
      return absl::OkStatus();
    }
    if (names.value().is_boolean()) {
      allows_others_ = allows_others_ && names.value().get<bool>();
      return absl::OkStatus();
    }
    for (const auto& [name, value] : names.value().items()) {
      if (FindKeyword(name).kind == KeywordKind::kCombination) {
        return schema_.Unknown("propertyNames",
                               absl::StrCat("with ", QuotedInSchema(name)));
      }
    }
    // Names are strings, whether it says so or not.
    SchemaWays ways;
    BATON_ASSIGN_OR_RETURN(const JsonTypes types, DeclaredTypes(names));
    if (Has(types, JsonType::kString)) {
      BATON_RETURN_IF_ERROR(WriteStrings(names, &writer_, &ways));
    }
    std::vector<Expression> choices;
    for (const SchemaWay& way : ways) choices.push_back(way.expression);
    allows_others_ = allows_others_ && !choices.empty();
    other_name_ = grammar_.Choice(choices);
    return absl::OkStatus();
  }

  // Names that match, and no others: what those may be is not written.
  absl::Status ReadPattern() {
    const SchemaJson& patterns = *schema_.Find("patternProperties");
    if (!patterns.is_object()) {
      return schema_.Invalid("patternProperties", "that is not an object");
    }
    if (patterns.empty()) return absl::OkStatus();
    // A name may match several, and its value has to be what all of them say.
    if (patterns.size() > 1) {
      return schema_.Unknown("patternProperties", "with several patterns");
    }
    const std::string& pattern = patterns.begin().key();
    const absl::StatusOr<Expression> text = WriteRegularExpression(
        pattern, Match::kAnywhere, Writing::kJsonString, &grammar_);
    if (!text.ok()) {
      return absl::Status(
          text.status().code(),
          absl::StrCat("has a pattern in \"patternProperties\" at ",
                       schema_.Pointer(), " that ", text.status().message()));
    }
    const Expression quote = grammar_.Literal("\"");
    other_name_ = grammar_.Sequence({quote, *text, quote});
    others_ = writer_.document().Child(schema_, "patternProperties", pattern);
    allows_others_ = true;
    return absl::OkStatus();
  }

  // In the order of the schema; then those that are only required.
  absl::Status ReadMembers() {
    BATON_ASSIGN_OR_RETURN(const std::vector<absl::string_view> required,
                           schema_.Strings("required"));
    std::set<absl::string_view> missing(required.begin(), required.end());
    if (const SchemaJson* properties = schema_.Find("properties")) {
      if (!properties->is_object()) {
        return schema_.Invalid("properties", "that is not an object");
      }
      for (auto it = properties->begin(); it != properties->end(); ++it) {
        const absl::string_view name = it.key();
        members_.push_back(
            {.name = name,
             .schema = writer_.document().Child(schema_, "properties", name),
             .required = missing.erase(name) > 0});
      }
    }
    for (const absl::string_view name : required) {
      if (missing.erase(name) == 0) continue;
      if (!allows_others_) {
        return schema_.Invalid("required",
                               absl::StrCat("with ", QuotedInSchema(name),
                                            ", which no property may be"));
      }
      members_.push_back({.name = name, .schema = others_, .required = true});
    }
    return absl::OkStatus();
  }

  // Whether there may be no properties at all.
  absl::StatusOr<bool> ReadCounts(uint32_t least, uint32_t most) {
    const auto num_required = static_cast<uint32_t>(
        std::count_if(members_.begin(), members_.end(),
                      [](const Member& member) { return member.required; }));
    if (most == 0 && num_required == 0) return true;
    if (members_.empty() && allows_others_) {
      // Of two properties one may be the other once more, which is one.
      if (least > 1) return schema_.Unknown("minProperties", "above 1");
      least_others_ = least;
      most_others_ = most;
      return false;
    }
    if (least > num_required) {
      return schema_.Unknown("minProperties", "above what is required");
    }
    if (most != kAnyNumber && (allows_others_ || most < members_.size())) {
      return schema_.Unknown("maxProperties", "below what is possible");
    }
    return members_.empty() && !allows_others_;
  }

  Expression Value(const SchemaNode* schema) {
    return schema == nullptr ? text_.Value() : writer_.Call(*schema);
  }

  // The properties up to the first that is required, and that one, may come
  // first; behind each of them is what comes behind the others, but for those
  // that were skipped. So there is a rule for what may come behind each.
  Expression WriteFirst() {
    std::vector<Expression> written;
    for (const Member& member : members_) {
      const std::string name = SchemaJson(std::string(member.name)).dump();
      written.push_back(grammar_.Sequence(
          {grammar_.Literal(name), text_.Colon(), Value(member.schema)}));
    }
    size_t may_be_first = 0;  // so many
    bool is_required = false;
    while (may_be_first < members_.size() && !is_required) {
      is_required = members_[may_be_first++].required;
    }
    WriteOthers();
    std::vector<Expression> choices;
    Expression behind = WriteBehind(written, may_be_first);
    if (!is_required && other_.has_value()) {
      choices.push_back(grammar_.Sequence({*other_, behind}));
    }
    for (size_t i = may_be_first; i-- > 0;) {
      const GrammarBuilder::Rule rule = grammar_.NewRule();
      grammar_.Define(rule, behind);
      const Expression call = grammar_.Call(rule);
      choices.push_back(grammar_.Sequence({written[i], call}));
      behind = grammar_.Sequence(
          {members_[i].required ? Next(written[i]) : MaybeNext(written[i]),
           call});
    }
    return grammar_.Choice(choices);
  }

  // What comes behind a property, from the `from`th on, with the end.
  Expression WriteBehind(const std::vector<Expression>& written, size_t from) {
    std::vector<Expression> parts;
    for (size_t i = from; i < written.size(); ++i) {
      parts.push_back(members_[i].required ? Next(written[i])
                                           : MaybeNext(written[i]));
    }
    // Where there are bounds, one comes before.
    if (other_.has_value() && most_others_ > 1) {
      parts.push_back(grammar_.Repeat(
          Next(*other_), 0,
          most_others_ == kAnyNumber ? kAnyNumber : most_others_ - 1));
    }
    parts.push_back(text_.Space());
    parts.push_back(grammar_.Literal("}"));
    return grammar_.Sequence(parts);
  }

  // One property that has none of the names.
  void WriteOthers() {
    if (!allows_others_) return;
    std::vector<absl::string_view> names;
    for (const Member& member : members_) names.push_back(member.name);
    const Expression name = other_name_.has_value()
                                ? *other_name_
                                : WriteOtherName(names, &text_, &grammar_);
    other_ = grammar_.Sequence({name, text_.Colon(), Value(others_)});
  }

  Expression Next(Expression member) {
    return grammar_.Sequence({text_.Comma(), member});
  }
  Expression MaybeNext(Expression member) {
    return grammar_.Optional(Next(member));
  }

  const SchemaNode& schema_;
  SchemaWriter& writer_;
  GrammarBuilder& grammar_;
  JsonText& text_;
  SchemaWays& ways_;
  std::vector<Member> members_;
  bool allows_others_ = true;
  const SchemaNode* others_ = nullptr;    // null: any value
  std::optional<Expression> other_name_;  // of a string, with its quotes
  std::optional<Expression> other_;
  // Where no property has a name.
  uint32_t least_others_ = 0;
  uint32_t most_others_ = kAnyNumber;
};

}  // namespace

absl::Status WriteObjects(const SchemaNode& schema, SchemaWriter* writer,
                          SchemaWays* ways) {
  return ObjectWriter(&schema, writer, ways).Write();
}

}  // namespace baton::router
