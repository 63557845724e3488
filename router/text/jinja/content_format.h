// Whether a template knows that a message's content may be a list of parts.
#pragma once

#include "router/text/jinja/ast.h"

namespace baton::router::jinja {

// Whether some loop of the template runs over a `content`: `message.content`,
// `message['content']` or a variable that is set to one, filters and slices
// apart. That is how vLLM tells its "openai" format from "string". Pure; any
// thread.
bool LoopsOverContent(const TemplateNode& root);

}  // namespace baton::router::jinja
