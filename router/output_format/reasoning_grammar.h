// Grammars of answers behind what a model thinks (router/reasoning).
#pragma once

#include "absl/status/statusor.h"
#include "router/reasoning/reasoning_start.h"
#include "scheduling/grammar.h"

namespace baton::router {

// Adds `answer` behind what the model thinks: any text up to the first
// </think>, and up to two line breaks; and behind <think>, or without all of
// that, where it is kPossible. REQUIRES: `start` is not kNone.
absl::StatusOr<scheduling::GrammarBuilder::Expression> WriteBehindReasoning(
    ReasoningStart start, scheduling::GrammarBuilder::Expression answer,
    scheduling::GrammarBuilder* grammar);

}  // namespace baton::router
