// Regular expressions whose matches also have a bounded length: what JSON
// schemas say with "minLength" and "maxLength" beside "pattern". Any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "router/output_format/regular_expression_parser.h"
#include "scheduling/grammar.h"

namespace baton::router {

// Of a text, in characters.
struct TextLength {
  uint32_t least = 0;
  uint32_t most = scheduling::kAnyNumber;

  bool any() const { return least == 0 && most == scheduling::kAnyNumber; }
};

// The least and the most of what the parts match, one after another; bounds
// beyond 32 bits are any number. REQUIRES, here and below: no ^ and no $ is in
// them.
TextLength LengthsOf(absl::Span<const PatternNode> parts);

// Lets the parts match only what is as long as `length` says, where one of them
// alone has several lengths, and repeats what has one. False where they are not
// such. REQUIRES: what they match is not all longer.
bool NarrowLength(TextLength length, std::vector<PatternNode>* parts);

// Adds to the grammar what the parts match and is as long as `length` says: the
// product of their automaton and a counter, as rules. `write` adds one
// character of a set. Unimplemented, "has more than ...", where the product is
// too large; then nothing was added.
absl::StatusOr<scheduling::GrammarBuilder::Expression> WriteOfLength(
    absl::Span<const PatternNode> parts, TextLength length,
    absl::FunctionRef<
        scheduling::GrammarBuilder::Expression(const CharacterSet&)>
        write,
    scheduling::GrammarBuilder* grammar);

}  // namespace baton::router
