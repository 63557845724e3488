// Which parameters of a function are texts: where calls have no quotes
// (tagged_tool_call.h), only its schema tells "7" from 7. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "common/json.h"

namespace baton::router {

enum class ValueKind : uint8_t {
  kJson,        // what the text is as JSON, or, if it is none, the text
  kText,        // a string, whatever it looks like
  kTextOrNull,  // the same, but for null
};

// By what the schema says of types: "type", or else the values of "enum" or
// "const", or else what "anyOf" or "oneOf" allow.
ValueKind KindOfValue(const nlohmann::ordered_json& schema);

// Of a function's parameters that are not kJson.
using TextParameters = absl::flat_hash_map<std::string, ValueKind>;

// Of `parameters`, a JSON schema of an object. None where it is something else.
TextParameters TextParametersOf(const std::string& parameters);

}  // namespace baton::router
