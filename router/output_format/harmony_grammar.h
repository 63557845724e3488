// Grammars of answers in the messages of Harmony (router/harmony).
//
// Where a grammar wants a marker, it wants the token that is one, and nowhere
// else that token may come: its bytes are not the text that it has, but such as
// no other text has.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduling/grammar.h"

namespace baton::router {

// In no UTF-8.
inline constexpr char kMarkerByte = '\xff';

// Of the token that is this marker, as grammars and vocabularies have it.
std::string MarkerBytes(absl::string_view marker);

// Adds `message`, header and body, behind what the model thinks: any number of
// messages of any text.
absl::StatusOr<scheduling::GrammarBuilder::Expression> WriteBehindThoughts(
    scheduling::GrammarBuilder::Expression message,
    scheduling::GrammarBuilder* grammar);

// A message to whoever asked that says `answer`. `json`: that is JSON, and the
// header may say so.
scheduling::GrammarBuilder::Expression WriteFinalMessage(
    scheduling::GrammarBuilder::Expression answer, bool json,
    scheduling::GrammarBuilder* grammar);

// A message that calls the function `name`, whichever way its header is
// written. REQUIRES: FitsIntoTags(name).
scheduling::GrammarBuilder::Expression WriteCallMessage(
    absl::string_view name, scheduling::GrammarBuilder::Expression arguments,
    scheduling::GrammarBuilder* grammar);

}  // namespace baton::router
