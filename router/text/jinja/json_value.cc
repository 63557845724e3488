#include "router/text/jinja/json_value.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"

namespace baton::router::jinja {
namespace {

absl::StatusOr<Value> Text(Run& run, const std::string& text) {
  if (IsValidUtf8(text)) return run.String(text);
  return run.String(ReplaceIllFormedUtf8(text));
}

absl::StatusOr<Value> Convert(Run& run, const nlohmann::ordered_json& json,
                              int depth) {
  if (depth > kMaxValueDepth) {
    return Error(
        absl::StrCat("JSON is nested deeper than ", kMaxValueDepth, " levels"));
  }
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::null:
      return Value::None();
    case nlohmann::ordered_json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned:
      return Value::Int(json.get<uint64_t>());
    case nlohmann::ordered_json::value_t::number_float:
      return Value::Float(json.get<double>());
    case nlohmann::ordered_json::value_t::string:
      return Text(run, json.get_ref<const std::string&>());
    case nlohmann::ordered_json::value_t::array: {
      BATON_RETURN_IF_ERROR(run.CheckRoom(json.size(), sizeof(Value)));
      Values items;
      items.reserve(json.size());
      for (const nlohmann::ordered_json& each : json) {
        BATON_ASSIGN_OR_RETURN(Value item, Convert(run, each, depth + 1));
        items.push_back(std::move(item));
      }
      return run.List(std::move(items));
    }
    case nlohmann::ordered_json::value_t::object: {
      BATON_RETURN_IF_ERROR(run.CheckRoom(json.size(), sizeof(DictRep::Entry)));
      std::vector<DictRep::Entry> entries;
      entries.reserve(json.size());
      for (auto it = json.begin(); it != json.end(); ++it) {
        BATON_ASSIGN_OR_RETURN(Value key, Text(run, it.key()));
        BATON_ASSIGN_OR_RETURN(Value value, Convert(run, *it, depth + 1));
        entries.emplace_back(std::move(key), std::move(value));
      }
      return run.Dict(std::move(entries));
    }
    case nlohmann::ordered_json::value_t::binary:
    case nlohmann::ordered_json::value_t::discarded:
      break;
  }
  return Error("JSON has a value of no JSON type");
}

}  // namespace

absl::StatusOr<Value> FromJson(Run& run, const nlohmann::ordered_json& json) {
  return Convert(run, json, /*depth=*/1);
}

}  // namespace baton::router::jinja
