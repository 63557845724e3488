// Whether a JSON value is what a JSON schema allows, by the words of the
// specification and not by a grammar: for tests.
#pragma once

#include <string>

#include "common/json.h"

namespace baton::router {

// Of the keywords that router/output_format/json_schema.h knows, but for
// "format" and "oneOf". Empty, or what is wrong. `root` is what references are
// about.
std::string Violation(const nlohmann::json& root, const nlohmann::json& schema,
                      const nlohmann::json& value);

}  // namespace baton::router
