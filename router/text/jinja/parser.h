// From a template's source to its tree, by the grammar of Jinja2 with the
// extensions that Hugging Face has: {% break %}, {% continue %} and
// {% generation %}.
//
// Pure; any thread. InvalidArgument "line N: ..." for what Jinja2 refuses too;
// Unimplemented for what needs other templates (include, import, extends,
// block). A source that is nested too deeply is refused, so that functions may
// recurse over the tree. Names of filters and tests are not looked up: as in
// Jinja2, a branch that is not taken may have unknown ones.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/text/jinja/ast.h"

namespace baton::router::jinja {

// REQUIRES: well-formed UTF-8.
absl::StatusOr<TemplateNode> Parse(absl::string_view source);

}  // namespace baton::router::jinja
