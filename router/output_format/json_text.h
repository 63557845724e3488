// The grammar of JSON itself, as schemas share it: white space, strings, and
// any value. Each of its rules is written when it is first asked for. One
// thread at a time.
#pragma once

#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "router/output_format/pattern_length.h"
#include "scheduling/grammar.h"

namespace baton::router {

class JsonText final {
 public:
  using Expression = scheduling::GrammarBuilder::Expression;
  using Rule = scheduling::GrammarBuilder::Rule;

  // Writes to `grammar`, which must outlive it.
  explicit JsonText(scheduling::GrammarBuilder* grammar) : grammar_(*grammar) {}

  // What may stand between two tokens: nothing, one space, or a line break and
  // up to 32 spaces.
  Expression Space();
  // With space around them.
  Expression Comma();
  Expression Colon();
  // The first ones to the second, with space inside.
  Expression Between(absl::string_view open, Expression inside,
                     absl::string_view close);

  // Of a string, whether it is escaped or not.
  Expression Character();
  // Any characters, then the quote that ends a string.
  Expression StringEnd();
  Expression String();
  // An integer of 64 bits.
  Expression Integer();
  Expression Number();
  Expression Boolean();
  Expression Null();
  Expression Array();
  Expression Object();
  // Any of these.
  Expression Value();

  // A string of one of the formats that FormatPattern knows, as long as
  // `length` says. Where that would be too large a grammar (WriteOfLength),
  // some of them (ShorterFormatPattern), or, where there are none, nothing.
  std::optional<Expression> StringOfFormat(absl::string_view format,
                                           TextLength length);

 private:
  // The rule of `slot`, which `write` writes the first time.
  template <typename Write>
  Expression Shared(std::optional<Expression>* slot, Write write);

  scheduling::GrammarBuilder& grammar_;
  std::optional<Expression> space_;
  std::optional<Expression> comma_;
  std::optional<Expression> colon_;
  std::optional<Expression> character_;
  std::optional<Expression> string_end_;
  std::optional<Expression> string_;
  std::optional<Expression> integer_;
  std::optional<Expression> number_;
  std::optional<Expression> boolean_;
  std::optional<Expression> null_;
  std::optional<Expression> array_;
  std::optional<Expression> object_;
  std::optional<Expression> value_;
  absl::flat_hash_map<absl::string_view, std::optional<Expression>> formats_;
};

}  // namespace baton::router
