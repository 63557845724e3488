// What a request of the OpenAI API wants its answer to be: `response_format`,
// and what vLLM has beside it. Pure; any thread.
#pragma once

#include "absl/status/status.h"
#include "baton/v1/inference.pb.h"
#include "router/http/json_fields.h"

namespace baton::router::http {

// Sets the request's format where `fields` have one: response_format of type
// text (none), json_object or json_schema; structured_outputs with json, regex,
// choice or json_object; guided_json, guided_regex, guided_choice. Whether a
// schema or an expression is one is found out later.
//
// InvalidArgument names the field; also for two formats at once, and for
// grammars (guided_grammar), which Baton does not take.
absl::Status ReadResponseFormat(const JsonFields& fields,
                                v1::GenerateRequest* out);

}  // namespace baton::router::http
