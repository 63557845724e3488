#include "router/http/response_format.h"

#include <optional>
#include <string>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/invalid_field.h"

namespace baton::router::http {
namespace {

// A schema is an object or a truth value; some clients write it as a string.
absl::Status ReadSchema(const JsonFields& fields, absl::string_view name,
                        v1::ResponseFormat* out) {
  const json::value* schema = fields.Find(name);
  if (schema == nullptr) {
    return InvalidField(fields.FullName(name), "is missing");
  }
  if (schema->is_string()) {
    out->set_json_schema(std::string(schema->get_string()));
  } else if (schema->is_object() || schema->is_bool()) {
    out->set_json_schema(json::serialize(*schema));
  } else {
    return InvalidField(
        fields.FullName(name),
        absl::StrCat("must be a JSON schema, it is ", TypeName(*schema)));
  }
  return absl::OkStatus();
}

absl::Status ReadRegex(const JsonFields& fields, absl::string_view name,
                       v1::ResponseFormat* out) {
  BATON_ASSIGN_OR_RETURN(std::optional<std::string> regex, fields.String(name));
  if (!regex.has_value()) {
    return InvalidField(fields.FullName(name), "is missing");
  }
  out->set_regex(*std::move(regex));
  return absl::OkStatus();
}

absl::Status ReadChoice(const JsonFields& fields, absl::string_view name,
                        v1::ResponseFormat* out) {
  const json::value* texts = fields.Find(name);
  if (texts == nullptr || !texts->is_array()) {
    return InvalidField(fields.FullName(name), "must be an array of strings");
  }
  for (const json::value& text : texts->get_array()) {
    if (!text.is_string()) {
      return InvalidField(
          fields.FullName(name),
          absl::StrCat("must hold strings, it holds ", TypeName(text)));
    }
    out->mutable_choice()->add_texts(std::string(text.get_string()));
  }
  // Of none: an error that names it comes later.
  out->mutable_choice();
  return absl::OkStatus();
}

absl::StatusOr<JsonFields> ObjectOf(const JsonFields& fields,
                                    absl::string_view name) {
  const json::value* value = fields.Find(name);
  if (value == nullptr)
    return InvalidField(fields.FullName(name), "is missing");
  if (!value->is_object()) {
    return InvalidField(
        fields.FullName(name),
        absl::StrCat("must be an object, it is ", TypeName(*value)));
  }
  return JsonFields(&value->get_object(),
                    absl::StrCat(fields.FullName(name), "."));
}

absl::Status ReadOpenAi(const JsonFields& fields, v1::ResponseFormat* out) {
  BATON_ASSIGN_OR_RETURN(const JsonFields format,
                         ObjectOf(fields, "response_format"));
  BATON_ASSIGN_OR_RETURN(const std::optional<std::string> type,
                         format.String("type"));
  if (type == "text") return absl::OkStatus();
  if (type == "json_object") {
    out->mutable_json_object();
    return absl::OkStatus();
  }
  if (type == "json_schema") {
    // Its name and `strict` say nothing new: it is kept to in any case.
    BATON_ASSIGN_OR_RETURN(const JsonFields wrapped,
                           ObjectOf(format, "json_schema"));
    return ReadSchema(wrapped, "schema", out);
  }
  return InvalidField("response_format.type",
                      type.has_value()
                          ? absl::StrCat("is \"", type->substr(0, 64),
                                         "\", it must be text, json_object or "
                                         "json_schema")
                          : "is missing");
}

// One of the four of vLLM's structured_outputs.
absl::Status ReadStructured(const JsonFields& fields, v1::ResponseFormat* out) {
  BATON_ASSIGN_OR_RETURN(const JsonFields given,
                         ObjectOf(fields, "structured_outputs"));
  for (const char* name : {"grammar", "structural_tag"}) {
    if (given.Find(name) != nullptr) {
      return InvalidField(given.FullName(name), "is not supported");
    }
  }
  BATON_ASSIGN_OR_RETURN(const auto any_object, given.Bool("json_object"));
  int kinds = 0;
  if (any_object.value_or(false)) {
    ++kinds;
    out->mutable_json_object();
  }
  if (given.Find("json") != nullptr) {
    ++kinds;
    BATON_RETURN_IF_ERROR(ReadSchema(given, "json", out));
  }
  if (given.Find("regex") != nullptr) {
    ++kinds;
    BATON_RETURN_IF_ERROR(ReadRegex(given, "regex", out));
  }
  if (given.Find("choice") != nullptr) {
    ++kinds;
    BATON_RETURN_IF_ERROR(ReadChoice(given, "choice", out));
  }
  if (kinds == 1) return absl::OkStatus();
  return InvalidField("structured_outputs",
                      "must have one of json, regex, choice and json_object");
}

bool Given(const JsonFields& fields, absl::string_view name) {
  const json::value* value = fields.Find(name);
  // Clients that send all fields send empty ones.
  return value != nullptr &&
         !(value->is_string() && value->get_string().empty());
}

}  // namespace

absl::Status ReadResponseFormat(const JsonFields& fields,
                                v1::GenerateRequest* out) {
  using Read = absl::Status (*)(const JsonFields&, v1::ResponseFormat*);
  static constexpr std::pair<const char*, Read> kFields[] = {
      {"response_format", ReadOpenAi},
      {"structured_outputs", ReadStructured},
      {"guided_json",
       [](const JsonFields& f, v1::ResponseFormat* format) {
         return ReadSchema(f, "guided_json", format);
       }},
      {"guided_regex",
       [](const JsonFields& f, v1::ResponseFormat* format) {
         return ReadRegex(f, "guided_regex", format);
       }},
      {"guided_choice",
       [](const JsonFields& f, v1::ResponseFormat* format) {
         return ReadChoice(f, "guided_choice", format);
       }},
  };
  for (const auto& [name, read] : kFields) {
    if (!Given(fields, name)) continue;
    v1::ResponseFormat format;
    BATON_RETURN_IF_ERROR(read(fields, &format));
    if (format.kind_case() == v1::ResponseFormat::KIND_NOT_SET) continue;
    if (out->has_response_format()) {
      return InvalidField(name, "is one format more than an answer can have");
    }
    *out->mutable_response_format() = std::move(format);
  }
  if (Given(fields, "guided_grammar")) {
    return InvalidField("guided_grammar", "is not supported");
  }
  return absl::OkStatus();
}

}  // namespace baton::router::http
