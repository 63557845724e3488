// The names that an object's other properties may have. One thread at a time.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "router/output_format/json_text.h"
#include "scheduling/grammar.h"

namespace baton::router {

// A JSON string that is none of `names`, with its quotes. As far as it is the
// beginning of one of them, its characters are escaped only if they have to be:
// otherwise there would be too many ways to write the names themselves.
// REQUIRES: the names are UTF-8.
scheduling::GrammarBuilder::Expression WriteOtherName(
    const std::vector<absl::string_view>& names, JsonText* text,
    scheduling::GrammarBuilder* grammar);

}  // namespace baton::router
