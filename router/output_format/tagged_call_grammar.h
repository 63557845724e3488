// Grammars of tool calls that are tags (router/tool_calls/tagged_tool_call.h).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/tool_calls/tagged_tool_call.h"
#include "scheduling/grammar.h"

namespace baton::router {

// Whether a function or a parameter may have this name: it would be no part of
// a tag, and has no white space.
bool FitsIntoTags(absl::string_view name);

// Adds a call of the function `name` to the grammar, <tool_call> and
// </tool_call> included, as the model's chat template would write it. Arguments
// are those that `schema` names, which is one of objects, in its order; one
// that is a text (text_parameters.h) is any text without the tag behind it, or
// what "enum" or "const" say, and all others are JSON (WriteJsonSchema) that
// TaggedToolCall reads as what the schema allows. The tag should not stand in
// their strings.
//
// REQUIRES: the name fits. InvalidArgument for a parameter that does not, and
// for one that is required and has no schema. Unimplemented, naming the keyword
// and where it stands, for those of objects and strings that cannot be told of
// tags. As WriteJsonSchema else.
absl::StatusOr<scheduling::GrammarBuilder::Expression> WriteTaggedCall(
    const std::string& name, const std::string& schema,
    const TaggedCallSyntax& syntax, scheduling::GrammarBuilder* grammar);

}  // namespace baton::router
