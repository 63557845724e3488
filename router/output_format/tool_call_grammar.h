// Grammars of answers that are tool calls, as the model writes them.
#pragma once

#include "absl/status/status.h"
#include "baton/v1/inference.pb.h"
#include "router/tool_calls/tool_call_format.h"
#include "scheduling/grammar.h"

namespace baton::router {

// Defines `rule` as a call of one of the tools, or as several calls where that
// is allowed and the format has them; with arguments that the tool's parameters
// allow (WriteJsonSchema), which without a type are an object.
//
// InvalidArgument without a tool, or for a tool
// without a name, or whose parameters are no schema of objects; as
// WriteJsonSchema else. The messages read as what follows the name of a field.
absl::Status WriteToolCalls(const v1::ResponseFormat::ToolCalls& calls,
                            ToolCallFormat format,
                            scheduling::GrammarBuilder::Rule rule,
                            scheduling::GrammarBuilder* grammar);

}  // namespace baton::router
