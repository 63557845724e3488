// The tools of a chat request: what the model may call, and whether it has to.
// Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "baton/v1/inference.pb.h"
#include "router/http/json_fields.h"
#include "router/tool_calls/tool_call_body.h"

namespace baton::router::http {

struct ToolUse {
  // Calls are looked for in the answers: there are tools, and tool_choice is
  // not "none".
  bool wanted = false;
  // Of the functions that may be called.
  std::vector<std::string> names;
  std::vector<std::string> parameters;  // of each: JSON, or empty
};

// Which of their parameters are texts.
TextsOfTools TextsOf(const ToolUse& use);

// Reads `tools`, `tool_choice` and `parallel_tool_calls`; what the template
// makes of the first two is another matter. Where the model has to call
// something, so does the request's format say.
//
// InvalidArgument names the field: a tool_choice that is none of "none",
// "auto", "required" and {"type": "function", "function": {"name": ...}}; one
// that asks for a call of what is not among the tools, or beside another format
// for the answer.
absl::Status ReadTools(const JsonFields& fields, ToolUse* use,
                       v1::GenerateRequest* out);

}  // namespace baton::router::http
