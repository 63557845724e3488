// JSON schemas as grammars, for tests.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduling/grammar.h"

namespace baton::router {

// As WriteJsonSchema has it.
absl::StatusOr<scheduling::Grammar> SchemaGrammar(const std::string& schema);

// Whether `schema`, which has to be good, allows `text`.
bool Allows(const std::string& schema, const std::string& text);

void ExpectAllows(const std::string& schema,
                  const std::vector<std::string>& allowed,
                  const std::vector<std::string>& others);

// What WriteJsonSchema says: "CODE message"; empty if it is content.
std::string Refusal(const std::string& schema);

}  // namespace baton::router
