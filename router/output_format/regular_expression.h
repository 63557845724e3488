// Regular expressions that say what an answer, or a string in it, may be.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/output_format/characters.h"
#include "router/output_format/pattern_length.h"
#include "scheduling/grammar.h"

namespace baton::router {

enum class Match {
  kWhole,    // the pattern is all of the text; ^ at its beginning and $ at its
             // end are allowed, and say nothing new
  kAnywhere  // as JSON schemas have it: it may stand anywhere in the text, but
             // for alternatives that begin with ^ or end with $
};

// Adds what `pattern` says to the grammar: what is common to the regular
// expressions of ECMAScript, Python and Rust, in Unicode. Literals and escapes
// (\n \t \r \f \v \0 \xHH \uHHHH \u{H} \cX), ., classes with ranges and
// negation, \d \w \s and their opposites (ASCII, as ECMAScript has them; \s
// with its Unicode spaces), groups, (?:...), (?<name>...), alternatives, greedy
// and lazy * + ? {n} {n,} {n,m}. Bounds of repetition are at most 10,000.
//
// Of all that, what is as long as `length` says.
//
// InvalidArgument, with the place in the pattern, for what is malformed;
// Unimplemented for lengths of too large a pattern (WriteOfLength), and for
// what is not regular or not known: look-around, back references, \b, \p,
// flags, ^ and $ elsewhere. The messages read as what follows the name of a
// field: "has an unclosed group at byte 3".
absl::StatusOr<scheduling::GrammarBuilder::Expression> WriteRegularExpression(
    absl::string_view pattern, Match match, Writing writing,
    scheduling::GrammarBuilder* grammar, TextLength length = {});

}  // namespace baton::router
