// JSON schemas as grammars of the JSON that they allow.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "scheduling/grammar.h"

namespace baton::router {

// The longest schema, in bytes, and how deep it may be nested.
inline constexpr size_t kMaxSchemaBytes = 256 * 1024;
inline constexpr int kMaxSchemaDepth = 64;

// Defines `rule` as the JSON that `schema`, itself JSON, allows. Objects have
// their properties in the order of the schema, which models write best and
// which makes the grammar small; those that are not required may be missing.
// Between tokens there may be one space, or a line break and up to 32 spaces.
//
// Other properties, where there may be some, come behind those of the schema,
// and have none of their names; the same name may come twice among them.
//
// InvalidArgument for what is not a schema, or allows nothing; Unimplemented,
// naming the keyword and where it stands ("has "not" at #/properties/name,
// which Baton does not know"), for a keyword that says what may come and is not
// known here: nothing is silently left out. ResourceExhausted if the grammar
// gets full, or more schemas have to be put together than may be
// (schema_merge.h). The messages read as what follows the name of a field. After an
// error the grammar is not whole.
absl::Status WriteJsonSchema(absl::string_view schema,
                             scheduling::GrammarBuilder::Rule rule,
                             scheduling::GrammarBuilder* grammar);

// Defines `rule` as any JSON object, and nothing else (OpenAI's json_object).
void WriteAnyJsonObject(scheduling::GrammarBuilder::Rule rule,
                        scheduling::GrammarBuilder* grammar);

}  // namespace baton::router
